#include "data/util/json_escape.h"

void json_print_string(FILE *out, const char *text) {
    fputc('"', out);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\') fprintf(out, "\\%c", c);
        else if (c == '\n') fputs("\\n", out);
        else if (c == '\t') fputs("\\t", out);
        else if (c < ' ') fprintf(out, "\\u%04x", c);
        else fputc(c, out);
    }
    fputc('"', out);
}
