#include "kernels/choices.h"

#include <stdbool.h>

#include "kernels/backend.h"

enum { PATH_BYTES = 4096 };

int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error) {
    char beside[PATH_BYTES + 8];
    int length = snprintf(beside, sizeof beside, "%s.new", path);
    FILE *file = length < (int)sizeof beside ? fopen(beside, "w") : NULL;
    bool good = file != NULL;
    if (good) {
        write(file, from);
        good = !ferror(file);
        good &= fclose(file) == 0;
    }
    if (good && rename(beside, path) == 0) return 0;
    return fail(
        error,
        "%.500s: what autotune has chosen cannot be written: %m; make room, or set autotune "
        "to false",
        path);
}

int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error) {
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    int wrong = read(file, into);
    fclose(file);
    if (!wrong) return 0;
    return fail(error,
                "%.500s: line %d is not of a file that autotune writes; delete the file to have "
                "everything timed again",
                path, wrong);
}
