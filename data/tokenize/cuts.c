#include "data/tokenize/cuts.h"

#include <stdint.h>
#include <string.h>

#include "data/util/utf8.h"

/* True for white space beyond ASCII in any version of Unicode; U+180E was white space before 6.3.
 * Some neighbouring code points are included for safety. */
static bool is_wide_space(uint32_t code) {
    return code <= 0xa0 || code == 0x1680 || code == 0x180e || (code >= 0x2000 && code <= 0x200f) ||
           (code >= 0x2028 && code <= 0x202f) || (code >= 0x205f && code <= 0x206f) ||
           code == 0x3000 || code == 0xfeff;
}

/* True if a character ends before text[at] and is certainly not white space. */
static bool ends_word(const uint8_t *text, size_t at) {
    const uint8_t last = text[at - 1];
    if (last < 0x80) return last > 0x20 && last < 0x7f;
    for (size_t count = 2; count <= 4 && count <= at; count++) {
        const uint8_t *character = text + at - count;
        if ((*character & 0xc0) == 0x80) continue;
        return utf8_character(character, count) == count &&
               !is_wide_space(utf8_code(character, count));
    }
    return false;
}

bool cut_is_safe(const char *text, size_t size, size_t at, const char *spaces) {
    if (at == 0 || at >= size) return false;
    return text[at] && strchr(spaces, text[at]) && ends_word((const uint8_t *)text, at);
}

size_t cut_last(const char *text, size_t size, size_t low, size_t high, const char *spaces) {
    for (size_t at = high; at >= low && at > 0; at--)
        if (cut_is_safe(text, size, at, spaces)) return at;
    return CUT_NONE;
}

size_t cut_first(const char *text, size_t size, size_t low, size_t high, const char *spaces) {
    for (size_t at = low; at <= high; at++)
        if (cut_is_safe(text, size, at, spaces)) return at;
    return CUT_NONE;
}

size_t cut_between_characters(const char *text, size_t size, size_t at) {
    for (size_t back = 0; back <= 3 && back < at; back++) {
        const size_t before = at - back;
        if (before >= size || ((uint8_t)text[before] & 0xc0) != 0x80) return before;
    }
    return at;
}
