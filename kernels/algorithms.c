#include "kernels/algorithms.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/printed.h"
#include "data/util/progress.h"
#include "kernels/ranks.h"

enum { FILE_BYTES_MAX = 4 << 20 }; /* a larger store begins anew */

/* Begins the titles of all backends, and tells a file of another one from a damaged file. */
static const char TITLE_PREFIX[] = "mantissa ";

enum origin { STORED, READ, TIMED, UNTIMED }; /* READ: from the run's file, rank 0 or the store */

struct row {
    char *key; /* matmul */
    struct {
        char algorithm[ALGORITHM_MAX];
        enum origin origin;
    } value;
};

struct algorithms {
    struct row *rows; /* stb_ds string map, as all tables of rows here */
    char *title;
    char store[FILE_PATH_MAX]; /* path; "": none */
    double limit;              /* limit of all trials together, in seconds */
    double began, ended;       /* progress_clock() before the first trial, 0 if none, and after the
                                * last */
};

static void put(struct row **rows, const char *matmul, const char *algorithm, enum origin origin) {
    struct row row = {0};
    snprintf(row.value.algorithm, ALGORITHM_MAX, "%s", algorithm);
    row.value.origin = origin;
    shput(*rows, matmul, row.value);
}

/* ---- files */

static int print_rows(struct printed *printed, const char *title, const struct row *rows,
                      enum origin least) {
    if (printed_open(printed)) return -1;
    fprintf(printed->out, "%s\n", title);
    for (ptrdiff_t i = 0; i < shlen(rows); i++)
        if (rows[i].value.origin >= least)
            fprintf(printed->out, "%s %s\n", rows[i].key, rows[i].value.algorithm);
    return 0;
}

static int write_rows(const char *path, const char *title, const struct row *rows,
                      enum origin least, struct error *error) {
    struct printed printed;
    if (print_rows(&printed, title, rows, least)) return fail_memory(error, "%.400s", path);
    return printed_write(&printed, path, NULL, error);
}

/* Adds the rows of a text that the table does not have. Returns the number of the first invalid
 * line, or 0. */
static int read_rows(char *text, const char *title, struct row **rows, enum origin origin) {
    int number = 1;
    for (char *line = text, *end; number == 1 || *line; line = end + 1, number++) {
        end = strchr(line, '\n');
        if (!end) return number;
        if (number == 1 && strncmp(line, TITLE_PREFIX, sizeof TITLE_PREFIX - 1)) return number;
        *end = 0;
        if (number == 1 && strcmp(line, title)) return 0;
        if (number == 1) continue;
        char *space = strrchr(line, ' ');
        if (!space || space == line || space + 1 == end || end - space > ALGORITHM_MAX)
            return number;
        *space = 0;
        if (shgeti(*rows, line) < 0) put(rows, line, space + 1, origin);
    }
    return 0;
}

static int read_file(const char *path, const char *title, struct row **rows, enum origin origin,
                     struct error *error) {
    char *text;
    size_t size;
    if (!file_exists(path)) return 0;
    if (file_read_all(&text, &size, path, FILE_BYTES_MAX, error)) return -1;
    /* A NUL byte would hide the rows behind it. */
    const char *nul = memchr(text, 0, size);
    int lines = 1;
    for (const char *at = text; nul && at < nul; at++) lines += *at == '\n';
    int wrong = nul ? lines : read_rows(text, title, rows, origin);
    free(text);
    if (!wrong) return 0;
    return fail(error,
                "%.500s: line %d is not of a file that autotune writes; delete the file to have "
                "everything timed again",
                path, wrong);
}

/* Reads the store. A damaged one may be wrong in other lines too, so it gives nothing. */
static struct row *read_store(const struct algorithms *algorithms) {
    struct row *stored = NULL, *none = NULL;
    struct error ignored;
    sh_new_strdup(stored);
    if (!algorithms->store[0] ||
        read_file(algorithms->store, algorithms->title, &stored, STORED, &ignored) == 0)
        return stored;
    shfree(stored);
    sh_new_strdup(none);
    return none;
}

int algorithms_write(const struct algorithms *algorithms, const char *path, struct error *error) {
    struct error reason;
    if (!algorithms || write_rows(path, algorithms->title, algorithms->rows, READ, &reason) == 0)
        return 0;
    return fail(error,
                "what autotune has chosen cannot be written: %.700s; or set autotune to \"off\"",
                reason.text);
}

/* Reads the store again, to which other runs may have added rows since. Each process writes a
 * temporary file and renames it, so readers never see a partial store. */
