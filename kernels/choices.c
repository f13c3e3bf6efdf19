#include "kernels/choices.h"

#include <ctype.h>
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/printed.h"

static int write_file(const char *path, void (*write)(FILE *file, const void *from),
                      const void *from, struct error *error) {
    struct printed printed;
    if (printed_open(&printed)) return fail(error, "out of memory while writing %.400s", path);
    write(printed.out, from);
    return printed_write(&printed, path, NULL, error);
}

int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error) {
    struct error reason;
    if (write_file(path, write, from, &reason) == 0) return 0;
    return fail(error,
                "what autotune has chosen cannot be written: %.700s; or set autotune to \"off\"",
                reason.text);
}

int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error) {
    if (!file_exists(path)) return 0;
    int descriptor = file_open_regular(path, error);
    if (descriptor < 0) return -1;
    FILE *file = fdopen(descriptor, "r");
    if (!file) {
        close(descriptor);
        return fail(error, "out of memory while reading %.400s", path);
    }
    int wrong = read(file, into);
    fclose(file);
    if (!wrong) return 0;
    return fail(error,
                "%.500s: line %d is not of a file that autotune writes; delete the file to have "
                "everything timed again",
                path, wrong);
}

/* ---- several ranks */

static int print_text(struct printed *printed, void (*write)(FILE *file, const void *from),
                      const void *from) {
    if (printed_open(printed)) return -1;
    write(printed->out, from);
    return printed_close(printed);
}

static int scan_text(char *text, size_t size, int (*read)(FILE *file, void *into), void *into) {
    FILE *file = fmemopen(text, size, "r");
    if (!file) return -1;
    int wrong = read(file, into);
    fclose(file);
    return wrong ? -1 : 0;
}

int choices_share(const struct ranks *ranks, void (*write)(FILE *file, const void *from),
                  int (*read)(FILE *file, void *into), void *choices, struct error *error) {
    struct printed printed = {0};
    bool first = ranks->rank == 0;
    if (first) print_text(&printed, write, choices);
    uint64_t size = printed.size;
    ranks_broadcast(ranks, &size, sizeof size);
    if (!first) printed.text = malloc(size);
    int status = printed.text ? 0 : fail(error, "out of memory");
    status = ranks_agree(ranks, status, error);
    if (status == 0) ranks_broadcast(ranks, printed.text, size);
    if (status == 0 && !first && scan_text(printed.text, size, read, choices))
        status = fail(error, "autotune: rank 0's choices cannot be read");
    free(printed.text);
    return status;
}

/* ---- the store */

char *choices_store_path(const char *directory, const char *key) {
    char path[FILE_PATH_MAX];
    struct error ignored;
    if (file_path_join(path, directory, key, &ignored) || strlen(key) > NAME_MAX / 2) return NULL;
    for (char *at = path + strlen(directory) + 1; *at; at++)
        if (!isalnum((unsigned char)*at)) *at = '-';
    return strdup(path);
}

/* Each process has a file of its own to rename. */
int choices_store(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error) {
    char own[FILE_PATH_MAX], copy[FILE_PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    if (directory_create(dirname(copy), error)) return -1;
    snprintf(own, sizeof own, "%s.%ld", path, (long)getpid());
    if (write_file(own, write, from, error)) return -1;
    if (rename(own, path) == 0) return 0;
    int number = errno;
    unlink(own);
    return fail(error, "cannot replace %.600s: %s", path, strerror(number));
}
