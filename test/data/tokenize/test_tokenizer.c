/* Fixtures: test/golden/tokenizer/cases.txt, made by Hugging Face's tokenizers (see README.md
 * there). The tests with GPT-2's own vocabulary need its files, which cannot be distributed: set
 * GPT2_DIR=DIR, and TINYSHAKESPEARE=FILE for that text. Otherwise they print that they were
 * skipped. */
#include "data/tokenize/tokenizer.h"

#include <pthread.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"
#include "data/tokenize/subwords.h"
#include "test/cpu_time.h"
#include "test/scratch.h"

#define GOLDEN "test/golden/tokenizer/"

TestSuite(tokenizer, .init = make_folder, .fini = remove_folder);

static void open_tokenizer(struct tokenizer *tokenizer, const char *directory) {
    cr_assert_eq(tokenizer_open(tokenizer, TOKENIZER_GPT2, directory, &error), 0, "%s", error.text);
}

/* Returns the tokens of a text, an stb_ds array, by a new encoder. */
static int32_t *encode(const struct tokenizer *tokenizer, const void *text, size_t size,
                       bool special) {
    int32_t *tokens = NULL;
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    cr_assert_not_null(encoder);
    cr_assert_eq(tokenizer_encode(encoder, &tokens, text, size, special, &error), 0);
    tokenizer_encoder_close(encoder);
    return tokens;
}

static void expect_decoded(const struct tokenizer *tokenizer, const int32_t *tokens,
                           const void *text, size_t size) {
    size_t at = 0, length;
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        const uint8_t *bytes = tokenizer_bytes(tokenizer, tokens[i], &length);
        cr_assert(length > 0 && length <= size - at);
        cr_assert_eq(memcmp(bytes, (const char *)text + at, length), 0);
        at += length;
    }
    cr_assert_eq(at, size);
}

/* ---- the fixtures */

/* Number of cases, so that none is missed. */
enum { CASES = 105, SPECIAL_CASES = 9 };

/* Decodes \xNN in place; returns the size. */
static size_t unescape(char *text) {
    char *out = text;
    unsigned value;
    for (const char *in = text; *in; in++) {
        if (*in == '\\' && sscanf(in, "\\x%2x", &value) == 1) {
            *out++ = (char)value;
            in += 3;
        } else {
            *out++ = *in;
        }
    }
    return (size_t)(out - text);
}

static const char *after(const char *line, const char *word) {
    const size_t length = strlen(word);
    return strncmp(line, word, length) == 0 && (line[length] == ' ' || line[length] == '\0')
               ? line + length
               : NULL;
}

static void expect_tokens(const struct tokenizer *tokenizer, const char *text, size_t size,
                          bool special, const char *numbers) {
    int32_t *tokens = encode(tokenizer, text, size, special), *expected = NULL;
    char *end;
    for (; *numbers; numbers = end) arrput(expected, (int32_t)strtol(numbers, &end, 10));
    cr_expect(arrlenu(tokens) == arrlenu(expected) &&
                  (size == 0 || memcmp(tokens, expected, arrlenu(tokens) * sizeof *tokens) == 0),
              "%s text: %.*s", special ? "special" : "plain", (int)size, text);
    expect_decoded(tokenizer, tokens, text, size);
    arrfree(tokens);
    arrfree(expected);
}

/* Mixes the texts to about 1 MB, in the order of a linear congruential generator. */
static char *mix(char **texts, const size_t *sizes) {
    char *mixed = NULL;
    uint32_t state = 1;
    while (arrlenu(mixed) < 1000000) {
        state = (state * 1103515245 + 12345) & 0x7fffffff;
        const size_t i = (state >> 16) % arrlenu(texts);
        if (sizes[i]) memcpy(arraddnptr(mixed, sizes[i]), texts[i], sizes[i]);
    }
    return mixed;
}

