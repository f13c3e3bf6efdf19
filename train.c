/* main() of ./train: reads the flags and the config, then runs the command. */
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/program.h"
#include "data/util/file_stream.h"
#include "data/util/files.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"
#include "kernels/backend.h"
#include "kernels/open/backend_open.h"
#include "kernels/comm/launch.h"
#include "kernels/ranks.h"
#include "model/io/checkpoint.h"
#include "model/cli/command_line.h"
#include "model/config/config.h"
#include "model/config/config_check.h"
#include "model/config/config_print.h"
#include "model/io/config_file.h"
#include "model/io/export.h"
#include "model/lab/audit/run_audit.h"
#include "model/lab/evaluation/run_agreement.h"
#include "model/lab/evaluation/run_choices.h"
#include "model/cli/rank_output.h"
#include "model/cli/run_chat.h"
#include "model/cli/run_logits.h"
#include "model/cli/run_profile.h"
#include "model/cli/run.h"
#include "model/cli/run_sample.h"

/* Fills config, and with line->from also `from` (FILE_PATH_MAX bytes), the path of its checkpoint,
 * which is verified: for an audit as a whole. Returns an exit status. */
static int load_config(struct config *config, char *from, const struct command_line *line,
                       struct error *error) {
    char path[FILE_PATH_MAX];
    int overrides = (int)arrlen(line->overrides);
    if (line->from) {
        bool whole = line->command == COMMAND_AUDIT;
        if (checkpoint_locate(from, line->from, whole ? CHECKPOINT_WHOLE : CHECKPOINT_WEIGHTS,
                              stderr, error))
            return EXIT_FAILED;
        if (checkpoint_config(config, from, error)) return EXIT_FAILED;
        return config_override(config, from, line->overrides, overrides, error) ? EXIT_USAGE
                                                                                : EXIT_DONE;
    }
    int status;
    if (!line->config)
        status = config_load_run(config, line->resume_path, line->overrides, overrides, error);
    else
        status = config_find(path, sizeof path, line->config, error) ||
                 config_load(config, path, line->overrides, overrides, error);
    return status ? EXIT_USAGE : EXIT_DONE;
}

static int print_version(struct error *error) {
    struct backend be;
    char levels[64];
    const char *level = backend_cpu_level(levels, sizeof levels, error);
    if (!level) return EXIT_USAGE;
    if (backend_open(&be, &(const struct backend_options){.device = DEVICE_CPU}, error))
        return EXIT_FAILED;
    printf("mantissa %s\n"
           "  cpu        %s (this program has %s)\n"
           "  products   %s\n",
           MANTISSA_VERSION, level, levels, be.device.library);
    backend_close(&be);
    return EXIT_DONE;
}

static int print_help(const struct command_line *line, struct error *error) {
    struct printed help;
    int status = printed_open(&help);
    if (status == 0) {
        command_line_help(help.out, line);
        status = printed_close(&help);
    }
    if (status) {
        fail(error, "no memory for a help text");
        return EXIT_FAILED;
    }
    help_print(stdout, help.text, line->program);
    free(help.text);
    return EXIT_DONE;
}

static int print(const struct command_line *line, struct error *error) {
    switch (line->command) {
    case COMMAND_HELP:
    case COMMAND_HELP_CONFIG: return print_help(line, error);
    case COMMAND_VERSION: return print_version(error);
    case COMMAND_PRINT_SCHEMA: config_print_schema(stdout); break;
    default: config_print_reference(stdout); break;
    }
    return EXIT_DONE;
}

/* Finds the folder of the adapters' model in --set, the only key that an export takes; "" without
 * it. */
static int find_base(char base[FILE_PATH_MAX], const struct command_line *line,
                     struct error *error) {
    static const char key[] = "model.init_from=";
    base[0] = '\0';
    for (ptrdiff_t i = 0; i < arrlen(line->overrides); i++) {
        const char *given = line->overrides[i];
        if (strncmp(given, key, strlen(key)) != 0) {
            fail(error,
                 "--set %.200s: --export takes --set %sDIR only, for adapters whose model "
                 "has moved",
                 given, key);
            return EXIT_USAGE;
        }
        if (checkpoint_locate(base, given + strlen(key), CHECKPOINT_WEIGHTS, stderr, error))
            return EXIT_FAILED;
    }
    return EXIT_DONE;
}

