#include "model/command_line.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/error.h"
#include "model/config.h"

/* One row a flag: what it takes decides how it is read. */
enum flag {
    FLAG_CONFIG,
    FLAG_SET,
    FLAG_DEVICE,
    FLAG_RESUME,
    FLAG_DRY_RUN,
    FLAG_SAMPLE,
    FLAG_FROM,
    FLAG_TOKENS,
    FLAG_TEMPERATURE,
    FLAG_TOP_K,
    FLAG_SEED,
    FLAG_PRINT_SCHEMA,
    FLAG_PRINT_REFERENCE,
    FLAG_HELP,
    FLAG_VERSION,
    FLAGS
};

static const struct {
    const char *name, *value, *help;
} flags[FLAGS] = {
    [FLAG_CONFIG] = {"--config", "FILE", "train as FILE says; a bare name may be one of configs/"},
    [FLAG_SET] = {"--set", "KEY=VALUE", "override one key of the config; repeatable"},
    [FLAG_DEVICE] = {"--device", "NAME", "auto, cpu or cuda; short for --set device=NAME"},
    [FLAG_RESUME] = {"--resume", "[PATH]", "go on from PATH, or the run's newest whole checkpoint"},
    [FLAG_DRY_RUN] = {"--dry-run", NULL, "print the plan and the memory it needs; train nothing"},
    [FLAG_SAMPLE] = {"--sample", "PROMPT", "print text that continues PROMPT; needs --from"},
    [FLAG_FROM] = {"--from", "DIR", "the checkpoint to sample from, or a run: its newest"},
    [FLAG_TOKENS] = {"--tokens", "N", "sample: how many tokens to add"},
    [FLAG_TEMPERATURE] = {"--temperature", "X", "sample: 0 takes the likeliest token each time"},
    [FLAG_TOP_K] = {"--top-k", "N", "sample: draw among the N likeliest; 0 for all"},
    [FLAG_SEED] = {"--seed", "N", "sample: another seed, another text"},
    [FLAG_PRINT_SCHEMA] = {"--print-schema", NULL, "print the JSON Schema of config files"},
    [FLAG_PRINT_REFERENCE] = {"--print-reference", NULL, "print the config keys as Markdown"},
    [FLAG_HELP] = {"--help", NULL, "this text"},
    [FLAG_VERSION] = {"--version", NULL, "print the version"},
};

static int find_flag(const char *argument, const char **value) {
    for (int i = 0; i < FLAGS; i++) {
        size_t length = strlen(flags[i].name);
        if (strncmp(argument, flags[i].name, length) != 0) continue;
        *value = argument[length] == '=' ? argument + length + 1 : NULL;
        if (argument[length] == '=' || argument[length] == 0) return i;
    }
    return -1;
}

static int read_count(int64_t *out, const char *flag, const char *text, char *error) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > INT32_MAX)
        return fail(error, "%s: \"%s\" is not a whole number from 0 to %d", flag, text, INT32_MAX);
    *out = value;
    return 0;
}

static int read_temperature(double *out, const char *flag, const char *text, char *error) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < 0)
        return fail(error, "%s: \"%s\" is not a number from 0 up", flag, text);
    *out = value;
    return 0;
}

static int set_device(struct command_line *line, const char *value, char *error) {
    static char *const overrides[] = {"device=auto", "device=cpu", "device=cuda"};
    for (int i = 0; i < 3; i++)
        if (strcmp(overrides[i] + strlen("device="), value) == 0) {
            arrput(line->overrides, overrides[i]);
            return 0;
        }
    return fail(error, "--device: \"%s\" is none of auto, cpu, cuda", value);
}

