#include "data/util/program.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#include "data/util/nearest.h"
#include "data/util/note.h"
#include "data/util/program_names.h"

enum { FLAGS_MAX = 64 };

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

/* True if the next word is a flag, not the value of the row. Any text may be a TEXT or PROMPT. */
static bool is_flag(const struct flag_row *rows, int count, const struct flag_row *row,
                    char *next) {
    char *value;
    if (row->value[0] == '[') return next[0] == '-';
    const bool text = strcmp(row->value, "TEXT") == 0 || strcmp(row->value, "PROMPT") == 0;
    return !text && find(rows, count, next, &value) != FLAG_UNKNOWN;
}

int flags_read(const struct flag_row *rows, int count, int argc, char **argv, int *at, char **value,
               struct error *error) {
    int found = find(rows, count, argv[*at], value);
    if (found < 0) return found;
    const struct flag_row *row = &rows[found];
    bool optional = row->value && row->value[0] == '[';
    if (*value && !row->value) fail(error, "%s takes no value", row->name);
    else if (!*value && row->value && *at + 1 < argc && !is_flag(rows, count, row, argv[*at + 1]))
        *value = argv[++*at];
    if (!*value == !row->value || optional) return found;
    if (row->value) fail(error, "%s needs a value: %s %s", row->name, row->name, row->value);
    return FLAG_WRONG;
}

int flags_refuse(const struct flag_row *rows, int count, const char *argument,
                 struct error *error) {
    const char *names[FLAGS_MAX];
    assert(count <= FLAGS_MAX);
    for (int i = 0; i < count; i++) names[i] = rows[i].name;
    const int nearest = nearest_text(names, count, argument, strcspn(argument, "="));
    if (nearest < 0) return fail(error, "unknown option %.200s", argument);
    return fail(error, "unknown option %.200s; did you mean %s?", argument, names[nearest]);
}

void flags_print(FILE *out, const struct flag_row *rows, int count, int column) {
    for (int i = 0; i < count; i++) {
        char left[40], named[PROGRAM_TEXT_MAX];
        int width =
            snprintf(left, sizeof left, "%s %s", rows[i].name, rows[i].value ? rows[i].value : "");
        /* A flag without a space before the column has a line of its own. */
        if (width > column - 3) fprintf(out, "  %s\n%*s", left, column, "");
        else fprintf(out, "  %-*s", column - 2, left);
        text_wrap(out, column, column, column, program_text(named, rows[i].help));
        fputc('\n', out);
    }
}