/* Checks a line "hash NAME BYTES SHA VOCABULARY COUNT SHA". Returns true if it has that name. */
static bool expect_hash(const struct tokenizer *tokenizer, const char *vocabulary, const char *line,
                        const char *name, const char *text, size_t size) {
    char found_name[32], found_vocabulary[32], text_hash[65], tokens_hash[65], hex[SHA256_HEX_MAX];
    size_t bytes, count;
    cr_assert_eq(sscanf(line, "hash %31s %zu %64s %31s %zu %64s", found_name, &bytes, text_hash,
                        found_vocabulary, &count, tokens_hash),
                 6);
    if (strcmp(name, found_name) != 0 || strcmp(vocabulary, found_vocabulary) != 0) return false;
    sha256_of(hex, text, size);
    cr_assert_eq(size, bytes);
    cr_assert_str_eq(hex, text_hash, "this is not the text that the fixtures were made of");
    int32_t *tokens = encode(tokenizer, text, size, false);
    cr_assert_eq(arrlenu(tokens), count);
    uint16_t *narrow = malloc(count * sizeof *narrow);
    for (size_t i = 0; i < count; i++) narrow[i] = (uint16_t)tokens[i];
    sha256_of(hex, narrow, count * sizeof *narrow);
    free(narrow);
    cr_expect_str_eq(hex, tokens_hash);
    expect_decoded(tokenizer, tokens, text, size);
    arrfree(tokens);
    return true;
}

static bool expect_shakespeare(const struct tokenizer *tokenizer, const char *vocabulary,
                               const char *line) {
    const char *path = getenv("TINYSHAKESPEARE");
    char *text;
    size_t size;
    if (!path) return false;
    cr_assert_eq(file_read_all(&text, &size, path, 2 << 20, &error), 0, "%s", error.text);
    const bool found = expect_hash(tokenizer, vocabulary, line, "tinyshakespeare", text, size);
    free(text);
    return found;
}

/* Checks the fixtures with one vocabulary. */
static void expect_cases(const char *directory, const char *vocabulary) {
    struct tokenizer tokenizer;
    char *file, special_name[32], **texts = NULL;
    size_t file_size, *sizes = NULL;
    int plain_count = 0, special_count = 0, hash_count = 0;
    snprintf(special_name, sizeof special_name, "%s-special", vocabulary);
    open_tokenizer(&tokenizer, directory);
    cr_assert_eq(file_read_all(&file, &file_size, GOLDEN "cases.txt", 1 << 20, &error), 0, "%s",
                 error.text);
    for (char *line = file, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = '\0';
        const char *rest;
        const ptrdiff_t last = arrlen(texts) - 1;
        if (after(line, "text")) {
            arrput(texts, line + strlen("text "));
            arrput(sizes, unescape(line + strlen("text ")));
        } else if ((rest = after(line, vocabulary))) {
            expect_tokens(&tokenizer, texts[last], sizes[last], false, rest);
            plain_count++;
        } else if ((rest = after(line, special_name))) {
            expect_tokens(&tokenizer, texts[last], sizes[last], true, rest);
            special_count++;
        } else if (after(line, "hash mix")) {
            char *mixed = mix(texts, sizes);
            hash_count += expect_hash(&tokenizer, vocabulary, line, "mix", mixed, arrlenu(mixed));
            arrfree(mixed);
        } else if (after(line, "hash")) {
            hash_count += expect_shakespeare(&tokenizer, vocabulary, line);
        }
    }
    cr_expect_eq(plain_count, CASES);
    cr_expect_eq(special_count, SPECIAL_CASES);
    cr_expect_eq(hash_count, getenv("TINYSHAKESPEARE") ? 2 : 1);
    arrfree(texts);
    arrfree(sizes);
    free(file);
    tokenizer_close(&tokenizer);
}

Test(tokenizer, tokens_are_those_of_hugging_face) {
    expect_cases(GOLDEN "small", "small");
}

Test(tokenizer, tokens_are_the_same_from_one_file) {
    expect_cases(GOLDEN "small_whole", "small");
}

/* Returns a variable with the path of a file that cannot be distributed. Without it, prints a line,
 * since the runner does not mention skipped tests. */
static const char *given_by(const char *variable, const char *what) {
    const char *value = getenv(variable);
    if (!value) fprintf(stderr, "skipped: %s: %s is not set\n", what, variable);
    return value;
}

Test(tokenizer, tokens_are_those_of_gpt2) {
    const char *directory = given_by("GPT2_DIR", "tokens of GPT-2's own vocabulary");
    if (!directory) cr_skip_test("GPT2_DIR is not set");
    struct tokenizer tokenizer;
    open_tokenizer(&tokenizer, directory);
    cr_expect_eq(tokenizer.vocab_size, 50257);
    cr_expect_eq(tokenizer.end_of_text, 50256);
    tokenizer_close(&tokenizer);
    expect_cases(directory, "gpt2");
    given_by("TINYSHAKESPEARE", "tinyshakespeare's tokens");
}

