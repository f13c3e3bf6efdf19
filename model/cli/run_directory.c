#include "model/cli/run_directory.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program.h"
#include "model/config/config_print.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_directory.h"

int run_directory_lock(int *lock, const char *directory, struct error *error) {
    char checkpoints[FILE_PATH_MAX];
    bool has_lock;
    if (file_path_join(checkpoints, directory, "checkpoints", error) ||
        directory_refuse_link(checkpoints, error))
        return -1;
    int status = directory_lock(lock, &has_lock, directory, error);
    if (status == RESULT_NONE)
        return fail(error,
                    "%s: another process is training there\nchoose another name: --set name=...",
                    directory);
    if (status == 0 && !has_lock)
        note(stderr, "warning",
             "%s: its file system has no locks, so nothing keeps a second process from training "
             "there",
             directory);
    return status;
}

static bool same_path(const char *a, const char *b) {
    char real_a[PATH_MAX], real_b[PATH_MAX];
    return realpath(a, real_a) && realpath(b, real_b) && strcmp(real_a, real_b) == 0;
}

/* Resumes from a path given by the user. A checkpoint of another directory is refused if this one
 * already has checkpoints: the steps of two histories would be indistinguishable. */
static int start_from_path(char *from, const char *given, const char *newest, int found,
                           const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    if (checkpoint_locate(path, given, CHECKPOINT_WHOLE, CHECKPOINT_NEWEST, stderr, error))
        return EXIT_FAILED;
    if (found == RESULT_DONE && !same_path(path, newest)) {
        fail(error,
             "%s holds checkpoints, the newest being %s, so it cannot continue from %s: give the "
             "run another name with --set name=..., or resume without a path",
             directory, strrchr(newest, '/') + 1, path);
        return EXIT_USAGE;
    }
    snprintf(from, FILE_PATH_MAX, "%s", path);
    return EXIT_DONE;
}

int run_directory_start(char *from, const char *directory, const struct config *config,
                        const struct command_line *line, struct error *error) {
    char newest[FILE_PATH_MAX];
    from[0] = 0;
    int found = checkpoint_newest(newest, directory, CHECKPOINT_WHOLE, stderr, error);
    if (found == RESULT_FAILED) return EXIT_FAILED;
    if (found == RESULT_DAMAGED) {
        fail(error,
             "%s: all its checkpoints are damaged\nrestore one, or choose another name: --set "
             "name=...",
             directory);
        return EXIT_FAILED;
    }
    if (line->resume && line->resume_path)
        return start_from_path(from, line->resume_path, newest, found, directory, error);
    if (found == RESULT_DONE && !line->resume && config->checkpoint.resume != CONFIG_RESUME_AUTO) {
        fail(error,
             "%s already holds checkpoints, up to %s\ncontinue with --resume, or choose "
             "another name: --set name=...",
             directory, strrchr(newest, '/') + 1);
        return EXIT_USAGE;
    }
    if (found == RESULT_NONE && line->resume) {
        fail(error, "%s has no complete checkpoint yet\nstart without --resume", directory);
        return EXIT_FAILED;
    }
    if (found == RESULT_DONE) snprintf(from, FILE_PATH_MAX, "%s", newest);
    return EXIT_DONE;
}

int run_directory_write_config(const char *directory, const struct config *config,
                               struct error *error) {
    char path[FILE_PATH_MAX];
    struct printed printed;
    if (file_path_join(path, directory, "config.json", error)) return -1;
    if (printed_open(&printed)) return fail_memory(error, "config.json");
    config_print_json(printed.out, config);
    return printed_write(&printed, path, NULL, error);
}

int run_directory_set_aside(const char *directory, struct error *error) {
    char path[FILE_PATH_MAX], aside[FILE_PATH_MAX], name[32];
    struct stat status;
    if (checkpoint_directory_count(directory) > 0) return 0;
    if (file_path_join(path, directory, "metrics.jsonl", error)) return -1;
    if (lstat(path, &status) || status.st_size == 0) return 0;
    if (!S_ISREG(status.st_mode) || status.st_nlink > 1) return 0; /* metrics_open refuses links */
    for (int i = 1; i < INT_MAX; i++) {
        snprintf(name, sizeof name, "metrics-%d.jsonl", i);
        if (file_path_join(aside, directory, name, error)) return -1;
        if (lstat(aside, &status)) break;
    }
    if (rename(path, aside)) return fail(error, "cannot rename %s: %s", path, strerror(errno));
    note(stderr, "note", "%s holds no checkpoint of the run before; its metrics are kept as %s",
         directory, name);
    return 0;
}
