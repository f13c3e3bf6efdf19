#include "model/io/checkpoint_directory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/note.h"
#include "model/io/checkpoint_manifest.h"

enum { STEP_NAME_MAX = 48 };

static const char stem[] = "step-", unfinished[] = ".tmp", being_removed[] = ".old";

static void step_name(char name[STEP_NAME_MAX], int64_t step, const char *ending) {
    snprintf(name, STEP_NAME_MAX, "%s%s%08" PRId64 "%s", *ending ? "." : "", stem, step, ending);
}

static int step_path(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                     const char *ending, struct error *error) {
    char name[STEP_NAME_MAX + sizeof "checkpoints/"] = "checkpoints/";
    step_name(name + strlen(name), step, ending);
    return file_path_join(path, run_directory, name, error);
}

/* Returns the step in a name made by step_name, or -1. */
static int64_t step_of(const char *name, const char *ending) {
    char expected[STEP_NAME_MAX];
    const char *digits = name + (*ending ? 1 : 0);
    if (strlen(name) >= STEP_NAME_MAX || strncmp(digits, stem, strlen(stem)) != 0) return -1;
    int64_t step = strtoll(digits + strlen(stem), NULL, 10);
    if (step < 0) return -1;
    step_name(expected, step, ending);
    return strcmp(name, expected) == 0 ? step : -1;
}

static int compare_steps(const void *a, const void *b) {
    const int64_t *left = a, *right = b;
    return (*left < *right) - (*left > *right);
}

/* Appends the steps of all names with that ending, highest first, to *steps (an stb_ds array). A
 * missing directory has none. */
static int list_steps(int64_t **steps, const char *run_directory, const char *ending,
                      struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, run_directory, "checkpoints", error)) return -1;
    DIR *stream = opendir(path);
    if (!stream && errno == ENOENT) return 0;
    if (!stream)
        return fail(error,
                    "cannot read the directory %.400s: %s\ncheck the path and its "
                    "permissions",
                    path, strerror(errno));
    errno = 0;
    for (const struct dirent *entry; (entry = readdir(stream));) {
        int64_t step = step_of(entry->d_name, ending);
        if (step >= 0) arrput(*steps, step);
    }
    int number = errno;
    closedir(stream);
    if (number) return fail(error, "cannot read the directory %.400s: %s", path, strerror(number));
    if (arrlen(*steps) > 1) qsort(*steps, (size_t)arrlen(*steps), sizeof **steps, compare_steps);
    return 0;
}

static int check_file(const char *directory, const struct stored_file *expected, bool hash,
                      struct error *error) {
    char path[FILE_PATH_MAX], hex[SHA256_HEX_MAX];
    struct stat status;
    if (file_path_join(path, directory, expected->name, error)) return -1;
    if (stat(path, &status) != 0)
        return fail(error, "%.400s: %s", path, errno == ENOENT ? "it is missing" : strerror(errno));
    if (!S_ISREG(status.st_mode)) return fail(error, "%.400s: it is not a file", path);
    if ((uint64_t)status.st_size != expected->bytes)
        return fail(error,
                    "%.400s: it has %lld bytes, but had %" PRIu64 " when it was written\nrestore "
                    "it, or use another checkpoint",
                    path, (long long)status.st_size, expected->bytes);
    if (!hash) return 0;
    if (sha256_file(hex, NULL, path, error)) return -1;
    if (strcmp(hex, expected->sha256) == 0) return 0;
    return fail(error,
                "%.400s: it is damaged: its SHA-256 is not that of trainer.json\nrestore it, or "
                "use another checkpoint",
                path);
}

int checkpoint_directory_check(const char *directory, const struct stored_file *files,
                               struct error *error) {
    struct error reason;
    for (ptrdiff_t i = 0; i < arrlen(files); i++)
        if (check_file(directory, &files[i], false, &reason))
            return fail(error,
                        "%.400s/%s was written, but rank 0 does not see it\nrun_dir must be on a "
                        "file system that all ranks share",
                        directory, files[i].name);
    return 0;
}

/* A directory with another name, such as a copy, may contain any step. */
static int check_name(const char *directory, int64_t step, struct error *error) {
    char copy[FILE_PATH_MAX];
    snprintf(copy, sizeof copy, "%s", directory);
    int64_t named = step_of(basename(copy), "");
    if (named < 0 || named == step) return 0;
    return fail(error,
                "%.400s: it is named after step %" PRId64 ", but its trainer.json says step "
                "%" PRId64 "\nrename it",
                directory, named, step);
}

