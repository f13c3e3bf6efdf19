#include "data/tokenize/byte_alphabet.h"

#include <stdbool.h>

static bool is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
}

void byte_alphabet_fill(struct byte_alphabet *alphabet) {
    for (int code = 0; code < 0x144; code++) alphabet->bytes[code] = -1;
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        const int code = is_printable(byte) ? byte : next++;
        alphabet->characters[byte] = (uint16_t)code;
        alphabet->bytes[code] = (int16_t)byte;
    }
}

void byte_alphabet_write(const struct byte_alphabet *alphabet, char text[BYTE_ALPHABET_TEXT_MAX],
                         uint8_t byte) {
    const int code = alphabet->characters[byte];
    if (code >= 0x80) *text++ = (char)(0xc0 | code >> 6);
    *text++ = (char)(code < 0x80 ? code : 0x80 | (code & 0x3f));
    *text = '\0';
}

ptrdiff_t byte_alphabet_read(const struct byte_alphabet *alphabet, uint8_t *bytes,
                             const char *text) {
    ptrdiff_t count = 0;
    for (const uint8_t *at = (const uint8_t *)text; *at; at++) {
        int code = *at;
        if (code >= 0xe0) return -1;
        /* The text is valid UTF-8, so a second byte follows. */
        if (code >= 0x80) code = (code & 0x1f) << 6 | (*++at & 0x3f);
        if (code >= 0x144 || alphabet->bytes[code] < 0) return -1;
        bytes[count++] = (uint8_t)alphabet->bytes[code];
    }
    return count;
}
