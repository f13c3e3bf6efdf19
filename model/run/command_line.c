#include "model/run/command_line.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/base/program.h"
#include "kernels/ranks/ranks.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"

/* One row a flag: what it takes decides how it is read. */
enum flag {
    FLAG_CONFIG,
    FLAG_SET,
    FLAG_DEVICE,
    FLAG_RESUME,
    FLAG_RANKS,
    FLAG_LOG_RANKS,
    FLAG_DRY_RUN,
    FLAG_SAMPLE,
    FLAG_EVAL,
    FLAG_EXPORT,
    FLAG_AUDIT,
    FLAG_PROFILE,
    FLAG_FROM,
    FLAG_TOKENS,
    FLAG_TEMPERATURE,
    FLAG_TOP_K,
    FLAG_TOP_P,
    FLAG_SEED,
    FLAG_DATA,
    FLAG_PRECISION,
    FLAG_DTYPE,
    FLAG_SHARD_SIZE,
    FLAG_REPETITIONS,
    FLAG_OUT,
    FLAG_SIZES,
    FLAG_MEMORY,
    FLAG_LINK,
    FLAG_LINK_GBS,
    FLAG_TFLOPS,
    FLAG_FIT,
    FLAG_PRINT_SCHEMA,
    FLAG_PRINT_REFERENCE,
    FLAG_HELP,
    FLAG_VERSION,
    FLAGS
};

static const struct flag_row flags[FLAGS] = {
    [FLAG_CONFIG] = {"--config", "FILE", "train as FILE says; a bare name may be one of configs/"},
    [FLAG_SET] = {"--set", "KEY=VALUE", "override one key of the config; repeatable"},
    [FLAG_DEVICE] = {"--device", "NAME", "auto, cpu or cuda; short for --set device=NAME"},
    [FLAG_RESUME] = {"--resume", "[PATH]",
                     "resume from PATH, a checkpoint or a run, which needs no\n"
                     "--config; or from the run's latest complete checkpoint"},
    [FLAG_RANKS] = {"--ranks", "N",
                    "train with N processes on this machine, through mpirun;\n"
                    "dry run: an estimate of such a run, of any size"},
    [FLAG_LOG_RANKS] = {"--log-ranks", NULL,
                        "several ranks: what each says, in files beside the run"},
    [FLAG_DRY_RUN] = {"--dry-run", NULL, "print the plan and the memory it needs; train nothing"},
    [FLAG_SAMPLE] = {"--sample", "PROMPT", "print text that continues PROMPT; repeatable"},
    [FLAG_EVAL] = {"--eval", NULL, "print loss, perplexity and bits per byte of a text"},
    [FLAG_EXPORT] = {"--export", "DIR", "write a model for Hugging Face tools, see --dtype"},
    [FLAG_AUDIT] = {"--audit", NULL, "how 16-bit arithmetic affects a run, by operation"},
    [FLAG_PROFILE] = {"--profile", NULL, "where the time of a step of --config goes"},
    [FLAG_FROM] = {"--from", "DIR",
                   "the model of these: a checkpoint, a run (its newest\n"
                   "checkpoint), or a folder of Hugging Face"},
    [FLAG_TOKENS] = {"--tokens", "N", "sample: how many tokens to add"},
    [FLAG_TEMPERATURE] = {"--temperature", "X", "sample: 0 takes the likeliest token each time"},
    [FLAG_TOP_K] = {"--top-k", "N", "sample: draw among the N likeliest; 0 for all"},
    [FLAG_TOP_P] = {"--top-p", "X", "sample: draw among the likeliest of probability X"},
    [FLAG_SEED] = {"--seed", "N", "sample: another seed, another text"},
    [FLAG_DATA] = {"--data", "GLOB",
                   "eval: the token shards, or tales; default the data.val\n"
                   "of the run"},
    [FLAG_PRECISION] = {"--precision", "LIST", "eval, audit: for instance fp32,bf16"},
    [FLAG_DTYPE] = {"--dtype", "NAME", "export: fp32, the default, fp16 or bf16"},
    [FLAG_SHARD_SIZE] = {"--shard-size", "GB",
                         "export: larger models in files of so much; default 5"},
    [FLAG_REPETITIONS] = {"--repetitions", "N", "audit: micro-batches to look at; profile: steps"},
    [FLAG_OUT] = {"--out", "DIR", "audit, profile: write the figures there too"},
    [FLAG_SIZES] = {"--sizes", NULL, "dry run: also for models from 124M to 70B"},
    [FLAG_MEMORY] = {"--memory", "GIB", "dry run: what fits in so much; default what is free"},
    [FLAG_LINK] = {"--link", "GB/S",
                   "dry run: speed of the link to the host each way, for what\n"
                   "offload.optimizer costs; default 25"},
    [FLAG_LINK_GBS] = {"--link-gbs", "GB/S",
                       "dry run with --ranks: what each rank can send a second to\n"
                       "the next; default 50, a network card of 400 Gb/s"},
    [FLAG_TFLOPS] = {"--tflops", "X",
                     "dry run with --ranks: 1e12 operations a second of each\n"
                     "rank, as reached; default 400, in fp32 40 (an H100)"},
    [FLAG_FIT] = {"--fit", "[GIB]",
                  "dry run: only the cheapest options with which it fits in\n"
                  "GIB, or in what is free; status 1 if none help"},
    [FLAG_PRINT_SCHEMA] = {"--print-schema", NULL, "print the JSON Schema of config files"},
    [FLAG_PRINT_REFERENCE] = {"--print-reference", NULL, "print the config keys as Markdown"},
    [FLAG_HELP] = {"--help", NULL, "this text"},
    [FLAG_VERSION] = {"--version", NULL, "print the version"},
};

