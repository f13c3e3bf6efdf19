#include "model/cli/command_line.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/teacher_logits.h"
#include "data/util/nearest.h"
#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/program_names.h"
#include "data/util/table.h"
#include "kernels/ranks.h"
#include "model/config/config_keys.h"
#include "model/config/config_nearest.h"
#include "model/config/config_print.h"
#include "model/io/export.h"

enum {
    TRAIN = 1 << COMMAND_TRAIN,
    DRY_RUN = 1 << COMMAND_DRY_RUN,
    SAMPLE = 1 << COMMAND_SAMPLE,
    CHAT = 1 << COMMAND_CHAT,
    EVAL = 1 << COMMAND_EVAL,
    CHOICES = 1 << COMMAND_CHOICES,
    AGREEMENT = 1 << COMMAND_AGREEMENT,
    LOGITS = 1 << COMMAND_LOGITS,
    EXPORT = 1 << COMMAND_EXPORT,
    AUDIT = 1 << COMMAND_AUDIT,
    PROFILE = 1 << COMMAND_PROFILE,
    BY_CONFIG = TRAIN | DRY_RUN | AUDIT | PROFILE,
    TEXT_COMMANDS = SAMPLE | CHAT,
    OF_MODEL = TEXT_COMMANDS | EVAL | CHOICES | AGREEMENT | LOGITS,
    ALL = BY_CONFIG | OF_MODEL
};

enum { HELP_COLUMN = 23 };

struct command_flag {
    struct flag_row row;
    unsigned commands;    /* bit mask of the commands that accept the flag */
    enum command command; /* the command that the flag selects; COMMAND_TRAIN: none */
    int (*read)(struct command_line *line, const struct command_flag *flag, char *value,
                struct error *error); /* stores the value; NULL: there is none */
    const char *key;                  /* config key that read_key sets, as --set does */
    size_t offset;                    /* field of struct command_line that `read` sets; 0: none */
    size_t given;                     /* bool of struct command_line that the flag sets; 0: none */
    double minimum, maximum;          /* range of a count or number */
    const char *hint;                 /* end of the error message for other commands, or NULL */
};

static int read_text(struct command_line *line, const struct command_flag *flag, char *value,
                     struct error *error) {
    bool optional = flag->row.value[0] == '[';
    if (optional && value && !value[0]) return fail(error, "%s: the path is empty", flag->row.name);
    memcpy((char *)line + flag->offset, &value, sizeof value);
    return 0;
}

static int read_list(struct command_line *line, const struct command_flag *flag, char *value,
                     struct error *error) {
    char ***list = (void *)((char *)line + flag->offset);
    (void)error;
    arrput(*list, value);
    return 0;
}

static int read_stop(struct command_line *line, const struct command_flag *flag, char *value,
                     struct error *error) {
    if (!value[0]) return fail(error, "%s: the text is empty", flag->row.name);
    return read_list(line, flag, value, error);
}

static int read_count(struct command_line *line, const struct command_flag *flag, char *text,
                      struct error *error) {
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno || end == text || *end || (double)value < flag->minimum ||
        (double)value > flag->maximum)
        return fail(error, "%s: \"%s\" is not a whole number from %.0f to %.0f", flag->row.name,
                    text, flag->minimum, flag->maximum);
    memcpy((char *)line + flag->offset, &value, sizeof value);
    return 0;
}

static int read_number(struct command_line *line, const struct command_flag *flag, char *text,
                       struct error *error) {
    char *end, to[32] = "up";
    if (!text) return 0;
    double value = strtod(text, &end);
    if (isfinite(flag->maximum)) snprintf(to, sizeof to, "to %g", flag->maximum);
    if (end == text || *end || !(isfinite(value) && value >= flag->minimum) ||
        value > flag->maximum)
        return fail(error, "%s: \"%s\" is not a number from %g %s", flag->row.name, text,
                    flag->minimum, to);
    memcpy((char *)line + flag->offset, &value, sizeof value);
    return 0;
}

