#include "data/util/utf8.h"

#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

#include "data/util/error.h"

/* Encodes any number below 2^21 in `count` bytes, valid or not. */
static void encode(uint8_t bytes[4], uint32_t code, size_t count) {
    static const uint8_t marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = count; i-- > 1; code >>= 6) bytes[i] = (uint8_t)(0x80 | (code & 0x3f));
    bytes[0] = (uint8_t)(marks[count] | code);
}

/* Returns the size of the shortest form. */
static size_t length_of(uint32_t code) {
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

static bool is_character(uint32_t code) {
    return code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
}

/* Tries all characters, all overlong forms, all surrogates, and all codes beyond U+10FFFF. */
Test(utf8, accepts_characters_only_in_their_shortest_form) {
    static const uint32_t limits[] = {0, 0x80, 0x800, 0x10000, 0x200000};
    uint8_t bytes[4];
    for (size_t count = 1; count <= 4; count++) {
        for (uint32_t code = 0; code < limits[count]; code++) {
            encode(bytes, code, count);
            size_t expected = is_character(code) && count == length_of(code) ? count : 0;
            if (utf8_character(bytes, 4) != expected || utf8_valid(bytes, count) != (expected > 0))
                cr_assert_fail("U+%04X in %zu bytes", code, count);
        }
    }
}

/* Each byte of the longest and shortest characters of each length, one by one, through all values:
 * only what the table of the standard lists is a character. */
Test(utf8, accepts_only_valid_continuation_bytes) {
    static const struct {
        const char *text;
        int low, high; /* range of the second byte */
    } rows[] = {
        {"\xc2\x80", 0x80, 0xbf},         {"\xdf\xbf", 0x80, 0xbf},
        {"\xe0\xa0\x80", 0xa0, 0xbf},     {"\xe1\x80\x80", 0x80, 0xbf},
        {"\xec\xbf\xbf", 0x80, 0xbf},     {"\xed\x80\x80", 0x80, 0x9f},
        {"\xee\x80\x80", 0x80, 0xbf},     {"\xef\xbf\xbf", 0x80, 0xbf},
        {"\xf0\x90\x80\x80", 0x90, 0xbf}, {"\xf1\x80\x80\x80", 0x80, 0xbf},
        {"\xf3\xbf\xbf\xbf", 0x80, 0xbf}, {"\xf4\x8f\xbf\xbf", 0x80, 0x8f},
    };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
        size_t count = strlen(rows[row].text);
        for (size_t at = 1; at < count; at++) {
            for (int value = 0; value < 256; value++) {
                uint8_t bytes[5] = "";
                memcpy(bytes, rows[row].text, count);
                bytes[at] = (uint8_t)value;
                int low = at == 1 ? rows[row].low : 0x80, high = at == 1 ? rows[row].high : 0xbf;
                cr_expect_eq(utf8_character(bytes, count), value < low || value > high ? 0 : count,
                             "row %zu: byte %zu is 0x%02x", row, at, (unsigned)value);
            }
        }
    }
}

Test(utf8, refuses_invalid_first_bytes) {
    for (int lead = 0x80; lead < 256; lead++) {
        if (lead >= 0xc2 && lead <= 0xf4) continue;
        const uint8_t bytes[] = {(uint8_t)lead, 0x90, 0x90, 0x90};
        cr_expect_eq(utf8_character(bytes, sizeof bytes), 0, "0x%02x", (unsigned)lead);
    }
}

Test(utf8, refuses_truncated_characters_without_reading_beyond) {
    static const char *const texts[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x99\x82"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        size_t count = strlen(texts[i]);
        cr_expect_eq(utf8_character(texts[i], count), count);
        for (size_t size = 1; size < count; size++) {
            cr_expect_eq(utf8_character(texts[i], size), 0, "%zu of %zu bytes", size, count);
            cr_expect_not(utf8_valid(texts[i], size));
        }
    }
}