/* ---- any bytes */

Test(tokenizer, any_bytes_round_trip) {
    struct tokenizer tokenizer;
    open_tokenizer(&tokenizer, GOLDEN "small");
    uint8_t text[3000];
    for (uint64_t seed = 0; seed < 300; seed++) {
        const uint64_t limit = seed % 3 == 0 ? 256 : seed % 3 == 1 ? 128 : 0x30;
        for (size_t i = 0; i < sizeof text; i++)
            text[i] = (uint8_t)(random_bits(seed, 0, i) % limit + (seed % 3 == 2 ? 0xb0 : 0));
        const size_t size = random_bits(seed, 1, 0) % sizeof text;
        int32_t *tokens = encode(&tokenizer, text, size, seed & 1);
        expect_decoded(&tokenizer, tokens, text, size);
        arrfree(tokens);
    }
    tokenizer_close(&tokenizer);
}

/* Cached tokens equal merged ones, before and after another piece used the same slot. */
Test(tokenizer, pieces_seen_before_have_the_same_tokens) {
    struct tokenizer tokenizer;
    struct merges_scratch scratch = {0};
    open_tokenizer(&tokenizer, GOLDEN "small");
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    int32_t *tokens = NULL, *expected = NULL;
    for (uint64_t i = 0; i < 400000; i++) {
        char piece[40];
        const uint64_t number = random_bits(3, 0, i) % (i % 2 ? 300 : 200000);
        const int size = snprintf(piece, sizeof piece, "%.*s", (int)(number % 37),
                                  "theanotherofthewordswhichfollowtherest");
        char *word = piece + (size ? number / 37 % (uint64_t)size : 0);
        for (char *c = word; *c; c++) *c = (char)('a' + (*c + number / 1369) % 26);
        arrsetlen(tokens, 0);
        arrsetlen(expected, 0);
        tokenizer_encode(encoder, &tokens, word, strlen(word), false, &error);
        byte_tokens_merge(&tokenizer.subwords->bytes, &tokenizer.subwords->merges, &scratch,
                          &expected, (uint8_t *)word, strlen(word));
        cr_assert_eq(arrlenu(tokens), arrlenu(expected), "%s", word);
        cr_assert(*word == '\0' || memcmp(tokens, expected, arrlenu(tokens) * sizeof *tokens) == 0,
                  "%s", word);
    }
    arrfree(tokens);
    arrfree(expected);
    merges_scratch_free(&scratch);
    tokenizer_encoder_close(encoder);
    tokenizer_close(&tokenizer);
}

static void *encode_in_thread(void *argument) {
    static const char text[] = "Threads share a tokenizer, each has an encoder of its own. ";
    const struct tokenizer *tokenizer = argument;
    int32_t *tokens = NULL;
    for (int i = 0; i < 200; i++) {
        arrfree(tokens);
        tokens = encode(tokenizer, text, sizeof text - 1, true);
    }
    return tokens;
}

Test(tokenizer, threads_share_it) {
    struct tokenizer tokenizer;
    pthread_t threads[4];
    open_tokenizer(&tokenizer, GOLDEN "small");
    int32_t *expected = encode_in_thread(&tokenizer);
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, encode_in_thread, &tokenizer), 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        int32_t *tokens = result;
        cr_assert_eq(arrlenu(tokens), arrlenu(expected));
        cr_expect_eq(memcmp(tokens, expected, arrlenu(expected) * sizeof *expected), 0);
        arrfree(tokens);
    }
    arrfree(expected);
    tokenizer_close(&tokenizer);
}

struct copies {
    const struct tokenizer *tokenizer;
    const char *part; /* "random" stands for letters without a space */
};

static void encode_copies(const void *argument, size_t size) {
    const struct copies *copies = argument;
    const bool is_random = strcmp(copies->part, "random") == 0;
    const size_t length = strlen(copies->part);
    char *text = malloc(size);
    cr_assert_not_null(text);
    for (size_t i = 0; i < size; i++)
        text[i] = is_random ? (char)('a' + random_bits(1, 0, i) % 26) : copies->part[i % length];
    int32_t *tokens = encode(copies->tokenizer, text, size, true);
    arrfree(tokens);
    free(text);
}

