#include "data/base/utf8.h"

#include <stdint.h>

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
