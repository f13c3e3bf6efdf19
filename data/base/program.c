#include "data/base/program.h"

#include <stdbool.h>
#include <string.h>

static const char prefix[] = "mantissa-";

/* A name on its own, not a part of a path such as ../train_x.bin. */
static bool names_a_program(const char *text, const char *beginning) {
    static const char *const names[] = {"./train", "./prepare", "./compare"};
    if (text > beginning && !strchr(" \n(", text[-1])) return false;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t length = strlen(names[i]);
        if (strncmp(text, names[i], length) == 0 && strchr(" \n,;:.)", text[length]))
            return text[length] != '.' || strchr(" \n", text[length + 1]);
    }
    return false;
}

void help_print(FILE *out, const char *text, const char *program) {
    const char *slash = program ? strrchr(program, '/') : NULL;
    const char *name = slash ? slash + 1 : program ? program : "";
    bool installed = strncmp(name, prefix, strlen(prefix)) == 0;
    for (const char *beginning = text; *text;) {
        if (installed && names_a_program(text, beginning)) {
            fputs(prefix, out);
            text += strlen("./");
        }
        fputc(*text++, out);
    }
}
