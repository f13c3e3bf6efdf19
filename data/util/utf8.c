#include "data/util/utf8.h"

#include <string.h>

size_t utf8_character(const void *text, size_t size) {
    const uint8_t *bytes = text, lead = bytes[0];
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    const size_t count = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (count > size) return 0;
    const uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
    const uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (bytes[1] < low || bytes[1] > high) return 0;
    for (size_t i = 2; i < count; i++)
        if ((bytes[i] & 0xc0) != 0x80) return 0;
    return count;
}

bool utf8_valid(const void *text, size_t size) {
    const uint8_t *bytes = text;
    for (size_t at = 0; at < size;) {
        const size_t count = utf8_character(bytes + at, size - at);
        if (count == 0) return false;
        at += count;
    }
    return true;
}

size_t utf8_skip_characters(const void *text, size_t size, size_t at) {
    const uint8_t *bytes = text;
    while (at < size) {
        uint64_t eight;
        while (at + sizeof eight <= size) {
            memcpy(&eight, bytes + at, sizeof eight);
            if (eight & UINT64_C(0x8080808080808080)) break;
            at += sizeof eight;
        }
        if (at == size) break;
        const size_t count = utf8_character(bytes + at, size - at);
        if (count == 0) break;
        at += count;
    }
    return at;
}

size_t utf8_skip_invalid(const void *text, size_t size, size_t at) {
    const uint8_t *bytes = text;
    while (at < size && utf8_character(bytes + at, size - at) == 0) at++;
    return at;
}

uint32_t utf8_code(const void *character, size_t count) {
    const uint8_t *bytes = character;
    if (count == 1) return bytes[0];
    uint32_t code = bytes[0] & (0x7fu >> count);
    for (size_t i = 1; i < count; i++) code = code << 6 | (bytes[i] & 0x3f);
    return code;
}

size_t utf8_write(void *character, uint32_t code) {
    static const uint8_t leads[] = {0, 0, 0xc0, 0xe0, 0xf0};
    uint8_t *bytes = character;
    const size_t count = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = count; i-- > 1; code >>= 6) bytes[i] = (uint8_t)(0x80 | (code & 0x3f));
    bytes[0] = (uint8_t)(leads[count] | code);
    return count;
}

bool utf8_is_control(const void *character, size_t count) {
    const uint32_t code = utf8_code(character, count);
    return (code < 0x20 && code != '\n' && code != '\t') || (code >= 0x7f && code < 0xa0) ||
           code == 0x61c || code == 0x200e || code == 0x200f ||
           (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
}

char *utf8_mask(char *text) {
    char *to = text;
    size_t left = strlen(text);
    for (const char *from = text; left > 0;) {
        const size_t count = utf8_character(from, left), taken = count ? count : 1;
        if (count == 0 || utf8_is_control(from, count)) *to++ = '?';
        else memmove(to, from, count), to += count;
        from += taken;
        left -= taken;
    }
    *to = '\0';
    return text;
}

bool text_ends(const char *text, const char *end) {
    const size_t length = strlen(text), size = strlen(end);
    return length >= size && memcmp(text + length - size, end, size) == 0;
}

int64_t utf8_count(const char *text, size_t size) {
    int64_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

static bool is_space(uint32_t code) {
    return (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x20) || code == 0x85 ||
           code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

size_t utf8_skip_space(const char *text, size_t size) {
    size_t at = 0;
    while (at < size) {
        const size_t count = utf8_character(text + at, size - at);
        if (count == 0 || !is_space(utf8_code(text + at, count))) break;
        at += count;
    }
    return at;
}

size_t utf8_trim_end(const char *text, size_t size) {
    while (size > 0) {
        size_t at = size - 1;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
        const size_t count = utf8_character(text + at, size - at);
        if (at + count != size || !is_space(utf8_code(text + at, count))) break;
        size = at;
    }
    return size;
}
