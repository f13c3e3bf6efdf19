#include "data/base/json_escape.h"

#include <stdint.h>
#include <string.h>

int json_hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static uint32_t hex4(const char *digits) {
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) value = value << 4 | (uint32_t)json_hex_digit(digits[i]);
    return value;
}

size_t json_unescape(const char **at, const char *end, char out[4]) {
    static const char letters[] = "\"\\/bfnrt", bytes[] = "\"\\/\b\f\n\r\t";
    const char kind = (*at)[1];
    *at += 2;
    if (kind != 'u') {
        out[0] = bytes[strchr(letters, kind) - letters];
        return 1;
    }
    uint32_t code = hex4(*at);
    *at += 4;
    if (code >= 0xd800 && code < 0xdc00 && end - *at >= 6 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        const uint32_t low = hex4(*at + 2);
        if (low >= 0xdc00 && low < 0xe000) {
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
            *at += 6;
        }
    }
    if (code >= 0xd800 && code < 0xe000) code = 0xfffd;
    const int tail = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char leads[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(leads[tail] | code >> (6 * tail));
    for (int i = 1; i <= tail; i++) out[i] = (char)(0x80 | (code >> (6 * (tail - i)) & 0x3f));
    return (size_t)tail + 1;
}

size_t json_unescape_all(char *string, size_t size) {
    const char *at = string, *end = string + size;
    char *out = string, character[4];
    while (at < end) {
        const char *escape = memchr(at, '\\', (size_t)(end - at));
        const size_t plain = (size_t)((escape ? escape : end) - at);
        memmove(out, at, plain);
        out += plain;
        at += plain;
        if (at == end) break;
        const size_t bytes = json_unescape(&at, end, character);
        memcpy(out, character, bytes);
        out += bytes;
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
