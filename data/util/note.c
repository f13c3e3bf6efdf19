#include "data/util/note.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/program_names.h"
#include "data/util/utf8.h"

enum { MESSAGE_MAX = 4096 };

/* ---- lines */

/* Returns the number of columns from text to end. */
static int count_columns(const char *text, const char *end) {
    int columns = 0;
    for (; text < end; text++) columns += (*text & 0xc0) != 0x80;
    return columns;
}

/* Returns the end of a word. A command is one word: a shell would run its parts on their own. */
static const char *word_end(const char *word) {
    const char *end = word + strcspn(word, " \n");
    if (!program_begins_command(word) || strchr(".:", end[-1])) return end;
    while (*end == ' ' && !strchr(",;)", end[-1])) end += 1 + strcspn(end + 1, " \n");
    return end;
}

void text_wrap(FILE *out, int column, int indent, int rest, const char *text) {
    for (const char *at = text; *at; at += at[0] != '\0') {
        const char *end = word_end(at), before = at > text ? at[-1] : '\0';
        const bool fits = column + (before == ' ') + count_columns(at, end) <= TEXT_WIDTH;
        if (before == '\n' || (before && !fits)) {
            column = *at == '\n' ? 0 : before == '\n' ? indent : rest;
            fprintf(out, "\n%*s", column, "");
        } else if (before) {
            fputc(' ', out);
            column++;
        }
        column += count_columns(at, end);
        fwrite(at, 1, (size_t)(end - at), out);
        at = end;
    }
}

/* ---- messages */

void note(FILE *out, const char *prefix, const char *format, ...) {
    char text[MESSAGE_MAX], named[PROGRAM_TEXT_MAX];
    va_list arguments;
    if (!out) return;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, program_format(named, format), arguments);
    va_end(arguments);
    /* stderr has no buffer: pieces of several processes would mix. */
    char *lines = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&lines, &size), *to = memory ? memory : out;
    fprintf(to, "%s: ", prefix);
    text_wrap(to, (int)strlen(prefix) + 2, 2, 4, utf8_mask(text));
    fputc('\n', to);
    if (memory) fclose(memory);
    if (lines) fwrite(lines, 1, size, out);
    free(lines);
}

void note_error(FILE *out, const char *prefix, struct error *error) {
    note(out, prefix, "%s", error->text);
    error->text[0] = '\0';
}
