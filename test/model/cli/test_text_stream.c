/* Printing of generated text: complete characters at once, and no terminal control sequences. */
#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/json_escape.h"
#include "data/util/random.h"
#include "model/cli/text_stream.h"
#include "test/bos_tokenizer.h"

static void show(FILE *out, const void *bytes, size_t size) {
    struct text_stream stream = {.out = out};
    text_stream_put(&stream, bytes, size);
    text_stream_end(&stream);
}

static void expect_shown(const char *bytes, size_t length, const char *expected) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    show(out, bytes, length);
    fclose(out);
    cr_expect_str_eq(text, expected);
    free(text);
}

#define SHOWS(bytes, expected) expect_shown(bytes, sizeof(bytes) - 1, expected)
#define BAD                    "\xef\xbf\xbd"

Test(text_stream, prints_what_is_valid_as_it_is) {
    SHOWS("", "");
    SHOWS("Once\tupon\na time ~", "Once\tupon\na time ~");
    SHOWS("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb3", "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\xb3");
    SHOWS("\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf",
          "\xc2\xa0\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf");
}

Test(text_stream, shows_controls_as_replacement) {
    SHOWS("a\0b", "a" BAD "b");
    SHOWS("\x1b[31mred\r", BAD "[31mred" BAD);
    SHOWS("\x7f\x08\x0b", BAD BAD BAD);
    SHOWS("\xe2\x80\xae\xe2\x81\xa6x", BAD BAD "x");
}

/* JSON of what a stream with keeps_controls prints. */
Test(text_stream, keeps_controls_for_json) {
    static const char bytes[] = "\"a\\\0\r\x1b\x7f\n\t\xc2\x9b\xe2\x80\xae\xff\xc3\xa9";
    char *text = NULL, *json = NULL;
    size_t size, json_size;
    FILE *out = open_memstream(&text, &size);
    struct text_stream stream = {.out = out, .keeps_controls = true};
    text_stream_put(&stream, bytes, sizeof bytes - 1);
    text_stream_end(&stream);
    fclose(out);
    out = open_memstream(&json, &json_size);
    json_print_text(out, text, size);
    fclose(out);
    cr_expect_str_eq(json,
                     "\"\\\"a\\\\\\u0000\\r\\u001b\\u007f\\n\\t\\u009b\\u202e" BAD "\xc3\xa9\"");
    free(json);
    free(text);
}

/* U+0080 to U+009F are controls: some terminals treat U+009B like ESC [. */
Test(text_stream, shows_two_byte_controls_as_replacement) {
    char *text = NULL;
    size_t size;
    for (int byte = 0x80; byte <= 0x9f; byte++) {
        const uint8_t control[] = {'x', 0xc2, (uint8_t)byte, 'y'};
        FILE *out = open_memstream(&text, &size);
        show(out, control, sizeof control);
        fclose(out);
        cr_expect_null(strchr(text, 0xc2), "U+%04X reaches the terminal", (unsigned)byte);
        cr_expect(text[0] == 'x' && text[strlen(text) - 1] == 'y');
        free(text);
    }
}

Test(text_stream, shows_invalid_utf8_as_replacement) {
    SHOWS("\x80z", BAD "z");
    SHOWS("\xff\xfe", BAD BAD);
    SHOWS("\xc3", BAD);
    SHOWS("\xe2\x82", BAD BAD);
    SHOWS("\xc3(", BAD "(");
    SHOWS("\xc0\xaf", BAD BAD);
    SHOWS("\xe0\x9f\xbf", BAD BAD BAD);
    SHOWS("\xed\xa0\x80", BAD BAD BAD);
    SHOWS("\xf0\x8f\xbf\xbf", BAD BAD BAD BAD);
    SHOWS("\xf4\x90\x80\x80", BAD BAD BAD BAD);
    SHOWS("\xf5\x80\x80\x80", BAD BAD BAD BAD);
    SHOWS("\xe2\x82\xac\xe2\x82", "\xe2\x82\xac" BAD BAD);
}

