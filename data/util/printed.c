#include "data/util/printed.h"

#include <stdlib.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/note.h"

const char *count_text(char text[COUNT_TEXT_MAX], double count) {
    static const char *const units[] = {"", " k", " M", " B", " T"};
    int unit = 0;
    while (count >= 1000 && unit < 4) {
        count /= 1000;
        unit++;
    }
    snprintf(text, COUNT_TEXT_MAX, unit && count < 100 ? "%.1f%s" : "%.0f%s", count, units[unit]);
    return text;
}

void end_out_of_memory(void) {
    note(stderr, "out of memory", "a text does not fit\nfree memory and try again");
    _exit(EXIT_FAILURE);
}

int printed_open(struct printed *printed) {
    *printed = (struct printed){0};
    printed->out = open_memstream(&printed->text, &printed->size);
    return printed->out ? 0 : -1;
}

int printed_close(struct printed *printed) {
    bool complete = !ferror(printed->out);
    if (fclose(printed->out) == 0 && complete) return 0;
    free(printed->text);
    printed->text = NULL;
    return -1;
}

int printed_write(struct printed *printed, const char *path, char hex[SHA256_HEX_MAX],
                  struct error *error) {
    if (printed_close(printed)) return fail_memory(error, "%.400s", path);
    int status = file_write_whole(path, printed->text, printed->size, hex, error);
    free(printed->text);
    printed->text = NULL;
    return status;
}