static const char *precision_name(int precision) {
    return config_precision_name((enum config_precision)precision);
}

static const char *type_name(int type) {
    return gguf_types[type].name;
}

/* Returns which of `count` names text[0..length) is; fails with the list of them. */
static int find_name(const char *(*name_of)(int), int count, const char *flag, const char *text,
                     size_t length, struct error *error) {
    char names[200] = "";
    for (int i = 0, used = 0; i < count; i++) {
        const char *name = name_of(i);
        if (strlen(name) == length && strncmp(name, text, length) == 0) return i;
        used += snprintf(names + used, sizeof names - (size_t)used, "%s%s", i ? ", " : "", name);
    }
    return fail(error, "%s: \"%.*s\" is not one of %s", flag, (int)length, text, names);
}

static int read_precisions(struct command_line *line, const struct command_flag *flag, char *text,
                           struct error *error) {
    for (line->precision_count = 0;; text++) {
        size_t length = strcspn(text, ",");
        int next =
            find_name(precision_name, CONFIG_PRECISION_AUTO, flag->row.name, text, length, error);
        if (next < 0) return -1;
        for (int i = 0; i < line->precision_count; i++)
            if (line->precisions[i] == (enum config_precision)next)
                return fail(error, "%s: %s is given twice", flag->row.name, precision_name(next));
        line->precisions[line->precision_count++] = (enum config_precision)next;
        text += length;
        if (!*text) return 0;
    }
}

static int read_dtype(struct command_line *line, const struct command_flag *flag, char *text,
                      struct error *error) {
    int found =
        find_name(precision_name, CONFIG_PRECISION_FP8, flag->row.name, text, strlen(text), error);
    line->export_dtype = (enum config_precision)found;
    return found < 0 ? -1 : 0;
}

static int read_type(struct command_line *line, const struct command_flag *flag, char *text,
                     struct error *error) {
    int found = find_name(type_name, GGUF_TYPE_COUNT, flag->row.name, text, strlen(text), error);
    line->gguf_type = (enum gguf_type)found;
    return found < 0 ? -1 : 0;
}

static int add_override(struct command_line *line, char *text, struct error *error) {
    if (!text) return fail_memory(error, "a flag");
    arrput(line->overrides, text);
    return 0;
}

static int read_override(struct command_line *line, const struct command_flag *flag, char *value,
                         struct error *error) {
    (void)flag;
    return add_override(line, strdup(value), error);
}

static int read_key(struct command_line *line, const struct command_flag *flag, char *value,
                    struct error *error) {
    char *text;
    if (flag->offset) memcpy((char *)line + flag->offset, &value, sizeof value);
    if (asprintf(&text, "%s %s=%s", flag->row.name, flag->key, value) < 0) text = NULL;
    return add_override(line, text, error);
}

static int read_topic(struct command_line *line, const struct command_flag *flag, char *name,
                      struct error *error);

#define FLAG(commands_, name_, value_, help_, ...) \
    { .row = {name_, value_, help_}, .commands = (commands_), __VA_ARGS__ }
#define SELECTS(command_)   .command = COMMAND_##command_
#define HINT(hint_)         .hint = hint_
#define SWITCH(field_)      .given = offsetof(struct command_line, field_)
#define INTO(read_, field_) .read = read_, .offset = offsetof(struct command_line, field_)
#define KEY(key_)           .read = read_key, .key = (key_)
#define TEXT(field_)        INTO(read_text, field_)
#define LIST(field_)        INTO(read_list, field_)
#define COUNT(field_, minimum_, maximum_) \
    INTO(read_count, field_), .minimum = (minimum_), .maximum = (maximum_)
#define NUMBER(field_, minimum_, maximum_) \
    INTO(read_number, field_), .minimum = (minimum_), .maximum = (maximum_)

