/* Expected tokens are those of tiktoken; test/external/check_tokenizers.sh compares whole
 * vocabularies. */
#include "data/tokenize/tiktoken_vocab.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "data/tokenize/tokenizer.h"
#include "test/data/tokenize/byte_ranks.h"
#include "test/cpu_time.h"
#include "test/scratch.h"

TestSuite(tiktoken_vocab, .init = make_folder, .fini = remove_folder);

static struct subwords subwords;

static void write_line(FILE *out, const char *name, int rank) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t size = strlen(name);
    for (size_t at = 0; at < size; at += 3) {
        uint32_t bits = 0;
        for (size_t i = 0; i < 3; i++)
            bits = bits << 8 | (at + i < size ? (uint8_t)name[at + i] : 0);
        for (size_t i = 0; i < 4; i++)
            fputc(at + i <= size ? digits[bits >> (18 - 6 * i) & 63] : '=', out);
    }
    fprintf(out, " %d\n", rank);
}

static int read_texts(const char *json, const char *more) {
    char *ranks = bytes_and(more);
    const struct json_reader readers[] = {{"dir/tiktoken.json", json, strlen(json), &error},
                                          {"dir/ranks.tiktoken", ranks, strlen(ranks), &error}};
    const int status = subwords_read_tiktoken(&subwords, &readers[0], &readers[1]);
    free(ranks);
    return status;
}

static void expect_tokens(const char *text, const int32_t *expected, size_t count) {
    int32_t *tokens = NULL;
    struct subwords_encoder *encoder = subwords_encoder_open(&subwords);
    cr_assert_not_null(encoder);
    cr_expect_eq(subwords_encode(encoder, &tokens, text, strlen(text), true, &error), 0);
    cr_expect(arrlenu(tokens) == count && memcmp(tokens, expected, count * sizeof *tokens) == 0,
              "%s", text);
    arrfree(tokens);
    subwords_encoder_close(encoder);
}

Test(tiktoken_vocab, merge_pairs_that_form_a_token) {
    cr_assert_eq(read_texts(usual_json, usual_more), 0, "%s", error.text);
    cr_expect_eq(subwords.vocab_size, 301);
    expect_tokens("abc", (int32_t[]){257}, 1);
    expect_tokens("abcd", (int32_t[]){257, 'd'}, 2);
    expect_tokens("bcab", (int32_t[]){258, 256}, 2);
    expect_tokens(" ab abc<|end|>1", (int32_t[]){260, ' ', 257, 300, '1'}, 5);
    cr_expect(subwords.begin_count == 1 && subwords.begins[0] == 300);
    subwords_free(&subwords);
}

/* Makes names of up to 6 of 3 letters, whose ranks are independent of their sizes. Many have a
 * lower rank than all of their parts. */
static int make_names(char names[][8], int count, uint64_t seed) {
    int known = 0;
    for (uint64_t draw = 0; known < count; draw++) {
        char name[8] = "";
        const size_t size = 2 + random_bits(seed, 0, draw) % 5;
        for (size_t i = 0; i < size; i++)
            name[i] = (char)('a' + (random_bits(seed, 1 + i, draw) >> 20) % 3);
        int same = 0;
        while (same < known && strcmp(names[same], name) != 0) same++;
        if (same == known) strcpy(names[known++], name);
    }
    return known;
}

/* Returns the rank of this name, or INT32_MAX. */
static int32_t rank_of(char names[][8], int count, const char *text, size_t size) {
    for (int i = 0; i < count; i++)
        if (strlen(names[i]) == size && memcmp(names[i], text, size) == 0) return 256 + i;
    return size == 1 ? (uint8_t)*text : INT32_MAX;
}

