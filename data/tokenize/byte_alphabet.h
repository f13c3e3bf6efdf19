/* The letters in which GPT-2's files write bytes, so that a token is a word of JSON or of a line:
 * each of the 256 bytes has a printable character of its own. Bytes that are printable in Latin-1
 * are written as themselves (! to ~, U+00A1 to U+00AC, U+00AE to U+00FF); the other 68 are, in
 * their order, U+0100 to U+0143. A space is thus U+0120, a line feed U+010A. */
#pragma once

#include <stddef.h>
#include <stdint.h>

enum { BYTE_ALPHABET_TEXT_MAX = 3 };

struct byte_alphabet {
    uint16_t characters[256]; /* code point of a byte's letter */
    int16_t bytes[0x144];     /* byte of a code point, -1 where it is no letter */
};

void byte_alphabet_fill(struct byte_alphabet *alphabet);

/* The letter of a byte in UTF-8, two bytes at most, and a NUL. */
void byte_alphabet_write(const struct byte_alphabet *alphabet, char text[BYTE_ALPHABET_TEXT_MAX],
                         uint8_t byte);

/* Turns valid UTF-8 that ends with NUL into the bytes that its letters stand for. Returns how many
 * there are (at most strlen(text)), or -1 when a character is no letter of the alphabet. */
ptrdiff_t byte_alphabet_read(const struct byte_alphabet *alphabet, uint8_t *bytes,
                             const char *text);