static const struct command_flag flags[] = {
    FLAG(BY_CONFIG, "--config", "FILE", "config of the run, or the name of one in configs/",
         HINT("; others take the model's own"), TEXT(config)),
    FLAG(ALL, "--set", "KEY=VALUE", "override one key of the config; repeatable",
         HINT("; --export\ntakes --base DIR, for adapters whose model has moved"),
         .read = read_override),
    FLAG(ALL, "--device", "NAME", "auto, cpu or cuda; short for --set device=NAME", KEY("device")),
    FLAG(TRAIN | DRY_RUN, "--resume", "[PATH]",
         "resume from PATH, a checkpoint or a run, which needs no\n"
         "--config; or from the run's latest complete checkpoint",
         HINT("; others take --from DIR"), SWITCH(resume), TEXT(resume_path)),
    FLAG(TRAIN, "--ranks", "N", "train in N processes on this machine, through mpirun",
         COUNT(ranks, 1, RANKS_MAX)),
    FLAG(TRAIN, "--log-ranks", NULL, "write each rank's output to files beside the run",
         SWITCH(log_ranks)),
    FLAG(OF_MODEL | EXPORT | AUDIT, "--from", "DIR",
         "the model: a checkpoint, a run (the newest of its\n"
         "checkpoints; with checkpoint.keep_best the best one),\n"
         "or a folder of Hugging Face",
         HINT("; training takes\n--resume, or --set model.init_from=DIR"), TEXT(from)),
    FLAG(ALL | EXPORT, "--base", "DIR",
         "the model of adapters, if it has moved; short for\n"
         "--set model.init_from=DIR",
         KEY("model.init_from"), .offset = offsetof(struct command_line, base)),
    FLAG(OF_MODEL | EXPORT | AUDIT, "--best", NULL,
         "of a run, the checkpoint of the lowest validation loss", SWITCH(best)),
    FLAG(OF_MODEL | EXPORT | AUDIT, "--newest", NULL, "of a run, the newest checkpoint",
         SWITCH(newest)),
    FLAG(TEXT_COMMANDS | AGREEMENT, "--tokens", "N", "number of tokens to add",
         KEY("sample.tokens")),
    FLAG(TEXT_COMMANDS, "--temperature", "X", "randomness; 0 takes the likeliest token each time",
         KEY("sample.temperature")),
    FLAG(TEXT_COMMANDS, "--top-k", "N", "draw among the N likeliest tokens; 0 for all",
         KEY("sample.top_k")),
    FLAG(TEXT_COMMANDS, "--top-p", "X", "draw among the likeliest tokens of probability X",
         KEY("sample.top_p")),
    FLAG(TEXT_COMMANDS, "--min-p", "X",
         "draw among tokens with X times the likeliest one's\n"
         "probability or more",
         KEY("sample.min_p")),
    FLAG(TEXT_COMMANDS, "--repetition-penalty", "X",
         "makes tokens less likely that the text has, above 1", KEY("sample.repetition_penalty")),
    FLAG(TEXT_COMMANDS, "--stop", "TEXT", "end a text before TEXT; repeatable", .read = read_stop,
         .offset = offsetof(struct command_line, stops)),
    FLAG(TEXT_COMMANDS | AGREEMENT, "--seed", "N", "another seed gives another text", KEY("seed")),
    FLAG(SAMPLE | AGREEMENT, "--samples", "N", "texts generated together, for each prompt",
         COUNT(samples, 1, 4096)),
    FLAG(SAMPLE, "--json", NULL, "print each text as a line of JSON", SWITCH(json)),
    FLAG(CHAT, "--system", "TEXT", "system message of the conversation", TEXT(system)),
    FLAG(EVAL | LOGITS, "--data", "GLOB",
         "token shards, or tales; default the data.val of the run,\n"
         "for --logits its data.train",
         HINT("; others take --set data.train=GLOB"), KEY("data.val")),
    FLAG(EVAL | CHOICES | AGREEMENT | AUDIT, "--precision", "LIST",
         "precisions to compare, such as fp32,bf16", HINT("; others take --set precision=NAME"),
         .read = read_precisions),
    FLAG(LOGITS, "--top", "N", "number of logits to keep for each token; default 64",
         COUNT(top, 1, DISTILLATION_TOP_MAX)),
    FLAG(EXPORT, "--dtype", "NAME", "fp32, the default, fp16 or bf16", .read = read_dtype),
    FLAG(EXPORT, "--type", "NAME", "for .gguf: f32, the default, f16, bf16, q8_0 or q4_0",
         .read = read_type),
    FLAG(EXPORT, "--merge", NULL, "adapters: write the model with them in its weights",
         SWITCH(merge)),
    FLAG(EXPORT, "--shard-size", "GB", "most GB in one file of a folder; default 5",
         NUMBER(shard_gb, 1e-6, 1e6)),
    FLAG(AUDIT | PROFILE, "--repetitions", "N", "micro-batches to audit, or steps to profile",
         COUNT(repetitions, 1, INT32_MAX)),
    FLAG(CHOICES | AGREEMENT | AUDIT | PROFILE, "--out", "DIR", "write the figures there too",
         TEXT(out)),
    FLAG(DRY_RUN, "--sizes", NULL, "also plan models from 124M to 70B", SWITCH(sizes)),
    FLAG(DRY_RUN, "--memory", "GIB", "plan for GIB of memory; default what is free",
         NUMBER(memory_gib, 1e-6, INFINITY)),
    FLAG(DRY_RUN, "--fit", "[GIB]",
         "print only the cheapest options with which it fits in\n"
         "GIB, or in what is free; status 1 if none help",
         SWITCH(fit), NUMBER(fit_gib, 1e-6, INFINITY)),
    FLAG(DRY_RUN, "--link", "GB/S",
         "speed of the link to the host each way, for the cost of\n"
         "offloading; default 25",
         NUMBER(link, 1e-6, 1e6)),
    FLAG(0, "--dry-run", NULL, "print the plan and the memory it needs; train nothing",
         SELECTS(DRY_RUN)),
    FLAG(0, "--sample", "PROMPT",
         "print text that continues PROMPT, or standard input\n"
         "if that is -; repeatable",
         SELECTS(SAMPLE), LIST(prompts)),
    FLAG(0, "--chat", NULL, "answer lines of input in a chat template", SELECTS(CHAT)),
    FLAG(0, "--eval", NULL, "print loss, perplexity and bits per byte of a text", SELECTS(EVAL)),
    FLAG(0, "--choices", "FILE",
         "answer multiple-choice questions: rows of JSON Lines,\n"
         "or tales, the built-in ones",
         SELECTS(CHOICES), TEXT(questions)),
    FLAG(0, "--agreement", NULL, "compare the sampler's probabilities with the trainer's",
         SELECTS(AGREEMENT)),
    FLAG(0, "--logits", "DIR",
         "write the largest logits of a teacher for each token of a\n"
         "text, which distill.logits trains a student on",
         SELECTS(LOGITS), TEXT(logits)),
    FLAG(0, "--export", "DIR",
         "write a model for Hugging Face tools; or, to FILE.gguf,\n"
         "for llama.cpp",
         SELECTS(EXPORT), TEXT(export_to)),
    FLAG(0, "--audit", NULL, "show how fewer bits affect a run, by operation", SELECTS(AUDIT)),
    FLAG(0, "--profile", NULL, "show where the time of a training step goes", SELECTS(PROFILE)),
    FLAG(0, "--help", "[WORD]",
         "this text; or the flags of a command, such as sample, or\n"
         "a config key, also by the name it has in other trainers",
         SELECTS(HELP), .read = read_topic),
    FLAG(0, "--help-config", NULL, "all keys of a config file", SELECTS(HELP_CONFIG)),
    FLAG(0, "--version", NULL, "print the version", SELECTS(VERSION)),
    FLAG(0, "--print-schema", NULL, "print the JSON Schema of config files", SELECTS(PRINT_SCHEMA)),
    FLAG(0, "--print-reference", NULL, "print the config keys as Markdown",
         SELECTS(PRINT_REFERENCE)),
};

