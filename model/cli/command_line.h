/* Command line of ./train: the command it names and the values of its flags. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/io/gguf_types.h"

enum command {
    COMMAND_TRAIN,
    COMMAND_DRY_RUN,
    COMMAND_SAMPLE,
    COMMAND_CHAT,
    COMMAND_EVAL,
    COMMAND_CHOICES,
    COMMAND_AGREEMENT,
    COMMAND_LOGITS,
    COMMAND_EXPORT,
    COMMAND_AUDIT,
    COMMAND_PROFILE,
    COMMAND_HELP, /* this command and the ones below only print text */
    COMMAND_HELP_CONFIG,
    COMMAND_VERSION,
    COMMAND_PRINT_SCHEMA,
    COMMAND_PRINT_REFERENCE,
};

struct command_line {
    enum command command;
    enum command topic;      /* command that --help explains; COMMAND_TRAIN: overview of all */
    const char *topic_word;  /* key, block, flag or sentence that --help prints; NULL: topic */
    const char *topic_given; /* the word of --help that topic_word is a guess for; NULL: no guess */
    const char *config;      /* NULL: not given */
    char **overrides;        /* stb_ds array of texts for config_read_flag, owned */
    bool resume;             /* --resume */
    const char *resume_path; /* NULL: the newest checkpoint of the run */
    int64_t ranks;           /* number of processes to start; 0: not given */
    bool log_ranks;          /* --log-ranks */
    const char *from;        /* model of --audit, --export and the commands that only read one */
    const char *base;        /* --base, also an override; NULL: not given */
    bool best, newest;       /* of a run in --from: --best, --newest */
    char **prompts;          /* stb_ds array: one prompt per --sample */
    char *piped;             /* text of the prompt -, owned; NULL: none */
    char **stops;            /* stb_ds array: strings that end a text */
    const char *system;      /* --chat: the system message; NULL: none */
    int64_t samples;         /* texts of each prompt, or of --agreement; 0: not given */
    bool json;               /* --json */
    const char *questions;   /* --choices: a file of JSON Lines or "tales" */
    enum config_precision precisions[CONFIG_PRECISION_AUTO]; /* [precision_count] --precision */
    int precision_count;                                     /* 0: not given */
    const char *out;       /* output directory of a report; NULL: not given */
    int64_t repetitions;   /* micro-batches of --audit, steps of --profile; 0: not given */
    const char *logits;    /* folder that --logits writes */
    int64_t top;           /* --top; 0: not given */
    bool sizes;            /* --dry-run --sizes */
    double memory_gib;     /* --dry-run --memory; 0: not given */
    double link;           /* --dry-run --link, GB/s; 0: not given */
    bool fit;              /* --dry-run --fit */
    double fit_gib;        /* value of --fit; 0: not given */
    const char *export_to; /* directory, or file .gguf, that --export writes */
    enum config_precision export_dtype; /* of a directory: fp32, fp16 or bf16 */
    enum gguf_type gguf_type;           /* --type, of a file */
    bool merge;                         /* --merge of --export */
    double shard_gb;                    /* --shard-size of --export; 0: not given */
};

/* Returns -1 with a message for a usage error. Flags that set a config key become overrides, so
 * that the config checks their values. Other strings in `line` point into argv. */
int command_line_parse(struct command_line *line, int argc, char **argv, struct error *error);
/* Replaces the prompt - by what standard input holds. */
int command_line_read_prompt(struct command_line *line, struct error *error);

void command_line_free(struct command_line *line);

/* Prints the text of --help or --help-config. */
void command_line_help(FILE *out, const struct command_line *line);
