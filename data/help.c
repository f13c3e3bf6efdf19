#include "data/help.h"

#include <stdbool.h>
#include <string.h>

static const char prefix[] = "mantissa-";

static bool names_a_program(const char *text) {
    static const char *const names[] = {"./train", "./prepare", "./compare"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strncmp(text, names[i], strlen(names[i])) == 0) return true;
    return false;
}

void help_print(FILE *out, const char *text, const char *program) {
    const char *slash = program ? strrchr(program, '/') : NULL;
    const char *name = slash ? slash + 1 : program ? program : "";
    bool installed = strncmp(name, prefix, strlen(prefix)) == 0;
    while (*text) {
        if (installed && names_a_program(text)) {
            fputs(prefix, out);
            text += strlen("./");
        }
        fputc(*text++, out);
    }
}
