#include "data/util/program.h"

#include <stdbool.h>
#include <string.h>

static int find(const struct flag_row *rows, int count, char *argument, char **value) {
    for (int i = 0; i < count; i++) {
        size_t length = strlen(rows[i].name);
        if (strcmp(argument, "-h") == 0 && strcmp(rows[i].name, "--help") == 0) {
            *value = NULL;
            return i;
        }
        if (strncmp(argument, rows[i].name, length) != 0) continue;
        *value = argument[length] == '=' ? argument + length + 1 : NULL;
        if (argument[length] == '=' || argument[length] == 0) return i;
    }
    return FLAG_UNKNOWN;
}

int flags_read(const struct flag_row *rows, int count, int argc, char **argv, int *at, char **value,
               struct error *error) {
    int found = find(rows, count, argv[*at], value);
    if (found < 0) return found;
    const struct flag_row *row = &rows[found];
    bool optional = row->value && row->value[0] == '[';
    if (*value && !row->value) fail(error, "%s takes no value", row->name);
    else if (!*value && row->value && *at + 1 < argc && !(optional && argv[*at + 1][0] == '-'))
        *value = argv[++*at];
    if (!*value == !row->value || optional) return found;
    if (row->value) fail(error, "%s needs a value: %s %s", row->name, row->name, row->value);
    return FLAG_WRONG;
}

void flags_print(FILE *out, const struct flag_row *rows, int count, int column) {
    for (int i = 0; i < count; i++) {
        char left[40];
        int width =
            snprintf(left, sizeof left, "%s %s", rows[i].name, rows[i].value ? rows[i].value : "");
        const char *help = rows[i].help;
        int length = (int)strcspn(help, "\n");
        /* A flag without a space before the column has a line of its own. */
        if (width > column - 3) fprintf(out, "  %s\n%*s%.*s\n", left, column, "", length, help);
        else fprintf(out, "  %-*s%.*s\n", column - 2, left, length, help);
        for (help += length; *help; help += length) {
            help++;
            length = (int)strcspn(help, "\n");
            fprintf(out, "%*s%.*s\n", column, "", length, help);
        }
    }
}

static const char prefix[] = "mantissa-";

/* True for a program's name on its own, not as part of a path such as ../train_x.bin. */
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