/* Random bytes become valid UTF-8 without controls. */
Test(text_stream, any_bytes_become_valid_text) {
    for (uint64_t round = 0; round < 200; round++) {
        uint8_t bytes[64];
        char *text = NULL;
        size_t size, length = random_bits(1, 0, round) % sizeof bytes;
        for (size_t i = 0; i < length; i++)
            bytes[i] = (uint8_t)random_bits(2 + round, 0, i) | (uint8_t)(round % 2 ? 0x80 : 0);
        FILE *out = open_memstream(&text, &size);
        show(out, bytes, length);
        fclose(out);
        char *again = NULL;
        size_t again_size;
        out = open_memstream(&again, &again_size);
        show(out, text, size);
        fclose(out);
        cr_expect_str_eq(again, text, "printing what was printed changed it");
        for (size_t i = 0; i < size; i++)
            cr_expect((uint8_t)text[i] >= 32 || text[i] == '\n' || text[i] == '\t');
        free(text);
        free(again);
    }
}

/* A character is printed when its last byte arrives. */
Test(text_stream, shows_characters_when_they_are_whole) {
    static const char text[] = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x8c\xb3z";
    static const size_t shown[] = {1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11}; /* after each byte */
    char *out_text = NULL;
    size_t size;
    FILE *out = open_memstream(&out_text, &size);
    struct text_stream stream = {.out = out};
    for (size_t i = 0; i < sizeof text - 1; i++) {
        text_stream_put(&stream, text + i, 1);
        fflush(out);
        cr_expect_eq(size, shown[i], "after byte %zu: %zu bytes", i, size);
    }
    text_stream_end(&stream);
    fclose(out);
    cr_expect_str_eq(out_text, text);
    free(out_text);
}

Test(text_stream, tokens_are_their_bytes) {
    struct tokenizer tokenizer;
    char *text = NULL;
    struct error error = {0};
    size_t size;
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error), 0, "%s", error.text);
    FILE *out = open_memstream(&text, &size);
    struct text_stream stream = {.out = out, .tokenizer = &tokenizer};
    text_stream_token(&stream, 0, 'h');
    text_stream_token(&stream, 0, 0xc3);
    cr_expect_eq(size, 1, "a token was not flushed, or half a character was shown");
    text_stream_token(&stream, 0, 0xa9);
    cr_expect_eq(size, 3);
    text_stream_token(&stream, 0, 9999);
    text_stream_end(&stream);
    fclose(out);
    cr_expect_str_eq(text, "h\xc3\xa9");
    free(text);
    tokenizer_close(&tokenizer);
}

/* Puts the bytes of `text` as tokens, with stop strings. Returns what is printed before the end,
 * then, after a bar, the rest. */
static char *stopped_text(const char *text, bool *stopped, int64_t *tokens, ...) {
    struct tokenizer tokenizer;
    struct error error = {0};
    char *printed = NULL, **stops = NULL;
    size_t size;
    va_list list;
    va_start(list, tokens);
    for (char *stop; (stop = va_arg(list, char *));) arrput(stops, stop);
    va_end(list);
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error), 0, "%s", error.text);
    FILE *out = open_memstream(&printed, &size);
    struct text_stream stream = {.out = out, .tokenizer = &tokenizer, .stops = stops};
    const char *at = text;
    while (*at && text_stream_token(&stream, 0, (uint8_t)*at)) at++;
    fputc('|', out);
    text_stream_end(&stream);
    fclose(out);
    *stopped = stream.stopped;
    *tokens = stream.tokens;
    arrfree(stops);
    tokenizer_close(&tokenizer);
    return printed;
}

