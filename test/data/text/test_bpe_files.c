#include "data/text/bpe_files.h"

#include <criterion/criterion.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/text/byte_alphabet.h"
#include "data/base/error.h"

static struct bpe bpe;
static struct error error;

static void end(void) {
    bpe_free(&bpe);
}

TestSuite(bpe_files, .fini = end);

/* Texts to be read, each in one of a few buffers that take turns. */
__attribute__((format(printf, 1, 2))) static char *text_of(const char *format, ...) {
    static char buffers[8][8192];
    static int turn;
    char *text = buffers[turn++ % 8];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof *buffers, format, arguments);
    va_end(arguments);
    cr_assert_lt(length, (int)sizeof *buffers);
    return text;
}

/* The members of a vocabulary: the bytes, whose token is their value, then `more`. */
static char *vocabulary(const char *more) {
    struct byte_alphabet alphabet;
    char text[4096] = "";
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++) {
        char letter[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, letter, (uint8_t)byte);
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s\"%s%s\": %d",
                 byte ? ", " : "", byte == '"' || byte == '\\' ? "\\" : "", letter, byte);
    }
    return text_of("%s%s", text, more);
}

static const char more_tokens[] =
    ", \"th\": 256, \"the\": 257, \"\\u0120the\": 258, \"<|endoftext|>\": 259";
static const char usual_merges[] = "#version: 0.2\nt h\nth e\n\xc4\xa0 the\n";

static struct bpe_file file_of(const char *path, const char *text) {
    return (struct bpe_file){.path = path, .bytes = text, .size = strlen(text)};
}

static int read_pair(const char *vocab, const char *merges) {
    const struct bpe_file files[] = {file_of("dir/vocab.json", vocab),
                                     file_of("dir/merges.txt", merges)};
    bpe_free(&bpe);
    return bpe_read_vocab_and_merges(&bpe, &files[0], &files[1], &error);
}

static int read_whole(const char *text) {
    const struct bpe_file file = file_of("dir/tokenizer.json", text);
    bpe_free(&bpe);
    return bpe_read_tokenizer(&bpe, &file, &error);
}

static void expect_usual(void) {
    cr_assert_eq(bpe.vocab_size, 260);
    cr_expect_eq(bpe.end_of_text, 259);
    struct merge *merges = merges_list(&bpe.merges);
    cr_assert_eq(arrlen(merges), 3);
    cr_expect(merges[2].left == ' ' && merges[2].right == 257 && merges[2].token == 258);
    arrfree(merges);
    cr_expect_eq(memcmp(bpe.bytes + bpe.starts[258], " the", 4), 0);
    cr_expect_not(bpe.whole_text);
}

static void expect_failure(int status, const char *message) {
    cr_assert_eq(status, -1, "expected: %s", message);
    cr_expect_not_null(strstr(error.text, message), "\"%s\" is not in: %s", message, error.text);
    cr_expect_eq(bpe.vocab_size, 0);
    cr_expect_null(bpe.bytes);
}

Test(bpe_files, vocabulary_and_merges) {
    cr_assert_eq(read_pair(text_of("{%s}", vocabulary(more_tokens)), usual_merges), 0, "%s",
                 error.text);
    expect_usual();
}

Test(bpe_files, lines_of_merges_may_end_in_any_way) {
    static const char *const texts[] = {
        "#version: 0.2\r\nt h\r\nth e\r\n\xc4\xa0 the\r\n",
        "t h\nth e\n\xc4\xa0 the",
        "#version: 0.2 - made by hand\nt h\nth e\n#version: 3\n\xc4\xa0 the\n\n\r\n\n",
    };
    const char *vocab = text_of("\n {%s} \t\r\n", vocabulary(more_tokens));
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        cr_assert_eq(read_pair(vocab, texts[i]), 0, "%s", error.text);
        expect_usual();
    }
}

/* A merge may begin with the letter #. */
Test(bpe_files, only_the_version_is_a_comment) {
    const char *vocab = text_of("{%s}", vocabulary(", \"##\": 256, \"#ver\": 258, \"ver\": 257"));
    expect_failure(read_pair(vocab, "# #\n# ver\nv er\n"),
                   "line 3: \"er\" is not in the vocabulary");
    cr_assert_eq(read_pair(vocab, "# #\n# ver\n"), 0, "%s", error.text);
    cr_expect_eq(bpe.merges.count, 2);
    cr_expect_eq(bpe.end_of_text, -1);
}