/* A single file of weights takes precedence over shards, so one that is not listed is an error. */
static int check_unlisted(const char *directory, const struct checkpoint_manifest *manifest,
                          struct error *error) {
    const char *const stems[] = {checkpoint_model_stem, checkpoint_adapter_stem,
                                 checkpoint_optimizer_stem};
    char name[STORED_FILE_NAME_MAX];
    for (size_t i = 0; i < sizeof stems / sizeof *stems; i++) {
        snprintf(name, sizeof name, "%s.safetensors", stems[i]);
        if (!checkpoint_manifest_lists(manifest, name) && file_exists_in(directory, name))
            return fail(error,
                        "%.400s/%s: it is no part of this checkpoint: trainer.json does not list "
                        "it\nremove it",
                        directory, name);
    }
    return 0;
}

static bool is_of(enum checkpoint_parts parts, const struct stored_file *file) {
    size_t length = strlen(checkpoint_optimizer_stem);
    return parts == CHECKPOINT_WHOLE || strncmp(file->name, checkpoint_optimizer_stem, length) != 0;
}

/* Hashes several files at once. */
static int check_files(const char *directory, const struct stored_file *files,
                       enum checkpoint_parts parts, bool hash, struct error *error) {
    ptrdiff_t count = arrlen(files), bad = count;
#pragma omp parallel for schedule(dynamic) if (hash)
    for (ptrdiff_t i = 0; i < count; i++) {
        struct error reason;
        if (!is_of(parts, &files[i]) || check_file(directory, &files[i], hash, &reason) == 0)
            continue;
#pragma omp critical
        if (i < bad) bad = i, *error = reason; /* report the first, as a sequential check would */
    }
    return bad < count ? -1 : 0;
}

static int check(const char *directory, enum checkpoint_parts parts, bool hash,
                 struct error *error) {
    char path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    if (file_path_join(path, directory, checkpoint_manifest_name, error)) return -1;
    if (checkpoint_manifest_open(&manifest, path, error)) return -1;
    int status = check_name(directory, manifest.state.step, error);
    if (status == 0) status = check_files(directory, manifest.files, parts, hash, error);
    if (status == 0) status = check_unlisted(directory, &manifest, error);
    checkpoint_manifest_close(&manifest);
    return status;
}

int checkpoint_verify(const char *path, enum checkpoint_parts parts, struct error *error) {
    return check(path, parts, true, error);
}

/* Warns of unfinished checkpoints that are newer than `found`. */
static int warn_of_unfinished(const char *run_directory, int64_t found, FILE *warnings,
                              struct error *error) {
    int64_t *steps = NULL;
    int status = list_steps(&steps, run_directory, unfinished, error);
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(steps) && steps[i] > found; i++)
        note(warnings, "warning",
             "checkpoint skipped: %s/checkpoints/.%s%08" PRId64 "%s: its saving was interrupted",
             run_directory, stem, steps[i], unfinished);
    arrfree(steps);
    return status;
}

/* Like checkpoint_newest. *removed becomes true if a listed checkpoint is gone. */
static int find_newest(char *path, bool *removed, const char *run_directory,
                       enum checkpoint_parts parts, FILE *warnings, struct error *error) {
    struct error reason;
    int64_t *steps = NULL, found = -1;
    int status = list_steps(&steps, run_directory, "", error);
    bool any = arrlen(steps) > 0;
    *removed = false;
    for (ptrdiff_t i = 0; status == 0 && found < 0 && i < arrlen(steps); i++) {
        status = step_path(path, run_directory, steps[i], "", error);
        if (status == 0 && check(path, parts, true, &reason) == 0) found = steps[i];
        else if (status == 0 && !file_exists(path)) *removed = true;
        else if (status == 0)
            note(warnings, "warning", "checkpoint skipped: %.*s", (int)strcspn(reason.text, "\n"),
                 reason.text);
    }
    arrfree(steps);
    if (status == 0) status = warn_of_unfinished(run_directory, found, warnings, error);
    if (status) return -1;
    return found >= 0 ? 0 : any ? RESULT_DAMAGED : RESULT_NONE;
}

int checkpoint_newest(char *path, const char *run_directory, enum checkpoint_parts parts,
                      FILE *warnings, struct error *error) {
    enum { TRIES = 20 };
    bool removed = true;
    int status = RESULT_NONE;
    /* A run that trains meanwhile has saved a newer checkpoint before it removes one. */
    for (int i = 0; i < TRIES && removed && status > 0; i++)
        status = find_newest(path, &removed, run_directory, parts, warnings, error);
    return status;
}