static int export(const struct command_line *line, struct error *error) {
    char from[FILE_PATH_MAX], base[FILE_PATH_MAX];
    int status = find_base(base, line, error);
    if (status) return status;
    const struct export_options options = {
        .dtype = (enum dtype)line->export_dtype,
        .gguf_type = line->gguf_type,
        .notes = stderr,
        .shard_gb = line->shard_gb,
        .merge = line->merge,
        .base = base[0] ? base : NULL,
    };
    if (checkpoint_locate(from, line->from, CHECKPOINT_WEIGHTS, stderr, error) ||
        export_model(line->export_to, from, &options, error))
        return EXIT_FAILED;
    fputs("exported ", stdout);
    utf8_print(stdout, from, strlen(from));
    fputs(" to ", stdout);
    utf8_print(stdout, line->export_to, strlen(line->export_to));
    fputc('\n', stdout);
    return EXIT_DONE;
}

/* The config, or that of --from, defines the training step; --from names the weights to audit. */
static int audit(const struct command_line *line, struct error *error) {
    struct config config;
    struct command_line of_config = *line;
    char from[FILE_PATH_MAX] = "";
    if (line->config) of_config.from = NULL;
    int status = load_config(&config, from, &of_config, error);
    if (status) return status;
    if (line->config && line->from &&
        checkpoint_locate(from, line->from, CHECKPOINT_WHOLE, stderr, error))
        return EXIT_FAILED;
    const struct audit_options options = {line->precisions, line->precision_count,
                                          line->repetitions, line->out};
    return run_audit(&config, from[0] ? from : NULL, &options, error);
}

static int choices(const struct config *config, const char *from, const struct command_line *line,
                   struct error *error) {
    const struct choices_options options = {line->questions, line->precisions,
                                            line->precision_count, line->out};
    return run_choices(config, from, &options, error);
}

static int agreement(const struct config *config, const char *from, const struct command_line *line,
                     struct error *error) {
    const struct agreement_options options = {line->precisions, line->precision_count,
                                              line->samples, line->out};
    return run_agreement(config, from, &options, error);
}

/* Trains, the only command that supports several ranks. Unless a rank rejects the config, the ranks
 * stay open, for main() to abort or close. */
static int train(const struct command_line *line, struct ranks *ranks, int *stderr_copy,
                 struct error *error) {
    struct config config;
    char from[FILE_PATH_MAX];
    if (ranks_open(ranks, error)) return EXIT_FAILED;
    *stderr_copy = rank_output_quiet(ranks);
    if (line->ranks > 0 && line->ranks != ranks->size) {
        fail(error, "--ranks %" PRId64 ", but %d processes were started", line->ranks, ranks->size);
        return EXIT_USAGE;
    }
    int status = load_config(&config, from, line, error);
    if (status == 0 && config_split_batch(&config, ranks->size, error)) status = EXIT_USAGE;
    if (ranks_agree(ranks, status, error)) {
        /* All ranks have this status and end by themselves: MPI_Abort would bury the message. */
        ranks_close(ranks);
        return status ? status : EXIT_FAILED;
    }
    if (line->log_ranks && rank_output_log(ranks, &config, error)) return EXIT_FAILED;
    return run_train(&config, line, ranks, error);
}

/* Starts the ranks through mpirun. An invalid config fails here, before mpirun adds messages of
 * its own. */
static int launch(const struct command_line *line, char **argv, struct error *error) {
    struct config config;
    char from[FILE_PATH_MAX];
    int status = load_config(&config, from, line, error);
    if (status) return status;
    if (config_split_batch(&config, (int)line->ranks, error)) return EXIT_USAGE;
    status = ranks_launch(line->ranks, argv, error);
    return status < 0 ? EXIT_FAILED : status;
}