static int read_count(int64_t *out, const char *flag, const char *text, struct error *error) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < 0 || value > INT32_MAX)
        return fail(error, "%s: \"%s\" is not a whole number from 0 to %d", flag, text, INT32_MAX);
    *out = value;
    return 0;
}

static int read_number(double *out, double maximum, const char *flag, const char *text,
                       struct error *error) {
    char *end;
    double value = strtod(text, &end);
    bool valid = end != text && !*end && isfinite(value) && value >= 0 && value <= maximum;
    if (!valid && maximum == 1)
        return fail(error, "%s: \"%s\" is not a number from 0 to 1", flag, text);
    if (!valid) return fail(error, "%s: \"%s\" is not a number from 0 up", flag, text);
    *out = value;
    return 0;
}

/* One of the precisions before `end`. */
static int read_precision(enum config_precision *out, enum config_precision end, const char *flag,
                          const char *text, size_t length, struct error *error) {
    for (*out = 0; *out < end; (*out)++) {
        const char *name = config_precision_name(*out);
        if (strlen(name) == length && strncmp(name, text, length) == 0) return 0;
    }
    return fail(error, "%s: \"%.*s\" is not one of fp32, fp16, bf16%s", flag, (int)length, text,
                end > CONFIG_PRECISION_FP8 ? ", fp8" : "");
}

static int read_precisions(struct command_line *line, const char *text, struct error *error) {
    const int most = sizeof line->precisions / sizeof *line->precisions;
    for (line->precision_count = 0;; text++) {
        size_t length = strcspn(text, ",");
        if (line->precision_count == most)
            return fail(error, "--precision: at most %d, each once", most);
        enum config_precision *next = &line->precisions[line->precision_count++];
        if (read_precision(next, CONFIG_PRECISION_AUTO, "--precision", text, length, error))
            return -1;
        text += length;
        if (!*text) return 0;
    }
}

/* Of the flags that say what to do there can be one. */
static int choose(struct command_line *line, enum command command, const char *name,
                  struct error *error) {
    if (line->command != COMMAND_TRAIN && line->command != command)
        return fail(error,
                    "%s: --dry-run, --sample, --eval, --export, --audit and --profile exclude "
                    "each other",
                    name);
    line->command = command;
    return 0;
}

static int set_device(struct command_line *line, const char *value, struct error *error) {
    static char *const overrides[] = {"device=auto", "device=cpu", "device=cuda"};
    for (int i = 0; i < 3; i++)
        if (strcmp(overrides[i] + strlen("device="), value) == 0) {
            arrput(line->overrides, overrides[i]);
            return 0;
        }
    const char *hint = strcmp(value, "gpu") == 0 ? ". Did you mean cuda?" : "";
    return fail(error, "--device: \"%s\" is not one of auto, cpu, cuda%s", value, hint);
}

static int read_shard_size(struct command_line *line, const char *name, const char *text,
                           struct error *error) {
    const struct config_option *allowed =
        &config_options[config_option_index("checkpoint.shard_gb", strlen("checkpoint.shard_gb"))];
    if (read_number(&line->shard_gb, INFINITY, name, text, error)) return -1;
    if (line->shard_gb >= allowed->minimum && line->shard_gb <= allowed->maximum) return 0;
    return fail(error, "%s: \"%s\" is not a number from %g to %g", name, text, allowed->minimum,
                allowed->maximum);
}