/* Stores the path of RUN/checkpoints for functions that create and remove files there. Fails if it
 * is a symbolic link. */
static int checkpoints_path(char path[FILE_PATH_MAX], const char *run_directory,
                            struct error *error) {
    if (file_path_join(path, run_directory, "checkpoints", error)) return -1;
    return directory_refuse_link(path, error);
}

static void remove_leftovers(const char *run_directory, const char *ending) {
    char path[FILE_PATH_MAX];
    struct error ignored;
    int64_t *steps = NULL;
    int status = checkpoints_path(path, run_directory, &ignored);
    if (status == 0) status = list_steps(&steps, run_directory, ending, &ignored);
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(steps); i++)
        if (step_path(path, run_directory, steps[i], ending, &ignored) == 0)
            directory_remove(path, &ignored);
    arrfree(steps);
}

void checkpoint_directory_clean(const char *run_directory) {
    remove_leftovers(run_directory, unfinished);
    remove_leftovers(run_directory, being_removed);
}

int64_t checkpoint_directory_count(const char *run_directory) {
    struct error ignored;
    int64_t *steps = NULL;
    list_steps(&steps, run_directory, "", &ignored);
    int64_t count = arrlen(steps);
    arrfree(steps);
    return count;
}

bool checkpoint_directory_find(char path[FILE_PATH_MAX], const char *run_directory, int64_t step) {
    struct error ignored;
    return step_path(path, run_directory, step, "", &ignored) == 0 && file_exists(path);
}

int checkpoint_directory_begin(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                               struct error *error) {
    if (checkpoints_path(path, run_directory, error) || directory_create(path, error)) return -1;
    /* Leftovers of other steps only waste space, so training continues if one cannot be removed. */
    checkpoint_directory_clean(run_directory);
    if (step_path(path, run_directory, step, unfinished, error)) return -1;
    if (directory_remove(path, error)) return -1;
    return directory_create(path, error);
}

/* The sync makes the new name survive a power failure. */
static int rename_durably(const char *from, const char *to, const char *parent,
                          struct error *error) {
    if (rename(from, to) == 0) return directory_sync(parent, error);
    return fail(error,
                "cannot rename %.300s to %.300s: %s\ncheck the permissions of the directory around "
                "it",
                from, to, strerror(errno));
}

/* Renames a checkpoint before its removal, so that a partly removed one never looks complete. */
static int remove_checkpoint(const char *run_directory, int64_t step, struct error *error) {
    char path[FILE_PATH_MAX], renamed[FILE_PATH_MAX], parent[FILE_PATH_MAX];
    if (checkpoints_path(parent, run_directory, error) ||
        step_path(path, run_directory, step, "", error) ||
        step_path(renamed, run_directory, step, being_removed, error) ||
        directory_remove(renamed, error) || rename_durably(path, renamed, parent, error))
        return -1;
    return directory_remove(renamed, error);
}

int checkpoint_directory_publish(char path[FILE_PATH_MAX], const char *run_directory, int64_t step,
                                 struct error *error) {
    char from[FILE_PATH_MAX], parent[FILE_PATH_MAX];
    struct error ignored;
    if (checkpoints_path(parent, run_directory, error) ||
        step_path(from, run_directory, step, unfinished, error) ||
        step_path(path, run_directory, step, "", error))
        return -1;
    if (rename(from, path) == 0) return directory_sync(parent, error);
    if (errno == EEXIST || errno == ENOTEMPTY) {
        if (renameat2(AT_FDCWD, from, AT_FDCWD, path, RENAME_EXCHANGE) == 0) {
            if (directory_sync(parent, error)) return -1;
            /* If the replaced one stays, the next save tries to remove it again. */
            directory_remove(from, &ignored);
            return 0;
        }
        /* Some network file systems cannot exchange names. Between the two renames this step is
         * absent, but earlier checkpoints exist. */
        if (remove_checkpoint(run_directory, step, error)) return -1;
    }
    return rename_durably(from, path, parent, error);
}