static void expect_stopped(const char *text, const char *expected, bool stops, int64_t tokens,
                           const char *first, const char *second) {
    bool stopped;
    int64_t count;
    char *printed = stopped_text(text, &stopped, &count, first, second, NULL);
    cr_expect_str_eq(printed, expected, "\"%s\": \"%s\"", text, printed);
    cr_expect_eq(stopped, stops, "%s", text);
    cr_expect_eq(count, tokens, "%s: %d tokens", text, (int)count);
    free(printed);
}

Test(text_stream, ends_before_a_stop_string) {
    expect_stopped("one two three", "one |", true, 7, "two", "xyz");
    expect_stopped("one two", "one two|", false, 7, "twx", NULL);
    expect_stopped("one tw", "one |tw", false, 6, "two", NULL); /* held to the end */
    expect_stopped("aab", "a|", true, 3, "ab", NULL);           /* a beginning that begins again */
    expect_stopped("abcd", "a|", true, 3, "bcd", "bc");         /* the first that is complete */
    expect_stopped("xabc", "x|", true, 4, "abc", "bc");         /* the one that begins first */
    expect_stopped("stop", "|", true, 4, "stop", NULL);
}

/* A text of a batch has its own stream. */
Test(text_stream, tokens_go_to_the_stream_of_their_text) {
    struct tokenizer tokenizer;
    struct error error = {0};
    char *texts[2];
    size_t sizes[2];
    struct text_stream streams[2];
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_BYTES, NULL, &error), 0, "%s", error.text);
    for (int i = 0; i < 2; i++)
        streams[i] = (struct text_stream){.out = open_memstream(&texts[i], &sizes[i]),
                                          .tokenizer = &tokenizer};
    for (int i = 0; i < 6; i++) text_stream_token(streams, i % 2, 'a' + i);
    for (int i = 0; i < 2; i++) {
        text_stream_end(&streams[i]);
        fclose(streams[i].out);
        cr_expect_str_eq(texts[i], i ? "bdf" : "ace");
        cr_expect_eq(streams[i].last, 'e' + i);
        free(texts[i]);
    }
    tokenizer_close(&tokenizer);
}

/* As tokenizers' decode has them, with <s> in front and "a" as the last token but one. Bytes of
 * byte_fallback from 3 on. */
Test(text_stream, bytes_in_a_row_are_text_or_none_of_them_is) {
    enum { A = 260, B = 261, BYTE = 3 };
    static const struct {
        int tokens[5];
        const char *text, *stop;
    } cases[] = {
        {{A, BYTE + 'Z', B}, "aZb", NULL},
        {{BYTE + 'Z', BYTE + 0xdf, A}, BAD BAD "a", NULL},
        {{BYTE + 0xc3, BYTE + 0xa9, A},
         "\xc3\xa9"
         "a",
         NULL},
        {{BYTE + 0xc3, BYTE + 0xa9, BYTE + 0xff}, BAD BAD BAD, NULL},
        {{A, BYTE + '\n', BYTE + '\n', B}, "a\n\nb", NULL},
        {{A, BYTE + '\n', BYTE + '\n', B}, "a", "\n\n"},
        {{A, BYTE + 'Z', BYTE + '\n', B}, "aZ", "\n"},
    };
    struct tokenizer tokenizer;
    open_bos_tokenizer(&tokenizer);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text, **stops = NULL;
        size_t size;
        int at = 0;
        FILE *out = open_memstream(&text, &size);
        if (cases[i].stop) arrput(stops, (char *)cases[i].stop);
        struct text_stream stream = {.out = out, .tokenizer = &tokenizer, .stops = stops};
        while (at < 5 && cases[i].tokens[at] && text_stream_token(&stream, 0, cases[i].tokens[at]))
            at++;
        cr_expect_eq(stream.stopped, cases[i].stop != NULL);
        if (cases[i].stop) cr_expect_eq(at, 2, "a token more than needed was read");
        text_stream_end(&stream);
        fclose(out);
        cr_expect_str_eq(text, cases[i].text);
        free(text);
        arrfree(stops);
    }
    tokenizer_close(&tokenizer);
}
