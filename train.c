/* ./train: flags, then config, then the run. No mathematics here. */
#include <signal.h>
#include <stdio.h>

#include <stb/stb_ds.h>

#include "data/error.h"
#include "model/checkpoint.h"
#include "model/command_line.h"
#include "model/config.h"
#include "model/run.h"

static int load_config(struct config *config, const struct command_line *line, char *error) {
    char path[FILE_PATH_MAX];
    int overrides = (int)arrlen(line->overrides);
    if (line->command == COMMAND_SAMPLE)
        return checkpoint_config(config, line->from, error)
                   ? -1
                   : config_override(config, line->from, line->overrides, overrides, error);
    if (config_find(path, sizeof path, line->config, error)) return -1;
    return config_load(config, path, line->overrides, overrides, error);
}

static int print(enum command command) {
    switch (command) {
    case COMMAND_HELP: command_line_help(stdout); break;
    case COMMAND_VERSION: printf("mantissa %s\n", MANTISSA_VERSION); break;
    case COMMAND_PRINT_SCHEMA: config_print_schema(stdout); break;
    default: config_print_reference(stdout); break;
    }
    return fflush(stdout) || ferror(stdout) ? EXIT_FAILED : EXIT_DONE;
}

static int run(const struct command_line *line, char *error) {
    struct config config;
    if (line->command >= COMMAND_HELP) return print(line->command);
    if (load_config(&config, line, error)) return EXIT_USAGE;
    if (line->command == COMMAND_SAMPLE) return run_sample(&config, line, error);
    if (line->command == COMMAND_DRY_RUN) return run_dry(&config, error);
    return run_train(&config, line, error);
}

int main(int argc, char **argv) {
    struct command_line line;
    char error[ERROR_MAX] = "";
    signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error message, not a death */
    int status = EXIT_USAGE;
    if (command_line_parse(&line, argc, argv, error) == 0) status = run(&line, error);
    command_line_free(&line);
    if (error[0] && (status == EXIT_FAILED || status == EXIT_USAGE))
        fprintf(stderr, "train: %s\n", error);
    return status;
}