int checkpoint_directory_prune(const char *run_directory, int64_t step, int64_t keep, int64_t best,
                               struct error *error) {
    char path[FILE_PATH_MAX];
    struct error ignored;
    int64_t *steps = NULL, kept = 1;
    int status = checkpoints_path(path, run_directory, error);
    if (status == 0) status = list_steps(&steps, run_directory, "", error);
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(steps); i++) {
        if (steps[i] >= step || (best > 0 && steps[i] == best)) continue;
        status = step_path(path, run_directory, steps[i], "", error);
        if (status || directory_refuse_link(path, &ignored) ||
            check(path, CHECKPOINT_WHOLE, false, &ignored))
            continue;
        if (kept < keep) kept++;
        else status = remove_checkpoint(run_directory, steps[i], error);
    }
    arrfree(steps);
    return status;
}

static bool keeps_best(const struct checkpoint_manifest *manifest) {
    cJSON *config = cJSON_Parse(manifest->config);
    bool keeps = cJSON_IsTrue(json_member(json_member(config, "checkpoint"), "keep_best"));
    cJSON_Delete(config);
    return keeps;
}

/* Replaces the path of the newest checkpoint by that of the lowest validation loss, which the
 * newest one names, if that is the choice. */
static int choose(char *path, const char *run_directory, enum checkpoint_parts parts,
                  enum checkpoint_choice choice, FILE *notes, struct error *error) {
    char best[FILE_PATH_MAX], file[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    struct error reason = {"no validation has recorded one"};
    if (file_path_join(file, path, checkpoint_manifest_name, error)) return -1;
    if (checkpoint_manifest_open(&manifest, file, error)) return -1;
    const int64_t step = manifest.state.best.step, newest = manifest.state.step;
    const double loss = manifest.state.best.loss;
    const bool kept = keeps_best(&manifest), wanted = kept || choice == CHECKPOINT_BEST;
    checkpoint_manifest_close(&manifest);
    if (step == newest || !wanted || (step == 0 && choice != CHECKPOINT_BEST)) return 0;
    int status = step > 0 ? step_path(best, run_directory, step, "", error) : -1;
    if (step > 0 && status == 0) status = check(best, parts, true, &reason);
    if (status && choice == CHECKPOINT_BEST)
        return fail(error,
                    "%.300s has no checkpoint of its lowest validation loss: %.300s\ntrain with "
                    "checkpoint.keep_best, or take the newest one (--newest)",
                    run_directory, reason.text);
    bool takes_best = status == 0 && choice != CHECKPOINT_NEWEST;
    if (takes_best)
        note(notes, "note",
             "%s: step %" PRId64
             ", of the lowest validation loss, %.4f; --newest takes step %" PRId64,
             run_directory, step, loss, newest);
    else
        note(notes, "note",
             "%s: step %" PRId64
             ", the newest; the lowest validation loss, %.4f, was that of step %" PRId64 "%s%.*s",
             run_directory, newest, loss, step, status ? ": " : "",
             status ? (int)strcspn(reason.text, "\n") : 0, reason.text);
    if (takes_best) snprintf(path, FILE_PATH_MAX, "%s", best);
    return 0;
}

int checkpoint_locate(char *path, const char *given, enum checkpoint_parts parts,
                      enum checkpoint_choice choice, FILE *warnings, struct error *error) {
    char inside[FILE_PATH_MAX];
    if (file_path_join(inside, given, "checkpoints", error)) return -1;
    snprintf(path, FILE_PATH_MAX, "%s", given); /* fits, since the longer one above did */
    struct stat found;
    int status = stat(inside, &found) ? RESULT_NONE : RESULT_DONE;
    if (status == RESULT_NONE && errno == EACCES)
        return fail(error, "%.400s: %s\ncheck its permissions", given, strerror(errno));
    if (status == RESULT_DONE) status = checkpoint_newest(path, given, parts, warnings, error);
    else if (!file_exists_in(given, "metrics.jsonl")) status = RESULT_DONE;
    if (status == RESULT_DAMAGED)
        return fail(error, "%.400s: all its checkpoints are damaged\nrestore one", given);
    if (status == RESULT_NONE)
        return fail(error,
                    "%.400s has no complete checkpoint yet\nwait for its first one, or train with "
                    "a smaller checkpoint.every",
                    given);
    if (status) return status;
    if (strcmp(path, given) != 0) return choose(path, given, parts, choice, warnings, error);
    if (choice == CHECKPOINT_BEST)
        return fail(error, "--best: %.400s is not a run, but one model\nleave --best out", given);
    return file_exists_in(path, checkpoint_manifest_name) ? checkpoint_verify(path, parts, error)
                                                          : 0;
}