static int take(struct command_line *line, enum flag flag, char *value, struct error *error) {
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
    case FLAG_RANKS: return read_count(&line->ranks, name, value, error);
    case FLAG_LOG_RANKS: line->log_ranks = true; return 0;
    case FLAG_SAMPLE:
        arrput(line->prompts, value);
        return choose(line, COMMAND_SAMPLE, name, error);
    case FLAG_AUDIT: return choose(line, COMMAND_AUDIT, name, error);
    case FLAG_PROFILE: return choose(line, COMMAND_PROFILE, name, error);
    case FLAG_REPETITIONS: return read_count(&line->repetitions, name, value, error);
    case FLAG_OUT: line->out = value; return 0;
    case FLAG_SIZES: line->sizes = true; return 0;
    case FLAG_FIT:
        line->fit = true;
        return value ? read_number(&line->fit_gib, INFINITY, name, value, error) : 0;
    case FLAG_LINK: return read_number(&line->link, 1e6, name, value, error);
    case FLAG_LINK_GBS: return read_number(&line->link_gbs, 1e6, name, value, error);
    case FLAG_TFLOPS: return read_number(&line->tflops, 1e6, name, value, error);
    case FLAG_MEMORY: return read_number(&line->memory_gib, INFINITY, name, value, error);
    case FLAG_EVAL: return choose(line, COMMAND_EVAL, name, error);
    case FLAG_EXPORT: line->export_to = value; return choose(line, COMMAND_EXPORT, name, error);
    case FLAG_DATA: line->data = value; return 0;
    case FLAG_PRECISION: return read_precisions(line, value, error);
    case FLAG_DTYPE:
        return read_precision(&line->export_dtype, CONFIG_PRECISION_FP8, name, value, strlen(value),
                              error);
    case FLAG_SHARD_SIZE: return read_shard_size(line, name, value, error);
    case FLAG_FROM: line->from = value; return 0;
    case FLAG_TOKENS: return read_count(&line->tokens, name, value, error);
    case FLAG_TOP_K: return read_count(&line->top_k, name, value, error);
    case FLAG_SEED: return read_count(&line->seed, name, value, error);
    case FLAG_TEMPERATURE: return read_number(&line->temperature, INFINITY, name, value, error);
    case FLAG_TOP_P: return read_number(&line->top_p, 1, name, value, error);
    case FLAG_DRY_RUN: return choose(line, COMMAND_DRY_RUN, name, error);
    case FLAG_PRINT_SCHEMA: line->command = COMMAND_PRINT_SCHEMA; return 0;
    case FLAG_PRINT_REFERENCE: line->command = COMMAND_PRINT_REFERENCE; return 0;
    case FLAG_HELP: line->command = COMMAND_HELP; return 0;
    case FLAG_VERSION: line->command = COMMAND_VERSION; return 0;
    case FLAGS: break;
    }
    return 0;
}

/* Of several ranks, in training and on paper. */
static int check_ranks(const struct command_line *line, struct error *error) {
    if (line->ranks && line->command != COMMAND_TRAIN && line->command != COMMAND_DRY_RUN)
        return fail(error, "--ranks goes with training and --dry-run");
    if (line->log_ranks && line->command != COMMAND_TRAIN)
        return fail(error, "--log-ranks goes with training");
    if (line->ranks > RANKS_MAX) return fail(error, "--ranks: at most %d", RANKS_MAX);
    if (line->ranks == 1 && line->command == COMMAND_DRY_RUN)
        return fail(error, "--ranks: at least 2; leave it out for one");
    bool estimates = line->ranks && line->command == COMMAND_DRY_RUN;
    if ((line->link_gbs >= 0 || line->tflops >= 0) && !estimates)
        return fail(error, "--link-gbs and --tflops go with --dry-run --ranks N");
    if (line->link_gbs == 0) return fail(error, "--link-gbs: more than 0");
    if (line->tflops == 0) return fail(error, "--tflops: more than 0");
    if (line->ranks && line->fit)
        return fail(error, "--fit is about one process: leave out --ranks");
    return 0;
}

static int check_flags_of(const struct command_line *line, struct error *error) {
    bool samples = line->tokens >= 0 || line->top_k >= 0 || line->top_p >= 0 || line->seed >= 0 ||
                   line->temperature >= 0;
    if (samples && line->command != COMMAND_SAMPLE)
        return fail(error, "--tokens, --temperature, --top-k, --top-p and --seed go with --sample");
    bool audits = line->command == COMMAND_AUDIT;
    if (line->data && line->command != COMMAND_EVAL)
        return fail(error, "--data goes with --eval; others take --set data.train=GLOB");
    if (line->precision_count && !audits && line->command != COMMAND_EVAL)
        return fail(error, "--precision goes with --eval and --audit; others take --set "
                           "precision=NAME");
    if ((line->out || line->repetitions >= 0) && !audits && line->command != COMMAND_PROFILE)
        return fail(error, "--out and --repetitions go with --audit and --profile");
    if (line->repetitions == 0) return fail(error, "--repetitions: at least 1");
    if ((line->sizes || line->memory_gib >= 0 || line->fit || line->link >= 0) &&
        line->command != COMMAND_DRY_RUN)
        return fail(error, "--sizes, --memory, --fit and --link go with --dry-run");
    if (line->link == 0) return fail(error, "--link: more than 0");
    if (line->memory_gib >= 0 && line->fit)
        return fail(error, "--memory asks for all tables, --fit for the answer alone: give one, "
                           "with the GIB");
    if ((line->export_dtype != CONFIG_PRECISION_AUTO || line->shard_gb > 0) &&
        line->command != COMMAND_EXPORT)
        return fail(error, "--dtype and --shard-size go with --export");
    return 0;
}