Test(tokenizer, hostile_texts_take_linear_time) {
    static const char *const parts[] = {
        "a",        "random", " ",  "\n", "\xf0\x9f\x98\x80", "\xff",
        "\xff\xe2", "a\xff",  "ab", "=",  "<|endoftext",      "'s"};
    struct tokenizer tokenizer;
    open_tokenizer(&tokenizer, GOLDEN "small");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const struct copies copies = {&tokenizer, parts[i]};
        cr_expect(grows_in_proportion(encode_copies, &copies, 1000000), "copies of part %zu", i);
    }
    tokenizer_close(&tokenizer);
}

/* ---- bytes */

Test(tokenizer, bytes_are_tokens) {
    struct tokenizer tokenizer;
    uint8_t text[256 + 13];
    for (int i = 0; i < 256; i++) text[i] = (uint8_t)i;
    memcpy(text + 256, "<|endoftext|>", 13);
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_BYTES, "no such folder", &error), 0);
    cr_expect_eq(tokenizer.vocab_size, 256);
    cr_expect_eq(tokenizer.end_of_text, -1);
    cr_expect_null(tokenizer.subwords);
    int32_t *tokens = encode(&tokenizer, text, sizeof text, true);
    cr_assert_eq(arrlenu(tokens), sizeof text);
    for (size_t i = 0; i < sizeof text; i++) cr_expect_eq(tokens[i], text[i]);
    expect_decoded(&tokenizer, tokens, text, sizeof text);
    arrfree(tokens);
    tokenizer_close(&tokenizer);
}

Test(tokenizer, bytes_have_a_file_that_reads_as_the_same_tokens) {
    struct tokenizer bytes, same;
    uint8_t text[512];
    for (int i = 0; i < 512; i++) text[i] = (uint8_t)(i * 7 + i / 256);
    cr_assert_eq(tokenizer_open(&bytes, TOKENIZER_BYTES, NULL, &error), 0);
    cr_assert_eq(bytes.file_count, 1);
    cr_assert_str_eq(bytes.files[0].name, "tokenizer.json");
    cr_assert_eq(file_write_whole(in_folder("tokenizer.json"), bytes.files[0].bytes,
                                  bytes.files[0].size, NULL, &error),
                 0);
    open_tokenizer(&same, folder);
    cr_expect_eq(same.vocab_size, 256);
    cr_expect_eq(same.end_of_text, -1);
    cr_expect_str_eq(same.files[0].sha256, bytes.files[0].sha256);
    int32_t *tokens = encode(&same, text, sizeof text, true);
    cr_assert_eq(arrlenu(tokens), sizeof text);
    for (size_t i = 0; i < sizeof text; i++) cr_expect_eq(tokens[i], text[i]);
    arrfree(tokens);
    tokenizer_close(&same);
    tokenizer_close(&bytes);
}

/* ---- files */

static void copy_file(const char *from, const char *name) {
    char *bytes;
    size_t size;
    cr_assert_eq(file_read_all(&bytes, &size, from, 1 << 20, &error), 0, "%s", error.text);
    cr_assert_eq(file_write_whole(in_folder("%s", name), bytes, size, NULL, &error), 0, "%s",
                 error.text);
    free(bytes);
}

static void write_file(const char *name, const char *text) {
    cr_assert_eq(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error), 0);
}

static void expect_refused(const char *directory, const char *message) {
    struct tokenizer tokenizer;
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, directory, &error), -1, "expected: %s",
                 message);
    cr_expect_not_null(strstr(error.text, message), "\"%s\" is not in: %s", message, error.text);
    cr_expect_null(tokenizer.subwords);
    tokenizer_close(&tokenizer);
}

Test(tokenizer, files_are_kept_with_their_hashes) {
    static const char *const names[] = {"vocab.json", "merges.txt", "tokenizer.json"};
    struct tokenizer tokenizer;
    copy_file(GOLDEN "small/vocab.json", "vocab.json");
    copy_file(GOLDEN "small/merges.txt", "merges.txt");
    copy_file(GOLDEN "small_whole/tokenizer.json", "tokenizer.json");
    open_tokenizer(&tokenizer, folder);
    cr_assert_eq(tokenizer.file_count, 3);
    for (int i = 0; i < 3; i++) {
        char hex[SHA256_HEX_MAX];
        uint64_t size;
        cr_assert_str_eq(tokenizer.files[i].name, names[i]);
        cr_assert_eq(sha256_file(hex, &size, in_folder("%s", names[i]), &error), 0);
        cr_expect_str_eq(tokenizer.files[i].sha256, hex);
        cr_assert_eq(tokenizer.files[i].size, size);
        sha256_of(hex, tokenizer.files[i].bytes, size);
        cr_expect_str_eq(tokenizer.files[i].sha256, hex);
    }
    tokenizer_close(&tokenizer);
    cr_expect_eq(tokenizer.file_count, 0);
    tokenizer_close(&tokenizer);
}