int algorithms_store(const struct algorithms *algorithms, struct error *error) {
    char directory[FILE_PATH_MAX], own[FILE_PATH_MAX + 16];
    if (!algorithms || !algorithms->store[0] || algorithms_tuning(algorithms).timed == 0) return 0;
    struct row *stored = read_store(algorithms);
    for (ptrdiff_t i = 0; i < shlen(algorithms->rows); i++) {
        const struct row *row = &algorithms->rows[i];
        if (row->value.origin == TIMED) put(&stored, row->key, row->value.algorithm, TIMED);
    }
    snprintf(directory, sizeof directory, "%s", algorithms->store);
    *strrchr(directory, '/') = 0;
    int status = directory_create(directory, error);
    snprintf(own, sizeof own, "%s.%ld", algorithms->store, (long)getpid());
    if (status == 0) status = write_rows(own, algorithms->title, stored, STORED, error);
    if (status == 0 && rename(own, algorithms->store) != 0) {
        status = fail(error, "cannot replace %.600s: %s", algorithms->store, strerror(errno));
        unlink(own);
    }
    shfree(stored);
    return status;
}

int algorithms_share(struct algorithms *algorithms, const struct ranks *ranks,
                     struct error *error) {
    struct printed printed = {0};
    bool first = ranks->rank == 0;
    assert(algorithms);
    if (first && print_rows(&printed, algorithms->title, algorithms->rows, READ) == 0)
        printed_close(&printed);
    uint64_t bytes = printed.size + 1;
    ranks_broadcast(ranks, &bytes, sizeof bytes);
    if (!first) printed.text = malloc(bytes);
    int status = printed.text ? 0 : fail_memory(error, "the algorithms of matmuls");
    status = ranks_agree(ranks, status, error);
    if (status == 0) ranks_broadcast(ranks, printed.text, bytes);
    if (status == 0 && !first &&
        read_rows(printed.text, algorithms->title, &algorithms->rows, READ))
        status = fail(error, "autotune: rank 0's algorithms cannot be read");
    free(printed.text);
    return status;
}

/* ---- the table */

/* Sets the path, in which only letters and digits of the name remain, and adds the store's rows. A
 * path that is too long means no store. */
static void open_store(struct algorithms *algorithms, const char *directory, const char *name) {
    struct error ignored;
    char letters[ALGORITHM_LINE_MAX];
    snprintf(letters, sizeof letters, "%s", name);
    for (char *at = letters; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
    if (file_path_join(algorithms->store, directory, letters, &ignored)) algorithms->store[0] = 0;
    struct row *stored = read_store(algorithms);
    for (ptrdiff_t i = 0; i < shlen(stored); i++)
        if (shgeti(algorithms->rows, stored[i].key) < 0)
            put(&algorithms->rows, stored[i].key, stored[i].value.algorithm, STORED);
    shfree(stored);
}

struct algorithms *algorithms_open(const char *title, const char *store_name,
                                   const struct backend_options *options, struct error *error) {
    struct algorithms *algorithms = calloc(1, sizeof *algorithms);
    assert(strncmp(title, TITLE_PREFIX, sizeof TITLE_PREFIX - 1) == 0);
    if (algorithms) algorithms->title = strdup(title);
    if (!algorithms || !algorithms->title) {
        fail_memory(error, "the algorithms of matmuls");
        free(algorithms);
        return NULL;
    }
    sh_new_strdup(algorithms->rows);
    if (options->ranks && options->ranks->rank > 0) return algorithms;
    algorithms->limit = options->autotune == AUTOTUNE_ON ? INFINITY : options->autotune_seconds;
    if (options->algorithms &&
        read_file(options->algorithms, title, &algorithms->rows, READ, error)) {
        algorithms_close(algorithms);
        return NULL;
    }
    if (options->store && store_name) open_store(algorithms, options->store, store_name);
    return algorithms;
}

void algorithms_close(struct algorithms *algorithms) {
    if (!algorithms) return;
    shfree(algorithms->rows);
    free(algorithms->title);
    free(algorithms);
}

const char *algorithms_find(struct algorithms *algorithms, const char *matmul, bool planning) {
    ptrdiff_t at = shgeti(algorithms->rows, matmul);
    if (at < 0 || (algorithms->rows[at].value.origin == STORED && !planning)) return NULL;
    if (algorithms->rows[at].value.origin == STORED) algorithms->rows[at].value.origin = READ;
    return algorithms->rows[at].value.algorithm;
}

void algorithms_add(struct algorithms *algorithms, const char *matmul, const char *algorithm,
                    bool timed) {
    put(&algorithms->rows, matmul, algorithm, timed ? TIMED : UNTIMED);
}

bool algorithms_have_time(struct algorithms *algorithms) {
    double now = progress_clock();
    if (algorithms->began == 0) algorithms->began = algorithms->ended = now;
    return now - algorithms->began < algorithms->limit;
}

void algorithms_trial_ended(struct algorithms *algorithms) {
    algorithms->ended = progress_clock();
}

struct tuning algorithms_tuning(const struct algorithms *algorithms) {
    struct tuning tuning = {.on = algorithms != NULL};
    if (!algorithms) return tuning;
    tuning.seconds = algorithms->ended - algorithms->began;
    for (ptrdiff_t i = 0; i < shlen(algorithms->rows); i++) {
        tuning.timed += algorithms->rows[i].value.origin == TIMED;
        tuning.untimed += algorithms->rows[i].value.origin == UNTIMED;
    }
    return tuning;
}