enum { FLAGS = sizeof flags / sizeof *flags };

/* Returns the flag that selects a command other than training. */
static const struct command_flag *flag_of(enum command command) {
    int i = 0;
    while (flags[i].command != command) i++;
    return &flags[i];
}

static const char *command_name(enum command command) {
    return command == COMMAND_TRAIN ? "training" : flag_of(command)->row.name;
}

/* Returns the flag of a name without dashes, or NULL. */
static const struct command_flag *flag_named(const char *name) {
    for (int i = 0; i < FLAGS; i++)
        if (strcmp(flags[i].row.name + strlen("--"), name) == 0) return &flags[i];
    return NULL;
}

/* Sets line->topic or line->topic_word from the value of --help; NULL keeps the overview. */
static int read_topic(struct command_line *line, const struct command_flag *flag, char *name,
                      struct error *error) {
    (void)flag;
    if (!name) return 0;
    size_t length = strlen(name);
    bool exact;
    for (line->topic = COMMAND_DRY_RUN; line->topic < COMMAND_HELP; line->topic++)
        if (strcmp(command_name(line->topic) + 2, name) == 0) return 0;
    line->topic_word = name;
    if (config_option_index(name, length) >= 0 || config_block_index(name, length) >= 0 ||
        flag_named(name))
        return 0;
    line->topic_word = config_suggest(name, length, -1, &exact);
    line->topic_given = exact ? NULL : name;
    if (line->topic_word) return 0;
    return fail(error,
                "--help: there is no command, key or flag \"%s\"; see ./train --help and "
                "./train --help-config",
                name);
}