static int check(const struct command_line *line, struct error *error) {
    static const char *const names[] = {
        [COMMAND_SAMPLE] = "--sample", [COMMAND_EVAL] = "--eval", [COMMAND_EXPORT] = "--export"};
    bool audits = line->command == COMMAND_AUDIT;
    bool trains = line->command == COMMAND_TRAIN || line->command == COMMAND_DRY_RUN ||
                  line->command == COMMAND_PROFILE;
    if (check_flags_of(line, error) || check_ranks(line, error)) return -1;
    if (trains && line->from)
        return fail(error, "--from goes with --sample, --eval, --export and --audit; a training "
                           "run takes\n--resume, or --set model.init_from=DIR");
    if (audits && line->resume)
        return fail(error, "--audit: give the checkpoint to look at with --from, not --resume");
    if (line->command == COMMAND_PROFILE && line->resume)
        return fail(error, "--profile begins from initial weights; drop --resume");
    if ((trains || audits) && !line->config && !line->resume_path)
        return fail(error, "nothing to do: give --config FILE, for example\n"
                           "  ./train --config bf16.json\nor see ./train --help");
    if (trains || audits || line->command >= COMMAND_HELP) return 0;
    const char *name = names[line->command];
    if (!line->from)
        return fail(error, "%s needs --from DIR, a run such as runs/NAME or a checkpoint", name);
    if (line->config || line->resume)
        return fail(error, "%s takes its config from the model; drop %s", name,
                    line->config ? "--config" : "--resume");
    if (line->command == COMMAND_EXPORT && arrlen(line->overrides) > 0)
        return fail(error, "--export takes no --set and no --device: it changes the dtype alone");
    return 0;
}

int command_line_parse(struct command_line *line, int argc, char **argv, struct error *error) {
    *line = (struct command_line){.program = argv[0],
                                  .temperature = -1,
                                  .top_k = -1,
                                  .top_p = -1,
                                  .tokens = -1,
                                  .seed = -1,
                                  .repetitions = -1,
                                  .memory_gib = -1,
                                  .fit_gib = -1,
                                  .link = -1,
                                  .link_gbs = -1,
                                  .tflops = -1,
                                  .export_dtype = CONFIG_PRECISION_AUTO};
    for (int i = 1; i < argc; i++) {
        char *value;
        int flag = flags_read(flags, FLAGS, argc, argv, &i, &value, error);
        if (flag == FLAG_WRONG) return -1;
        if (flag == FLAG_UNKNOWN)
            return fail(error, "unknown argument \"%s\"; ./train --help lists them", argv[i]);
        if (take(line, (enum flag)flag, value, error)) return -1;
        if (line->command == COMMAND_HELP || line->command == COMMAND_VERSION) return 0;
    }
    return check(line, error);
}

void command_line_free(struct command_line *line) {
    arrfree(line->overrides);
    arrfree(line->prompts);
}

void command_line_help(FILE *out) {
    fprintf(out,
            "mantissa %s: trains GPTs in fp32, fp16, bf16 or fp8.\n\n"
            "  ./train --config bf16.json                  train\n"
            "  ./train --config bf16.json --resume         continue after an interruption\n"
            "  ./train --config bf16.json --ranks 4        train in four processes\n"
            "  ./train --sample \"Once\" --from runs/bf16    text from a trained model\n"
            "  ./train --eval --data 'x_val_*.bin' --from runs/bf16\n"
            "  ./train --export DIR --dtype bf16 --from runs/bf16\n"
            "  ./train --audit --config fp16.json --from runs/fp16\n\n",
            MANTISSA_VERSION);
    flags_print(out, flags, FLAGS, 23);
    fprintf(out,
            "\nExit status: 0 done, 1 failed, 2 wrong usage or config, 130 and 143 stopped by\n"
            "SIGINT and SIGTERM (training saves a checkpoint first).\n\n"
            "Environment: MANTISSA_CPU=v3, for instance, has a CPU's operations take no more\n"
            "than that level of instructions; --version lists them.\n\nKeys of a config file:\n\n");
    config_print_help(out);
}