Test(bpe_files, wrong_merges_are_named_by_line) {
    static const struct {
        const char *merges, *message;
    } rows[] = {
        {"", "dir/merges.txt is empty"},
        {"#version: 0.2\nth\n", "dir/merges.txt, line 2: this is not two tokens"},
        {"t h\nth e \n", "dir/merges.txt, line 2: this is not two tokens"},
        {"t h\n th\n", "line 2: this is not two tokens"},
        {"t  h\n", "line 1: this is not two tokens"},
        {"t h e\n", "line 1: this is not two tokens"},
        {"t h\n\nth e\n", "line 3: it follows an empty line"},
        {"t h\n#versiom x\n", "line 2: \"#versiom\" is not in the vocabulary"},
        {"t h\nh q\n", "line 2: \"hq\", the result of the merge, is not in the vocabulary"},
        {"t h\nth e\nt h\n", "line 3: \"t h\" is merged a second time"},
        {"t \xff\n", "dir/merges.txt is not UTF-8 text"},
    };
    const char *vocab = text_of("{%s}", vocabulary(more_tokens));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure(read_pair(vocab, rows[i].merges), rows[i].message);
    const struct bpe_file files[] = {file_of("dir/vocab.json", vocab),
                                     {.path = "m", .bytes = "t h\n\0", .size = 5}};
    expect_failure(bpe_read_vocab_and_merges(&bpe, &files[0], &files[1], &error),
                   "m is not UTF-8 text");
}

