#include "model/page/wrap.h"

#include <stdbool.h>
#include <string.h>

void print_wrapped(FILE *out, const char *text, int column, int indent) {
    for (bool space = false; *text; space = true) {
        int length = (int)strcspn(text, " ");
        bool filled = space || column > indent; /* the line is not empty */
        if (filled && column + space + length > WRAP_WIDTH) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            space = false;
        }
        fprintf(out, "%s%.*s", space ? " " : "", length, text);
        column += space + length;
        text += length + (text[length] == ' ');
    }
    fputc('\n', out);
}