/* Returns the answer to an unknown argument without its dashes: a key, a flag or a sentence. */
static const char *answer_for(const char *name, size_t length) {
    const char *names[FLAGS];
    bool exact;
    if (config_option_index(name, length) >= 0) return name;
    const char *answer = config_suggest(name, length, -1, &exact);
    for (int i = 0; i < FLAGS; i++) names[i] = flags[i].row.name + strlen("--");
    int nearest = nearest_text(names, FLAGS, name, length);
    if (nearest < 0 || exact) return answer;
    const char *dot = answer ? strrchr(answer, '.') : NULL;
    const char *both[] = {names[nearest], dot ? dot + 1 : ""};
    return nearest_text(both, 2, name, length) == 1 ? answer : flags[nearest].row.name;
}

#define LISTS "./train --help lists all"

/* Fails with the flag or key that an unknown argument may stand for. */
static int refuse_argument(const char *argument, struct error *error) {
    const char *name = argument + strspn(argument, "-"), *dot = strrchr(argument, '.');
    size_t length = strcspn(name, "=");
    char allowed[320], named[PROGRAM_TEXT_MAX];
    if (name == argument)
        return fail(error, "unknown argument \"%s\";%s " LISTS, argument,
                    dot && strcmp(dot, ".json") == 0 ? " a config is given with --config;" : "");
    const char *answer = answer_for(name, length);
    int row = answer ? config_option_index(answer, strcspn(answer, "=")) : -1;
    if (!answer) return fail(error, "unknown argument \"%s\"; " LISTS, argument);
    if (row < 0 && answer[0] == '-')
        return fail(error, "unknown argument \"%s\"; did you mean %s?", argument, answer);
    if (row < 0)
        return fail(error, "unknown argument \"%s\". %s", argument, program_text(named, answer));
    config_describe_allowed(&config_options[row], allowed, sizeof allowed);
    return fail(error, "unknown argument \"%s\"; did you mean --set %s=VALUE?\nVALUE is %s",
                argument, config_options[row].key, allowed);
}

