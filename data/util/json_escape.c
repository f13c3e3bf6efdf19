#include "data/util/json_escape.h"

#include <string.h>

#include "data/util/utf8.h"

/* Returns the code unit of a \uXXXX, or -1. */
static int code_unit(const char *at, const char *end) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    int code = 0;
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return -1;
    for (int i = 2; i < 6; i++) {
        const char *digit = memchr(digits, at[i], sizeof digits - 1);
        if (!digit) return -1;
        code = code * 16 + (int)(digit - digits) % 16;
    }
    return code;
}

int json_escape_code(const char **at, const char *end) {
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    if (end - *at < 2) return -1;
    const char *letter = memchr(letters, (*at)[1], sizeof letters - 1);
    if (letter) {
        *at += 2;
        return bytes[letter - letters];
    }
    const int code = code_unit(*at, end);
    if (code < 0) return -1;
    *at += 6;
    const int low = code >= 0xd800 && code < 0xdc00 ? code_unit(*at, end) : -1;
    if (low < 0xdc00 || low >= 0xe000) return code;
    *at += 6;
    return 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
}

uint32_t json_escape_character(const char **at, const char *end) {
    const int code = json_escape_code(at, end);
    return code >= 0xd800 && code < 0xe000 ? 0xfffd : (uint32_t)code;
}

size_t json_unescape(char *string, size_t size) {
    const char *at = string, *end = string + size;
    char *out = string;
    while (at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        const size_t plain = (size_t)((escape ? escape : end) - at);
        memmove(out, at, plain);
        out += plain;
        at += plain;
        if (at == end) break;
        out += utf8_write(out, json_escape_character(&at, end));
    }
    return (size_t)(out - string);
}

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
