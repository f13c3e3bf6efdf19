#include "data/tokenize/byte_alphabet.h"

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

Test(byte_alphabet, every_byte_has_its_own_letter) {
    struct byte_alphabet alphabet;
    bool seen[0x144] = {false};
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++) {
        const int code = alphabet.characters[byte];
        cr_assert_lt(code, 0x144);
        cr_expect_not(seen[code], "U+%04X stands for two bytes", (unsigned)code);
        seen[code] = true;
        cr_expect_eq(alphabet.bytes[code], byte);
        /* No white space, no control character, no soft hyphen. */
        cr_expect(code > ' ' && code != 0x7f && !(code >= 0x80 && code <= 0xa0) && code != 0xad);
    }
    int letters = 0;
    for (int code = 0; code < 0x144; code++) letters += alphabet.bytes[code] >= 0;
    cr_expect_eq(letters, 256);
}

Test(byte_alphabet, writes_the_letters_of_gpt2) {
    static const struct {
        int byte;
        const char *letter;
    } rows[] = {{'!', "!"},         {'~', "~"},         {0, "\xc4\x80"},    {'\n', "\xc4\x8a"},
                {' ', "\xc4\xa0"},  {0x7f, "\xc4\xa1"}, {0xa0, "\xc5\x82"}, {0xa1, "\xc2\xa1"},
                {0xac, "\xc2\xac"}, {0xad, "\xc5\x83"}, {0xff, "\xc3\xbf"}};
    struct byte_alphabet alphabet;
    byte_alphabet_fill(&alphabet);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char text[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, text, (uint8_t)rows[i].byte);
        cr_expect_str_eq(text, rows[i].letter, "byte 0x%02x", (unsigned)rows[i].byte);
    }
}

Test(byte_alphabet, reads_what_it_writes) {
    struct byte_alphabet alphabet;
    char text[256 * BYTE_ALPHABET_TEXT_MAX] = "";
    uint8_t bytes[sizeof text];
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++)
        byte_alphabet_write(&alphabet, text + strlen(text), (uint8_t)byte);
    cr_assert_eq(byte_alphabet_read(&alphabet, bytes, text), 256);
    for (int byte = 0; byte < 256; byte++) cr_expect_eq(bytes[byte], byte);
    cr_expect_eq(byte_alphabet_read(&alphabet, bytes, ""), 0);
}

Test(byte_alphabet, refuses_other_characters) {
    static const char *const texts[] = {
        " ",         "a b",      "\x7f",     "\n",           "\xc2\x80",        "\xc2\xa0",
        "a\xc2\xad", "\xc5\x84", "\xce\xb1", "\xe6\xbc\xa2", "\xf0\x9f\x98\x80"};
    struct byte_alphabet alphabet;
    uint8_t bytes[16];
    byte_alphabet_fill(&alphabet);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        cr_expect_eq(byte_alphabet_read(&alphabet, bytes, texts[i]), -1, "%s", texts[i]);
}
