#include "data/util/json_escape.h"

#include "data/util/utf8.h"

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

void json_print_text(FILE *out, const char *text, size_t size) {
    fputc('"', out);
    while (size > 0) {
        const size_t count = utf8_character(text, size), taken = count ? count : 1;
        if (*text == '"' || *text == '\\') fprintf(out, "\\%c", *text);
        else if (*text == '\n') fputs("\\n", out);
        else if (*text == '\r') fputs("\\r", out);
        else if (*text == '\t') fputs("\\t", out);
        else if (count == 0) fputs("\xef\xbf\xbd", out);
        else if (utf8_is_control(text, count)) fprintf(out, "\\u%04x", utf8_code(text, count));
        else fwrite(text, 1, count, out);
        text += taken;
        size -= taken;
    }
    fputc('"', out);
}