static int run(const struct command_line *line, struct ranks *ranks, int *stderr_copy,
               struct error *error) {
    struct config config;
    char from[FILE_PATH_MAX], levels[64];
    if (line->command >= COMMAND_HELP) return print(line, error);
    if (!backend_cpu_level(levels, sizeof levels, error)) return EXIT_USAGE;
    if (line->command == COMMAND_TRAIN) return train(line, ranks, stderr_copy, error);
    if (ranks_launched() > 1) {
        fail(error, "several processes were started, but only training is for several ranks");
        return EXIT_USAGE;
    }
    if (line->command == COMMAND_EXPORT) return export(line, error);
    if (line->command == COMMAND_AUDIT) return audit(line, error);
    int status = load_config(&config, from, line, error);
    if (status) return status;
    if (line->command == COMMAND_SAMPLE) return run_sample(&config, from, line, error);
    if (line->command == COMMAND_CHAT) return run_chat(&config, from, line, error);
    if (line->command == COMMAND_EVAL) return run_eval(&config, from, line, error);
    if (line->command == COMMAND_LOGITS) return run_logits(&config, from, line, error);
    if (line->command == COMMAND_CHOICES) return choices(&config, from, line, error);
    if (line->command == COMMAND_AGREEMENT) return agreement(&config, from, line, error);
    if (line->command == COMMAND_PROFILE) return run_profile(&config, line, error);
    return run_dry(&config, line, error);
}

/* Prints the error. With several ranks the first to fail prints it and ends the others during their
 * delay, so that they print nothing. */
static void print_failure(const struct ranks *ranks, int stderr_copy, const char *program,
                          struct error *error) {
    FILE *out = stderr_copy >= 0 ? fdopen(stderr_copy, "w") : NULL;
    if (!out) out = stderr;
    double seconds = rank_output_delay(ranks);
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    while (nanosleep(&left, &left)) continue; /* resume the delay after a handled signal */
    if (ranks->rank > 0) fprintf(out, "train: rank %d: ", ranks->rank);
    else fputs("train: ", out);
    help_print(out, error->text, program);
    fputc('\n', out);
    fflush(out);
}

int main(int argc, char **argv) {
    struct command_line line;
    struct ranks ranks = ranks_alone;
    struct error error = {0};
    int stderr_copy = -1, status = EXIT_USAGE;
    signal(SIGXFSZ, SIG_IGN); /* a write beyond the file size limit returns an error instead */
    /* A terminal's stream stays as it is: its calls restart after signals. */
    FILE *out = isatty(STDOUT_FILENO) ? NULL : file_stream_open(STDOUT_FILENO);
    if (out) stdout = out;
    if (command_line_parse(&line, argc, argv, &error) == 0) {
        if (line.command == COMMAND_TRAIN && line.ranks > 1 && ranks_launched() == 1) {
            status = launch(&line, argv, &error);
        } else {
            if (line.command < COMMAND_HELP) backend_prepare_process(argv);
            /* After the program has executed itself once more, which would lose the input. */
            if (command_line_read_prompt(&line, &error) == 0)
                status = run(&line, &ranks, &stderr_copy, &error);
        }
    }
    command_line_free(&line);
    if ((fflush(stdout) || ferror(stdout)) && status == EXIT_DONE) {
        fail(&error, "standard output could not be written in full");
        status = EXIT_FAILED;
    }
    bool failed = status == EXIT_FAILED || status == EXIT_USAGE;
    /* Before ranks_open, the rank is known only from the launcher's environment. */
    bool prints = ranks.size > 1 || ranks_launched_rank() == 0;
    if (failed && error.text[0] && prints) print_failure(&ranks, stderr_copy, argv[0], &error);
    if (failed && !prints) sleep(1); /* once a process has failed, mpirun kills the others */
    if (failed) ranks_abort(&ranks, status);
    ranks_close(&ranks);
    return status;
}