/* Follows the definition, one merge after the other. */
static size_t encode_plainly(int32_t *tokens, char names[][8], int count, const char *text) {
    size_t starts[32], parts = strlen(text);
    for (size_t i = 0; i <= parts; i++) starts[i] = i;
    if (rank_of(names, count, text, parts) != INT32_MAX) starts[1] = parts, parts = 1;
    while (parts > 1) {
        size_t best = 0;
        int32_t lowest = INT32_MAX;
        for (size_t i = 0; i + 1 < parts; i++) {
            const int32_t rank = rank_of(names, count, text + starts[i], starts[i + 2] - starts[i]);
            if (rank < lowest) lowest = rank, best = i;
        }
        if (lowest == INT32_MAX) break;
        memmove(starts + best + 1, starts + best + 2, (parts - best - 1) * sizeof *starts);
        parts--;
    }
    for (size_t i = 0; i < parts; i++)
        tokens[i] = rank_of(names, count, text + starts[i], starts[i + 1] - starts[i]);
    return parts;
}

Test(tiktoken_vocab, any_order_merges_by_the_definition) {
    enum { NAMES = 60 };
    char names[NAMES][8];
    for (uint64_t seed = 0; seed < 40; seed++) {
        char *lines;
        size_t size;
        FILE *out = open_memstream(&lines, &size);
        cr_assert_not_null(out);
        const int count = make_names(names, 5 + (int)seed % (NAMES - 5), seed);
        for (int i = 0; i < count; i++) write_line(out, names[i], 256 + i);
        cr_assert_eq(fclose(out), 0);
        cr_assert_eq(read_texts("{\"pattern\": \"\\\\p{L}+\"}", lines), 0, "%s", error.text);
        for (uint64_t draw = 0; draw < 100; draw++) {
            char text[32] = "";
            int32_t expected[32];
            const size_t length = 1 + draw % 30;
            for (size_t i = 0; i < length; i++)
                text[i] = (char)('a' + (random_bits(seed, draw, i) >> 20) % 3);
            expect_tokens(text, expected, encode_plainly(expected, names, count, text));
        }
        subwords_free(&subwords);
        free(lines);
    }
}

Test(tiktoken_vocab, errors_are_named) {
    static const struct {
        const char *json, *more, *message;
    } rows[] = {
        {"{", "", "dir/tiktoken.json:1:2: expected a key"},
        {"{\"pattern\": \"a\", \"future\": 1}", "", "dir/tiktoken.json: its file has \"future\""},
        {"{\"pattern\": \"\\\\w\"}", "", "dir/tiktoken.json: the pattern that cuts text"},
        {"{}", "", "it matches the empty text"},
        {usual_json, "YWI 256\n", "dir/ranks.tiktoken: \"YWI 256\" is not a token in base64"},
        {usual_json, "YW=I 256\n", "is not a token in base64"},
        {usual_json, "YWI=\n", "is not a token in base64"},
        {usual_json, "YWI= x\n", "is not a token in base64"},
        {usual_json, "YWI= 256 7\n", "is not a token in base64"},
        {usual_json, "YWI= 99999999\n", "is not a token in base64"},
        {usual_json, "YWI= 255\n", "\"ab\" has the number of another token"},
        {usual_json, "YWI= 256\nYWI= 257\n", "\"ab\" appears twice"},
        {usual_json, "YWI= 300\n",
         "dir/tiktoken.json: the token \"<|end|>\" is added with the number"},
        {"{\"pattern\": \"a\", \"special_tokens\": []}", "", "special_tokens"},
        {"{\"pattern\": \"a\", \"begin\": \"x\"}", "", "begin, which is no special token, \"x\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status = read_texts(rows[i].json, rows[i].more);
        cr_expect_eq(status, -1, "expected: %s", rows[i].message);
        cr_expect_not_null(strstr(error.text, rows[i].message), "\"%s\" is not in: %s",
                           rows[i].message, error.text);
        cr_expect_eq(subwords.vocab_size, 0);
    }
}

/* The first of these took 3 seconds before known sizes were checked. */
Test(tiktoken_vocab, long_tokens_load_quickly_or_not_at_all) {
    char *lines, *name = malloc(70000);
    size_t size;
    cr_assert_not_null(name);
    memset(name, 'a', 70000);
    for (int extra = 0; extra < 2; extra++) {
        FILE *out = open_memstream(&lines, &size);
        cr_assert_not_null(out);
        name[65536 + extra] = '\0';
        write_line(out, name, 256);
        cr_assert_eq(fclose(out), 0);
        const double begin = cpu_seconds();
        cr_expect_eq(read_texts("{\"pattern\": \"\\\\p{L}+\"}", lines), -extra, "%s", error.text);
        cr_expect_lt(cpu_seconds() - begin, 1);
        subwords_free(&subwords);
        free(lines);
        name[65536 + extra] = 'a';
    }
    cr_expect_not_null(strstr(error.text, "rank 256 has more than 65536 bytes"), "%s", error.text);
    free(name);
}

/* ---- folders, through tokenizer_open */

static void write_text(const char *name, const char *text) {
    cr_assert_eq(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error), 0);
}

