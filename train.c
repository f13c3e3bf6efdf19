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
#include "data/util/file_stream.h"
#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/program.h"
#include "data/util/table.h"
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
#include "model/cli/run.h"
#include "model/cli/run_sample.h"
#include "model/lab/evaluation/run_eval.h"
#include "model/lab/evaluation/run_logits.h"
#include "model/lab/evaluation/run_profile.h"

static enum checkpoint_choice choice_of(const struct command_line *line) {
    return line->best ? CHECKPOINT_BEST : line->newest ? CHECKPOINT_NEWEST : CHECKPOINT_KEPT;
}

/* Fills config, from line->config where it is given, and with line->from also `from` (FILE_PATH_MAX
 * bytes), the path of its checkpoint, which is verified: for an audit as a whole. Returns an exit
 * status. */
static int load_config(struct config *config, char *from, const struct command_line *line,
                       struct error *error) {
    char path[FILE_PATH_MAX];
    int overrides = (int)arrlen(line->overrides);
    bool whole = line->command == COMMAND_AUDIT;
    if (line->from &&
        checkpoint_locate(from, line->from, whole ? CHECKPOINT_WHOLE : CHECKPOINT_WEIGHTS,
                          choice_of(line), stderr, error))
        return EXIT_FAILED;
    if (line->from && !line->config) {
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

static int print(const struct command_line *line, struct error *error) {
    switch (line->command) {
    case COMMAND_HELP:
    case COMMAND_HELP_CONFIG: command_line_help(stdout, line); break;
    case COMMAND_VERSION: return print_version(error);
    case COMMAND_PRINT_SCHEMA: config_print_schema(stdout); break;
    default: config_print_reference(stdout); break;
    }
    return EXIT_DONE;
}

static int export(const struct command_line *line, struct error *error) {
    char from[FILE_PATH_MAX], base[FILE_PATH_MAX];
    if (line->base &&
        checkpoint_locate(base, line->base, CHECKPOINT_WEIGHTS, CHECKPOINT_KEPT, stderr, error))
        return EXIT_FAILED;
    const struct export_options options = {
        .dtype = (enum dtype)line->export_dtype,
        .gguf_type = line->gguf_type,
        .notes = stderr,
        .shard_gb = line->shard_gb,
        .merge = line->merge,
        .base = line->base ? base : NULL,
    };
    if (checkpoint_locate(from, line->from, CHECKPOINT_WEIGHTS, choice_of(line), stderr, error) ||
        export_model(line->export_to, from, &options, error))
        return EXIT_FAILED;
    text_print(stdout, 2, "exported %s to %s", from, line->export_to);
    return EXIT_DONE;
}

/* Trains, the only command that supports several ranks. Unless a rank rejects the config, the ranks
 * stay open, for main() to abort or close. */
static int train(const struct command_line *line, struct ranks *ranks, struct error *error) {
    struct config config;
    char from[FILE_PATH_MAX];
    if (ranks_open(ranks, error)) return EXIT_FAILED;
    ranks->errors = rank_output_quiet(ranks);
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

/* Commands on one process: a config, and the model at `from`, NULL without --from. */
typedef int command_function(const struct config *config, const char *from,
                             const struct command_line *line, struct error *error);
static command_function *const commands[] = {
    [COMMAND_DRY_RUN] = run_dry,     [COMMAND_SAMPLE] = run_sample,
    [COMMAND_CHAT] = run_chat,       [COMMAND_EVAL] = run_eval,
    [COMMAND_CHOICES] = run_choices, [COMMAND_AGREEMENT] = run_agreement,
    [COMMAND_LOGITS] = run_logits,   [COMMAND_AUDIT] = run_audit,
    [COMMAND_PROFILE] = run_profile,
};

static int run(const struct command_line *line, struct ranks *ranks, struct error *error) {
    struct config config;
    char from[FILE_PATH_MAX], levels[64];
    if (line->command >= COMMAND_HELP) return print(line, error);
    if (!backend_cpu_level(levels, sizeof levels, error)) return EXIT_USAGE;
    if (line->command == COMMAND_TRAIN) return train(line, ranks, error);
    if (ranks_launched() > 1) {
        fail(error, "several processes were started, but only training is for several ranks");
        return EXIT_USAGE;
    }
    if (line->command == COMMAND_EXPORT) return export(line, error);
    int status = load_config(&config, from, line, error);
    if (status) return status;
    return commands[line->command](&config, line->from ? from : NULL, line, error);
}

/* Prints the error. With several ranks the first to fail prints it and ends the others during their
 * delay, so that they print nothing. */
static void print_failure(const struct ranks *ranks, struct error *error) {
    char prefix[40] = "train";
    FILE *out = ranks->size > 1 ? fdopen(ranks->errors, "w") : NULL;
    if (!out) out = stderr;
    double seconds = rank_output_delay(ranks);
    struct timespec left = {(time_t)seconds, (long)(1e9 * (seconds - floor(seconds)))};
    while (nanosleep(&left, &left)) continue; /* resume the delay after a handled signal */
    if (ranks->rank > 0) snprintf(prefix, sizeof prefix, "train: rank %d", ranks->rank);
    note_error(out, prefix, error);
    fflush(out);
}

int main(int argc, char **argv) {
    struct command_line line;
    struct ranks ranks = ranks_alone;
    struct error error = {0};
    int status = EXIT_USAGE;
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
            if (command_line_read_prompt(&line, &error) == 0) status = run(&line, &ranks, &error);
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
    if (failed && error.text[0] && prints) print_failure(&ranks, &error);
    if (failed && !prints) sleep(1); /* once a process has failed, mpirun kills the others */
    if (failed) ranks_abort(&ranks, status);
    ranks_close(&ranks);
    return status;
}