static int apply_flag(struct command_line *line, const struct command_flag *flag, char *value,
                      struct error *error) {
    if (flag->command) {
        if (line->command && line->command != flag->command && flag->command < COMMAND_HELP)
            return fail(error, "%s and %s exclude each other", command_name(line->command),
                        flag->row.name);
        line->command = flag->command;
    }
    if (flag->given) *((bool *)((char *)line + flag->given)) = true;
    return flag->read ? flag->read(line, flag, value, error) : 0;
}

/* Fails with a message that lists the commands which accept the flag. */
static int refuse_flag(const struct command_flag *flag, struct error *error) {
    char names[200] = "";
    size_t used = 0;
    for (enum command command = COMMAND_TRAIN; command < COMMAND_HELP; command++) {
        if (!(flag->commands >> command & 1)) continue;
        bool last = flag->commands >> command == 1;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s",
                                 used == 0 ? ""
                                 : last    ? " and "
                                           : ", ",
                                 command_name(command));
    }
    return fail(error, "%s goes with %s%s", flag->row.name, names, flag->hint ? flag->hint : "");
}

/* Fails if a flag of --export does not go with the kind of its target. */
static int check_export(const struct command_line *line, const bool given[FLAGS],
                        struct error *error) {
    static const struct {
        const char *name; /* without dashes */
        bool gguf;
    } kinds[] = {{"dtype", false}, {"shard-size", false}, {"type", true}};
    bool gguf = export_is_gguf(line->export_to);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (given[flag_named(kinds[i].name) - flags] && kinds[i].gguf != gguf)
            return fail(error,
                        gguf ? "--%s is for a folder; a .gguf file takes --type NAME"
                             : "--%s is for a file with a name that ends in .gguf; a folder takes "
                               "--dtype NAME",
                        kinds[i].name);
    return 0;
}

static int check(const struct command_line *line, const bool given[FLAGS], struct error *error) {
    unsigned command = 1u << line->command;
    for (int i = 0; i < FLAGS; i++)
        if (given[i] && !flags[i].command && !(flags[i].commands & command))
            return refuse_flag(&flags[i], error);
    if (line->memory_gib > 0 && line->fit)
        return fail(error, "--memory asks for all tables, --fit for the answer alone: give one, "
                           "with the GIB");
    bool model_given = line->command == COMMAND_AUDIT && line->from;
    if (command & BY_CONFIG && !line->config && !line->resume_path && !model_given)
        return fail(error, "nothing to do: give --config FILE, for example\n"
                           "  ./train --config bf16.json\nor see ./train --help");
    if (command & (OF_MODEL | EXPORT) && !line->from)
        return fail(error, "%s needs --from DIR, a run such as runs/NAME or a checkpoint",
                    command_name(line->command));
    if ((line->best || line->newest) && (!line->from || line->best == line->newest))
        return fail(error, "--best or --newest, not both, chooses a checkpoint of a run in --from");
    return line->command == COMMAND_EXPORT ? check_export(line, given, error) : 0;
}

int command_line_parse(struct command_line *line, int argc, char **argv, struct error *error) {
    *line = (struct command_line){0};
    struct flag_row rows[FLAGS];
    bool given[FLAGS] = {false};
    for (int i = 0; i < FLAGS; i++) rows[i] = flags[i].row;
    for (int i = 1; i < argc; i++) {
        char *value;
        int flag = flags_read(rows, FLAGS, argc, argv, &i, &value, error);
        if (flag == FLAG_WRONG) return -1;
        if (flag == FLAG_UNKNOWN) return refuse_argument(argv[i], error);
        if (apply_flag(line, &flags[flag], value, error)) return -1;
        if (line->command >= COMMAND_HELP && line->command <= COMMAND_VERSION) return 0;
        given[flag] = true;
    }
    return line->command >= COMMAND_HELP ? 0 : check(line, given, error);
}