/* Gemma's tokenizers have </s> as a tag of HTML. */
Test(tiktoken_vocab, texts_end_with_eos_rather_than_s) {
    static const struct {
        const char *special;
        int stop;
    } rows[] = {{"\"</s>\": 300, \"<eos>\": 301", 301}, {"\"</s>\": 300, \"<s>\": 301", 300}};
    char *ranks = bytes_and("");
    write_text("ranks.tiktoken", ranks);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tokenizer tokenizer;
        char json[200];
        snprintf(json, sizeof json, "{\"pattern\": \"a\", \"special_tokens\": {%s}}",
                 rows[i].special);
        write_text("tiktoken.json", json);
        cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error), 0, "%s",
                     error.text);
        cr_expect_eq(tokenizer.stop, rows[i].stop, "%d", tokenizer.stop);
        tokenizer_close(&tokenizer);
    }
    free(ranks);
}

Test(tiktoken_vocab, a_folder_of_them_is_a_tokenizer) {
    struct tokenizer tokenizer;
    char *ranks = bytes_and(usual_more);
    int32_t *tokens = NULL;
    write_text("tiktoken.json", usual_json);
    cr_expect_not(tokenizer_in_directory(folder));
    write_text("ranks.tiktoken", ranks);
    cr_expect(tokenizer_in_directory(folder));
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, folder, &error), 0, "%s", error.text);
    cr_expect_eq(tokenizer.kind, TOKENIZER_FILES, "by whatever name it was asked for");
    cr_expect_eq(tokenizer.vocab_size, 301);
    cr_expect_eq(tokenizer.end_of_text, 300);
    cr_expect_eq(tokenizer.stop, 300, "there is no other");
    cr_expect_eq(tokenizer.file_count, 2);
    cr_expect_str_eq(tokenizer.cuts_before, " \n\r\t");
    cr_expect_eq(strlen(tokenizer.sha256), SHA256_HEX_MAX - 1);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    cr_assert_not_null(encoder);
    tokenizer_encode(encoder, &tokens, "abc ab<|end|>", 13, true, &error);
    cr_assert_eq(arrlenu(tokens), 3);
    cr_expect(tokens[0] == 257 && tokens[1] == 260 && tokens[2] == 300);
    size_t size;
    cr_expect_eq(memcmp(tokenizer_bytes(&tokenizer, 257, &size), "abc", 3), 0);
    cr_expect_eq(size, 3);
    tokenizer_encode(encoder, &tokens, "<|end|>", 7, false, &error);
    cr_expect_eq(tokens[3], '<');
    tokenizer_encoder_close(encoder);
    tokenizer_close(&tokenizer);
    arrfree(tokens);
    free(ranks);
}

Test(tiktoken_vocab, too_large_a_vocabulary_is_refused) {
    struct tokenizer tokenizer;
    char *ranks = bytes_and("YWI= 1048576\n");
    write_text("tiktoken.json", usual_json);
    write_text("ranks.tiktoken", ranks);
    cr_expect_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, folder, &error), -1);
    cr_expect_not_null(strstr(error.text, "has no valid number"), "%s", error.text);
    free(ranks);
}