Test(utf8, checks_whole_texts) {
    cr_expect(utf8_valid("", 0));
    cr_expect(utf8_valid("a\0b", 3), "a NUL is a character");
    cr_expect(utf8_valid("na\xc3\xafve \xe2\x82\xac \xf0\x9f\x99\x82", 15));
    cr_expect_not(utf8_valid("a\x80", 2));
    cr_expect_not(utf8_valid("\xc3\xa9\xa9", 3));
    cr_expect_not(utf8_valid("ok \xe2\x82", 5));
}

Test(utf8, characters_round_trip) {
    uint8_t bytes[4], again[4];
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        if (!is_character(code)) continue;
        const size_t count = length_of(code);
        encode(bytes, code, count);
        if (utf8_code(bytes, count) != code || utf8_write(again, code) != count ||
            memcmp(bytes, again, count) != 0)
            cr_assert_fail("U+%04X", code);
    }
}

Test(utf8, characters_and_other_bytes_are_skipped) {
    static const char text[] = "eight bytes \xc3\xa4\xff\xc3 \xe6\xbc";
    const size_t size = sizeof text - 1;
    cr_expect_eq(utf8_skip_characters(text, size, 0), 14);
    cr_expect_eq(utf8_skip_characters(text, size, 14), 14);
    cr_expect_eq(utf8_skip_invalid(text, size, 14), 16);
    cr_expect_eq(utf8_skip_characters(text, size, 16), 17);
    cr_expect_eq(utf8_skip_invalid(text, size, 17), size);
    cr_expect_eq(utf8_skip_invalid(text, size, 0), 0);
    cr_expect_eq(utf8_skip_characters(text, size, size), size);
}

Test(utf8, white_space_and_counts) {
    /* All white space, and two characters beside some that are none. */
    static const char space[] = "\t\n\v\f\r\x1c\x1f \xc2\x85\xc2\xa0\xe1\x9a\x80\xe2\x80\x80"
                                "\xe2\x80\x8a\xe2\x80\xa8\xe2\x80\xa9\xe2\x80\xaf\xe2\x81\x9f"
                                "\xe3\x80\x80";
    static const char text[] = "\xe3\x80\x80 \xe2\x80\x8b \xe2\x80\x8b \n";
    const size_t size = sizeof space - 1;
    cr_expect_eq(utf8_skip_space(space, size), size);
    cr_expect_eq(utf8_trim_end(space, size), 0);
    cr_expect_eq(utf8_count(space, size), 18);
    cr_expect_eq(utf8_skip_space(text, sizeof text - 1), 4);
    cr_expect_eq(utf8_trim_end(text, sizeof text - 1), 11);
    cr_expect_eq(utf8_skip_space("", 0), 0);
    cr_expect_eq(utf8_trim_end("", 0), 0);
    cr_expect_eq(utf8_trim_end("a\x1b", 2), 2);
}

#define MASKED(text, expected) cr_expect_str_eq(utf8_mask((char[]){text}), expected)

Test(utf8, mask_replaces_control_characters_only) {
    MASKED("a\tb\n", "a\tb\n");
    MASKED("gr\xc3\xbc\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x8c\xb3 \xd8\xa7",
           "gr\xc3\xbc\xc3\x9f \xe6\x97\xa5 \xf0\x9f\x8c\xb3 \xd8\xa7");
    MASKED("\x1b[2J\r\x07\x7f", "?[2J???");
    MASKED("\xc2\x80\xc2\x9b\xc2\x9f\xc2\xa0", "???\xc2\xa0");
    MASKED("\xd8\x9c\xe2\x80\x8e\xe2\x80\x8f\xe2\x80\xaa\xe2\x80\xae", "?????");
    MASKED("\xe2\x81\xa5\xe2\x81\xa6\xe2\x81\xa9\xe2\x81\xaa", "\xe2\x81\xa5??\xe2\x81\xaa");
    MASKED("\xff\xe2\x82z\xc3", "???z?");
}

Test(utf8, messages_are_masked) {
    struct error error;
    fail(&error, "tensor %s: \xc3\xbc", "\x1b[31m\xe2\x80\xae");
    cr_expect_str_eq(error.text, "tensor ?[31m?: \xc3\xbc");
}