int command_line_read_prompt(struct command_line *line, struct error *error) {
    size_t capacity = 0;
    for (ptrdiff_t i = 0; i < arrlen(line->prompts); i++) {
        if (strcmp(line->prompts[i], "-") != 0) continue;
        if (line->piped) return fail(error, "--sample -: standard input is one prompt, not two");
        ssize_t size = getdelim(&line->piped, &capacity, '\0', stdin);
        if (size <= 0) return fail(error, "--sample -: standard input is empty");
        if (!line->piped[size - 1]) return fail(error, "--sample -: the text holds a NUL byte");
        line->prompts[i] = line->piped;
    }
    return 0;
}

void command_line_free(struct command_line *line) {
    free(line->piped);
    for (ptrdiff_t i = 0; i < arrlen(line->overrides); i++) free(line->overrides[i]);
    arrfree(line->overrides);
    arrfree(line->prompts);
    arrfree(line->stops);
}

/* Prints the rows of the flags that a command accepts. */
static void print_flags(FILE *out, enum command command) {
    for (int i = 0; i < FLAGS; i++)
        if (flags[i].commands >> command & 1) flags_print(out, &flags[i].row, 1, HELP_COLUMN);
}

static void print_overview(FILE *out) {
    fprintf(out, "mantissa %s: trains GPTs in 32, 16, 8 or 4 bits.\n\n", MANTISSA_VERSION);
    help_print(out,
               "  ./train --config bf16.json                  train\n"
               "  ./train --config bf16.json --resume         continue after an interruption\n"
               "  ./train --config fp16.json --ranks 4        train in four processes\n"
               "  ./train --sample \"Once\" --from runs/bf16    text from a trained model\n\n");
    print_flags(out, COMMAND_TRAIN);
    for (enum command command = COMMAND_HELP; command <= COMMAND_PRINT_REFERENCE; command++)
        flags_print(out, &flag_of(command)->row, 1, HELP_COLUMN);
    help_print(out, "\nOther commands; ./train --help sample lists the flags of --sample:\n");
    for (enum command command = COMMAND_DRY_RUN; command < COMMAND_HELP; command++)
        flags_print(out, &flag_of(command)->row, 1, HELP_COLUMN);
    fputs("\nExit status: 0 done, 1 failed, 2 wrong usage or config, 130 and 143 stopped by\n"
          "SIGINT and SIGTERM (training saves a checkpoint first).\n\n"
          "Environment: MANTISSA_CPU=v3, for instance, limits CPU operations to that\n"
          "instruction-set level; --version lists the levels. MANTISSA_NCCL_TIMEOUT is\n"
          "how long a GPU may wait for other ranks, in seconds (600).\n",
          out);
}

/* Prints the help of a key, a block or a flag, or a sentence about neither. */
static void print_word(FILE *out, const char *word) {
    char named[PROGRAM_TEXT_MAX];
    size_t length = strlen(word);
    bool key = config_option_index(word, length) >= 0 || config_block_index(word, length) >= 0;
    const struct command_flag *flag = flag_named(word + strspn(word, "-"));
    if (key) config_print_help(out, word);
    else if (flag) flags_print(out, &flag->row, 1, HELP_COLUMN);
    else text_print(out, 0, "%s", program_text(named, word));
}

void command_line_help(FILE *out, const struct command_line *line) {
    if (line->command == COMMAND_HELP_CONFIG) {
        fputs("Keys of a config file:\n\n", out);
        config_print_help(out, NULL);
    } else if (line->topic_word) {
        if (line->topic_given)
            text_print(out, 0, "There is no key or flag \"%s\"; the nearest:", line->topic_given);
        print_word(out, line->topic_word);
    } else if (line->topic == COMMAND_TRAIN) {
        print_overview(out);
    } else {
        flags_print(out, &flag_of(line->topic)->row, 1, HELP_COLUMN);
        fputc('\n', out);
        print_flags(out, line->topic);
    }
}
