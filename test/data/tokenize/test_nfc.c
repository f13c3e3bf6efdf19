/* Expected values come from Hugging Face's tokenizers. */
#include "data/tokenize/nfc.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "test/cpu_time.h"

static struct nfc nfc;

static void begin(void) {
    nfc_open(&nfc);
}

static void end(void) {
    nfc_close(&nfc);
}

TestSuite(nfc, .init = begin, .fini = end);

static void expect(const char *text, const char *expected) {
    uint8_t *out = NULL;
    nfc_apply(&nfc, &out, (const uint8_t *)text, strlen(text));
    arrput(out, '\0');
    cr_expect_str_eq((const char *)out, expected, "of %s", text);
    arrfree(out);
}

Test(nfc, letters_and_marks_become_one) {
    expect("", "");
    expect("plain", "plain");
    expect("cafe\u0301!", "caf\u00e9!");
    expect("caf\u00e9", "caf\u00e9");
    expect("\u00e9\u0323", "\u1eb9\u0301");
    expect("e\u0301\u0323x", "\u1eb9\u0301x");
    expect("a\u0315\u0300\u05ae\u0300b", "\u00e0\u05ae\u0300\u0315b");
    expect("q\u0307\u0323", "q\u0323\u0307");
    expect("\u0301a", "\u0301a");
    expect("e \u0301", "e \u0301");
    expect("\u1100\u1161\u11a8", "\uac01");
    expect("\uac00\u11a8\u11a8", "\uac01\u11a8");
    expect("\u09c7\u09be", "\u09cb");
}

Test(nfc, characters_that_are_others_and_some_that_stay_apart) {
    expect("\u212b\u2126", "\u00c5\u03a9");
    expect("\uf900\U0002f800", "\u8c48\u4e3d");
    expect("\u0958", "\u0915\u093c");
    expect("\u0915\u093c", "\u0915\u093c");
    expect("\u0344", "\u0308\u0301");
    expect("\ufb01", "\ufb01");
}

Test(nfc, marks_newer_than_unicode_9_are_ordinary) {
    expect("x\u0345\u0c3c", "x\u0345\u0c3c");
    expect("x\u0345\u1ab0", "x\u1ab0\u0345");
}

Test(nfc, invalid_bytes_are_unchanged) {
    expect("e\xff\u0301", "e\xff\u0301");
    expect("\xcc", "\xcc");
    expect("e\u0301\xcc", "\u00e9\xcc");
    expect("\xff\xcc\u0301", "\xff\xcc\u0301");
}

static void normalize_copies(const void *argument, size_t size) {
    const char *part = argument;
    uint8_t *out = NULL, *text = malloc(size);
    cr_assert_not_null(text);
    for (size_t i = 0; i < size; i++) text[i] = (uint8_t)part[i % strlen(part)];
    nfc_apply(&nfc, &out, text, size);
    arrfree(out);
    free(text);
}

Test(nfc, hostile_texts_take_linear_time) {
    static const char *const parts[] = {"e\u0301", "\u0301", "\u0345\u0301", "\u1161", "\xcc"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        cr_expect(grows_in_proportion(normalize_copies, parts[i], 1000000), "copies of part %zu",
                  i);
}
