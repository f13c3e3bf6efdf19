/* The flags of ./train. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "data/util/error.h"
#include "model/config/config.h"

enum command {
    COMMAND_TRAIN,
    COMMAND_DRY_RUN,
    COMMAND_SAMPLE,
    COMMAND_EVAL,
    COMMAND_EXPORT,
    COMMAND_AUDIT,
    COMMAND_PROFILE,
    COMMAND_HELP, /* the first that only print */
    COMMAND_HELP_CONFIG,
    COMMAND_VERSION,
    COMMAND_PRINT_SCHEMA,
    COMMAND_PRINT_REFERENCE,
};

struct command_line {
    enum command command;
    enum command topic;        /* of --help; COMMAND_TRAIN: all */
    const char *program;       /* argv[0] */
    const char *config;        /* NULL: not given */
    char **overrides;          /* stb_ds array of "key.path=value" */
    bool resume;               /* --resume */
    const char *resume_path;   /* NULL: the newest of the run */
    int64_t ranks;             /* processes to start; 0: not given */
    bool log_ranks;            /* --log-ranks */
    const char *from;          /* of --sample, --eval, --export, --audit */
    char **prompts;            /* stb_ds array: one for each --sample */
    double temperature, top_p; /* < 0: not given, likewise below */
    int64_t top_k, tokens, seed;
    const char *data;                                        /* of --eval */
    enum config_precision precisions[CONFIG_PRECISION_AUTO]; /* of --eval, --audit */
    int precision_count;
    const char *out;       /* of --audit, --profile: a folder; NULL: not given */
    int64_t repetitions;   /* of --audit: micro-batches, of --profile: steps; < 0: not given */
    bool sizes;            /* --dry-run --sizes */
    double memory_gib;     /* --dry-run --memory; < 0: not given */
    double link;           /* --dry-run --link, GB/s; < 0: not given */
    double link_gbs;       /* --dry-run --link-gbs; < 0: not given */
    double tflops;         /* --dry-run --tflops; < 0: not given */
    bool fit;              /* --dry-run --fit */
    double fit_gib;        /* its value; < 0: not given */
    const char *export_to; /* of --export */
    enum config_precision export_dtype; /* CONFIG_PRECISION_AUTO: not given */
    double shard_gb;                    /* of --export; 0: not given */
};

/* Returns -1 with a message for a usage error. The strings are argv's. */
int command_line_parse(struct command_line *line, int argc, char **argv, struct error *error);
void command_line_free(struct command_line *line);

/* Prints the text that --help or --help-config ask for. */
void command_line_help(FILE *out, const struct command_line *line);