Test(tokenizer, a_folder_without_the_files_is_refused) {
    expect_refused(in_folder("none"), "no such directory: ");
    expect_refused("", "no such directory: ");
    SUCCEEDS(file_write_whole(in_folder("a.gguf"), "GGUF", 4, NULL, &error));
    SUCCEEDS(file_write_whole(in_folder("tokenizer.json"), "{}", 2, NULL, &error));
    expect_refused(in_folder("a.gguf"), "a.gguf is a GGUF file, which cannot be read");
    expect_refused(in_folder("tokenizer.json"),
                   "tokenizer.json is a file, but a model is a folder");
    cr_assert_eq(remove(in_folder("tokenizer.json")), 0);
    expect_refused(folder, "holds no tokenizer\nit needs vocab.json and merges.txt, or tokenizer");
    cr_expect_not(tokenizer_in_directory(folder));
    copy_file(GOLDEN "small/merges.txt", "merges.txt");
    expect_refused(folder, "has no vocab.json");
    cr_expect_not(tokenizer_in_directory(folder));
    copy_file(GOLDEN "small/vocab.json", "vocab.json");
    cr_expect(tokenizer_in_directory(folder));
    cr_assert_eq(remove(in_folder("merges.txt")), 0);
    expect_refused(folder, "has no merges.txt");
    cr_expect_not(tokenizer_in_directory(folder));
    cr_assert_eq(directory_create(in_folder("merges.txt"), &error), 0);
    expect_refused(folder, "merges.txt: it is a directory");
}

/* vocab.json alone is ignored beside tokenizer.json. */
Test(tokenizer, one_file_is_enough) {
    struct tokenizer tokenizer;
    copy_file(GOLDEN "small_whole/tokenizer.json", "tokenizer.json");
    write_file("vocab.json", "{}");
    cr_expect(tokenizer_in_directory(folder));
    open_tokenizer(&tokenizer, folder);
    cr_expect_eq(tokenizer.file_count, 1);
    tokenizer_close(&tokenizer);
}

Test(tokenizer, files_that_contradict_each_other_are_refused) {
    struct tokenizer bytes;
    copy_file(GOLDEN "small/vocab.json", "vocab.json");
    copy_file(GOLDEN "small/merges.txt", "merges.txt");
    cr_assert_eq(tokenizer_open(&bytes, TOKENIZER_BYTES, NULL, &error), 0);
    write_file("tokenizer.json", bytes.files[0].bytes);
    expect_refused(folder, "vocab.json has 1200 tokens, but ");
    cr_expect_not_null(strstr(error.text, "tokenizer.json has 256"), "%s", error.text);
    tokenizer_close(&bytes);
    write_file("tokenizer.json", "{");
    expect_refused(folder, "tokenizer.json:1:2: expected a key");
    copy_file(GOLDEN "small_whole/tokenizer.json", "tokenizer.json");
    write_file("merges.txt", "a\n");
    expect_refused(folder, "merges.txt: merge 0: a merge must be");
    write_file("merges.txt", "t h\n");
    expect_refused(folder, "disagree on the merges");
}

Test(tokenizer, tokens_outside_the_vocabulary_have_no_bytes) {
    struct tokenizer tokenizer;
    size_t size;
    open_tokenizer(&tokenizer, GOLDEN "small");
    static const int none[] = {-1, 1200, 65535, 1 << 30};
    for (int i = 0; i < 4; i++) {
        cr_expect_not_null(tokenizer_bytes(&tokenizer, none[i], &size));
        cr_expect_eq(size, 0);
    }
    const uint8_t *bytes = tokenizer_bytes(&tokenizer, tokenizer.end_of_text, &size);
    cr_assert_eq(size, 13);
    cr_expect_eq(memcmp(bytes, "<|endoftext|>", 13), 0);
    tokenizer_close(&tokenizer);
}