Test(bpe_files, wrong_vocabularies_are_named) {
    static const struct {
        const char *before, *more, *after, *message;
    } rows[] = {
        {"{", ", \"th\": 256", "", "dir/vocab.json:1:2463: expected a comma"},
        {"{\n\n", ", \"th\": 25\n6", "}", "dir/vocab.json:4:1: expected a comma"},
        {"{", "", "} x", "expected nothing after the end"},
        {"[{", "", "}]", "the vocabulary is no JSON object"},
        {"{", ", \"\xff\": 256", "}", "dir/vocab.json:1:2455: byte 0xff is not UTF-8"},
        {"{\n", ", \"a\\u0000b\": 256", "}", "dir/vocab.json:2:2455: \\u0000"},
        {"{", ", \"\\\\u0000\": 256", "}", NULL},
        {"{", ", \"a\": 256", "}", "\"a\" stands there twice"},
        {"{", ", \"th\": 255", "}", "have the same number, 255"},
        {"{", ", \"th\": 300", "}", "\"th\" has the number 300, but there are 257 tokens"},
        {"{", ", \"th\": -1", "}", "\"th\" is no whole number within 0 to 1048575"},
        {"{", ", \"th\": 256.5", "}", "\"th\" is no whole number within"},
        {"{", ", \"th\": 1048576", "}", "\"th\" is no whole number within"},
        {"{", ", \"th\": 1e300", "}", "\"th\" is no whole number within"},
        {"{", ", \"th\": \"256\"", "}", "\"th\" is no whole number within"},
        {"{", ", \"th\": null", "}", "\"th\" is no whole number within"},
        {"{", ", \"t h\": 256", "}", "\"t h\" is not written in GPT-2's alphabet"},
        {"{", ", \"\": 256", "}", "a token without a name"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status =
            read_pair(text_of("%s%s%s", rows[i].before, vocabulary(rows[i].more), rows[i].after),
                      "#version\n");
        if (rows[i].message) expect_failure(status, rows[i].message);
        else cr_expect_eq(status, 0, "%s", error.text);
    }
    expect_failure(read_pair("", "#version\n"), "the file is empty");
    expect_failure(read_pair(" \n", "#version\n"), "the file is empty");
    expect_failure(read_pair("{}", "#version\n"),
                   "there is no token \"\xc4\x80\" for the byte 0x00");
    const struct bpe_file files[] = {{.path = "v", .bytes = "{}\0\n", .size = 4},
                                     file_of("m", "t h\n")};
    expect_failure(bpe_read_vocab_and_merges(&bpe, &files[0], &files[1], &error),
                   "v:1:3: a NUL byte");
}

/* ---- tokenizer.json: parts that a test replaces */

struct parts {
    const char *added, *normalizer, *pre, *post, *decoder, *model, *more, *merges;
};

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";

static int read_parts(struct parts parts) {
    return read_whole(text_of(
        "{\"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, \"post_processor\": %s, "
        "\"decoder\": %s, \"model\": {%s, \"vocab\": {%s}, \"merges\": %s}}",
        parts.added ? parts.added : "[]", parts.normalizer ? parts.normalizer : "null",
        parts.pre ? parts.pre : byte_level, parts.post ? parts.post : "null",
        parts.decoder ? parts.decoder : "{\"type\": \"ByteLevel\"}",
        parts.model ? parts.model : "\"type\": \"BPE\"",
        vocabulary(parts.more ? parts.more : more_tokens),
        parts.merges ? parts.merges : "[\"t h\", \"th e\", \"\\u0120 the\"]"));
}

Test(bpe_files, merges_of_tokenizer_json_are_words_or_pairs) {
    cr_assert_eq(read_parts((struct parts){0}), 0, "%s", error.text);
    expect_usual();
    const char *pairs = "[[\"t\", \"h\"], [\"th\", \"e\"], [\"\\u0120\", \"the\"]]";
    cr_assert_eq(read_parts((struct parts){.merges = pairs}), 0, "%s", error.text);
    expect_usual();
}

Test(bpe_files, tokenizers_of_gpt2s_kind_are_read) {
    static const struct parts rows[] = {
        {.model = "\"dropout\": null"},
        {.model = "\"type\": \"BPE\", \"dropout\": 0.0, \"unk_token\": null, "
                  "\"continuing_subword_prefix\": \"\", \"end_of_word_suffix\": null, "
                  "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false"},
        {.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                "\"use_regex\": true}"},
        {.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", "
                "\"add_prefix_space\": false}]}"},
        {.post = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"},
        {.post =
             "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}]}"},
        {.added =
             "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"single_word\": false, \"lstrip\": "
             "false, \"rstrip\": false, \"normalized\": true, \"special\": true}]"},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\"}]",
         .more = ", \"th\": 256, \"the\": 257, \"\\u0120the\": 258"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(read_parts(rows[i]), 0, "row %zu: %s", i, error.text);
        expect_usual();
    }
}

Test(bpe_files, without_the_pattern_the_text_is_one_piece) {
    cr_assert_eq(read_parts((struct parts){.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": "
                                                  "false, \"use_regex\": false}"}),
                 0, "%s", error.text);
    cr_expect(bpe.whole_text);
}

Test(bpe_files, other_tokenizers_are_refused_by_what_differs) {
    static const struct {
        struct parts parts;
        const char *message;
    } rows[] = {
        {{.normalizer = "{\"type\": \"NFC\"}"}, "it has a normalizer"},
        {{.pre = "null"}, "its pre_tokenizer is not ByteLevel"},
        {{.pre = "[1]"}, "its pre_tokenizer is not ByteLevel"},
        {{.pre = "{\"type\": \"Whitespace\"}"}, "its pre_tokenizer is not ByteLevel"},
        {{.pre = "{\"type\": 5}"}, "\"type\" is no text"},
        {{.pre = "{\"type\": \"ByteLevel\"}"}, "does not set add_prefix_space to false"},
        {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}"}, "add_prefix_space"},
        {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": 0}"},
         "\"add_prefix_space\" is neither true nor false"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": []}"}, "Sequence of more or less"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
                 "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}"},
         "Sequence of more or less"},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}]}"},
         "its pre_tokenizer is not ByteLevel"},
        {{.post = "{\"type\": \"RobertaProcessing\"}"}, "its post_processor"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {}}]}"},
         "its post_processor"},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {}}, "
                  "{\"SpecialToken\": {}}]}"},
         "its post_processor"},
        {{.post = "{\"type\": \"TemplateProcessing\"}"}, "its post_processor"},
        {{.decoder = "null"}, "its decoder is not ByteLevel"},
        {{.decoder = "{\"type\": \"WordPiece\"}"}, "its decoder is not ByteLevel"},
        {{.model = "\"type\": \"WordPiece\""}, "its model is not BPE"},
        {{.model = "\"dropout\": 0.1"}, "its model has a dropout"},
        {{.model = "\"continuing_subword_prefix\": \"##\""}, "continuing_subword_prefix"},
        {{.model = "\"end_of_word_suffix\": \"</w>\""}, "end_of_word_suffix"},
        {{.model = "\"byte_fallback\": true"}, "byte_fallback"},
        {{.model = "\"ignore_merges\": true"}, "ignore_merges"},
        {{.model = "\"type\": \"BPE\", \"type\": \"BPE\""}, "\"type\" stands there twice"},
        {{.model = "\"merges\": []"}, "\"merges\" stands there twice"},
        {{.merges = "{}"}, "its model has no list of merges"},
        {{.merges = "[\"t h\", 5]"}, "merge 1: a merge must be"},
        {{.merges = "[[\"t\"]]"}, "merge 0: a merge must be"},
        {{.merges = "[[\"t\", \"h\", \"e\"]]"}, "merge 0: a merge must be"},
        {{.merges = "[[\"t\", 1]]"}, "merge 0: a merge must be"},
        {{.merges = "[\"th\"]"}, "merge 0: this is not two tokens"},
        {{.merges = "[[\"t\", \"x\"]]"}, "merge 0: \"tx\", the result"},
        {{.added = "{}"}, "\"added_tokens\" is no list"},
        {{.added = "[5]"}, "an added token other than <|endoftext|>"},
        {{.added = "[{\"id\": 260, \"content\": \"<pad>\"}]"}, "an added token other than"},
        {{.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"lstrip\": true}]"}, "lstrip"},
        {{.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"rstrip\": true}]"}, "rstrip"},
        {{.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"single_word\": true}]"},
         "single_word"},
        {{.added = "[{\"id\": 5, \"content\": \"<|endoftext|>\"}]"},
         "<|endoftext|> has two numbers"},
        {{.added = "[{\"content\": \"<|endoftext|>\"}]"}, "<|endoftext|> has two numbers"},
        {{.added = "[{\"id\": 300, \"content\": \"<|endoftext|>\"}]", .more = "", .merges = "[]"},
         "has the number 300, but there are 257 tokens"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        expect_failure(read_parts(rows[i].parts), rows[i].message);
        cr_expect_not_null(strstr(error.text, "dir/tokenizer.json:"), "%s", error.text);
    }
    expect_failure(read_whole("[]"), "it holds no JSON object");
    expect_failure(read_whole("{}"), "it has no model");
    expect_failure(read_whole("{\"model\": []}"), "it has no model");
}

