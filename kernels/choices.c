#include "kernels/choices.h"

#include <unistd.h>

#include "data/util/files.h"
#include "data/util/printed.h"

int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error) {
    struct error reason;
    struct printed printed;
    if (printed_open(&printed)) return fail(error, "out of memory while writing %.400s", path);
    write(printed.out, from);
    if (printed_write(&printed, path, NULL, &reason) == 0) return 0;
    return fail(error,
                "what autotune has chosen cannot be written: %.700s; or set autotune to false",
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
