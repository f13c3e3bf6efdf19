#include "model/page/escape.h"

#include <ctype.h>
#include <string.h>

#include "data/util/utf8.h"

void escape_text(FILE *out, const char *text, const char *end) {
    for (; text < end; text++) putc(iscntrl((unsigned char)*text) ? ' ' : *text, out);
}

/* True if the character must be escaped. An underscore between letters or digits is no emphasis, so
 * it stays unescaped and names stay readable. */
static bool is_special(const char *text, size_t i) {
    if (text[i] != '_') return text[i] && strchr("\\`*[]<>|&~$", text[i]);
    return !(i && isalnum((unsigned char)text[i - 1]) && isalnum((unsigned char)text[i + 1]));
}

void escape_markdown(FILE *out, const char *text) {
    for (size_t i = 0; text[i]; i++) {
        if (is_special(text, i)) putc('\\', out);
        escape_text(out, &text[i], &text[i + 1]);
    }
}

void escape_html(FILE *out, const char *text, bool breaks) {
    for (size_t rest = strlen(text), size; rest; text += size, rest -= size) {
        size = utf8_character(text, rest);
        bool control = size > 0 && *text != '\r' && utf8_is_control(text, size);
        if (size == 0 || control) {
            fputs("\xef\xbf\xbd", out);
            if (size == 0) size = 1;
        } else if (*text == '&') fputs("&amp;", out);
        else if (*text == '<') fputs("&lt;", out);
        else if (*text == '>') fputs("&gt;", out);
        else if (*text == '"') fputs("&quot;", out);
        else fwrite(text, 1, size, out);
        if (breaks && (*text == ':' || *text == ',') && text[1] > ' ') fputs("<wbr>", out);
    }
}