/* Every beginning of a good file is refused. */
Test(bpe_files, truncated_files_are_refused) {
    const char *vocab = text_of("{%s}", vocabulary(more_tokens));
    for (size_t size = 0; size < strlen(vocab); size += 7) {
        char *part = text_of("%.*s", (int)size, vocab);
        cr_expect_eq(read_pair(part, usual_merges), -1);
        cr_expect_not_null(strstr(error.text, "dir/vocab.json"), "%s", error.text);
    }
}

Test(bpe_files, encodings_that_differ_are_told) {
    static const struct {
        struct parts parts;
        const char *message;
    } rows[] = {
        {{.more = ", \"th\": 256, \"the\": 257, \"\\u0120the\": 258"},
         "A has 260 tokens, but B has 259"},
        {{.more = ", \"th\": 257, \"the\": 256, \"\\u0120the\": 258, \"<|endoftext|>\": 259"},
         "disagree on the token 256"},
        {{.merges = "[\"t h\", \"th e\"]"}, "disagree on the merges"},
        {{.merges = "[\"th e\", \"t h\", \"\\u0120 the\"]"}, "disagree on the merges"},
        {{.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"},
         "disagree on the merges"},
    };
    cr_assert_eq(read_parts((struct parts){0}), 0, "%s", error.text);
    struct bpe usual = bpe;
    bpe = (struct bpe){0};
    cr_expect_eq(bpe_compare(&usual, "A", &usual, "B", &error), 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(read_parts(rows[i].parts), 0, "%s", error.text);
        cr_expect_eq(bpe_compare(&usual, "A", &bpe, "B", &error), -1);
        cr_expect_not_null(strstr(error.text, rows[i].message), "%s", error.text);
    }
    bpe_free(&usual);
}
