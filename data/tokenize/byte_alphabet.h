/* The alphabet in which GPT-2's files write bytes, so that a token is one word of JSON or of a
 * line. Each of the 256 bytes has its own printable character. Bytes that are printable in Latin-1
 * stand for themselves (! to ~, U+00A1 to U+00AC, U+00AE to U+00FF). The other 68 become, in order,
 * U+0100 to U+0143, so a space is U+0120 and a line feed U+010A. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { BYTE_ALPHABET_TEXT_MAX = 3 };

struct byte_alphabet {
    uint16_t characters[256]; /* code point of a byte */
    int16_t bytes[0x144];     /* byte of a code point, or -1 if it is not in the alphabet */
};

void byte_alphabet_fill(struct byte_alphabet *alphabet);

/* Writes the letter of a byte in UTF-8, at most two bytes, and a NUL. */
void byte_alphabet_write(const struct byte_alphabet *alphabet, char text[BYTE_ALPHABET_TEXT_MAX],
                         uint8_t byte);

/* Decodes valid, NUL-terminated UTF-8 into bytes. Returns their number, at most strlen(text), or -1
 * if a character is not in the alphabet. */
ptrdiff_t byte_alphabet_read(const struct byte_alphabet *alphabet, uint8_t *bytes,
                             const char *text);