static int take(struct command_line *line, enum flag flag, char *value, char *error) {
    const char *name = flags[flag].name;
    switch (flag) {
    case FLAG_CONFIG: line->config = value; return 0;
    case FLAG_SET: arrput(line->overrides, value); return 0;
    case FLAG_DEVICE: return set_device(line, value, error);
    case FLAG_RESUME:
        if (value && !value[0]) return fail(error, "--resume: the path is empty");
        line->resume = true;
        line->resume_path = value;
        return 0;
    case FLAG_SAMPLE:
        line->command = COMMAND_SAMPLE;
        line->prompt = value;
        return 0;
    case FLAG_FROM: line->from = value; return 0;
    case FLAG_TOKENS: return read_count(&line->tokens, name, value, error);
    case FLAG_TOP_K: return read_count(&line->top_k, name, value, error);
    case FLAG_SEED: return read_count(&line->seed, name, value, error);
    case FLAG_TEMPERATURE: return read_temperature(&line->temperature, name, value, error);
    case FLAG_DRY_RUN: line->command = COMMAND_DRY_RUN; return 0;
    case FLAG_PRINT_SCHEMA: line->command = COMMAND_PRINT_SCHEMA; return 0;
    case FLAG_PRINT_REFERENCE: line->command = COMMAND_PRINT_REFERENCE; return 0;
    case FLAG_HELP: line->command = COMMAND_HELP; return 0;
    case FLAG_VERSION: line->command = COMMAND_VERSION; return 0;
    case FLAGS: break;
    }
    return 0;
}

static int check(const struct command_line *line, char *error) {
    bool sampling = line->command == COMMAND_SAMPLE;
    bool sample_flags = line->from || line->tokens >= 0 || line->top_k >= 0 || line->seed >= 0 ||
                        line->temperature >= 0;
    if (sampling && !line->from)
        return fail(error, "--sample needs --from DIR, a run such as runs/NAME or a checkpoint");
    if (sampling && (line->config || line->resume))
        return fail(error, "--sample takes its config from the checkpoint; drop %s (--set works)",
                    line->config ? "--config" : "--resume");
    if (line->prompt && !sampling) return fail(error, "--sample and --dry-run exclude each other");
    if (!sampling && sample_flags)
        return fail(error, "--from, --tokens, --temperature, --top-k and --seed go with --sample");
    bool trains = line->command == COMMAND_TRAIN || line->command == COMMAND_DRY_RUN;
    if (trains && !line->config)
        return fail(error, "nothing to do: give --config FILE, for example\n"
                           "  ./train --config bf16.json\nor see ./train --help");
    return 0;
}

int command_line_parse(struct command_line *line, int argc, char **argv, char *error) {
    *line = (struct command_line){.temperature = -1, .top_k = -1, .tokens = -1, .seed = -1};
    for (int i = 1; i < argc; i++) {
        const char *given;
        int flag = find_flag(argv[i], &given);
        if (flag < 0)
            return fail(error, "unknown argument \"%s\"; ./train --help lists them", argv[i]);
        char *value = (char *)given;
        bool optional = flags[flag].value && flags[flag].value[0] == '[';
        if (value && !flags[flag].value) return fail(error, "%s takes no value", flags[flag].name);
        if (!value && flags[flag].value && i + 1 < argc && !(optional && argv[i + 1][0] == '-'))
            value = argv[++i];
        if (!value && flags[flag].value && !optional)
            return fail(error, "%s needs a value: %s %s", flags[flag].name, flags[flag].name,
                        flags[flag].value);
        if (take(line, (enum flag)flag, value, error)) return -1;
        if (line->command == COMMAND_HELP || line->command == COMMAND_VERSION) return 0;
    }
    return check(line, error);
}

void command_line_free(struct command_line *line) {
    arrfree(line->overrides);
}

void command_line_help(FILE *out) {
    fprintf(out,
            "mantissa %s: trains GPTs in fp32, fp16 or bf16.\n\n"
            "  ./train --config bf16.json                  train\n"
            "  ./train --config bf16.json --resume         go on after an interruption\n"
            "  ./train --sample \"Once\" --from CHECKPOINT   text from a trained model\n\n",
            MANTISSA_VERSION);
    for (int i = 0; i < FLAGS; i++) {
        char left[32];
        snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value ? flags[i].value : "");
        fprintf(out, "  %-20s %s\n", left, flags[i].help);
    }
    fprintf(out,
            "\nExit status: 0 done, 1 failed, 2 wrong usage or config, 130 and 143 stopped by\n"
            "SIGINT and SIGTERM after saving a checkpoint.\n\nKeys of a config file:\n\n");
    config_print_help(out);
}
