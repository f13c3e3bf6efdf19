/* Files of GPT-2's kind: vocab.json and merges.txt, and the equivalent tokenizer.json. */
#include "data/tokenize/subwords_json.h"

#include <criterion/criterion.h>
#include <stdarg.h>

#include "test/small_bpe.h"

static struct subwords bpe;
static struct error error;

static void end(void) {
    subwords_free(&bpe);
}

TestSuite(gpt2_files, .fini = end);

/* Formats a text in one of a few buffers, used in turn. */
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

/* Returns the members of a vocabulary: the bytes, whose token is their value, then `more`. */
static char *vocabulary(const char *more) {
    char text[4096] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    cr_assert_not_null(out);
    print_bytes(out);
    cr_assert_eq(fclose(out), 0);
    return text_of("%s%s", text, more);
}

static const char more_tokens[] =
    ", \"th\": 256, \"the\": 257, \"\\u0120the\": 258, \"<|endoftext|>\": 259";
static const char usual_merges[] = "#version: 0.2\nt h\nth e\n\xc4\xa0 the\n";

static int read_sized(const char *vocab, size_t vocab_size, const char *merges, size_t size) {
    const struct json_reader readers[] = {{"dir/vocab.json", vocab, vocab_size, &error},
                                          {"dir/merges.txt", merges, size, &error}};
    char text[1] = "", *changed = text;
    subwords_free(&bpe);
    const int status = subwords_read_gpt2(&bpe, &changed, NULL, &readers[0], &readers[1]);
    cr_expect_null(changed);
    return status;
}

static int read_pair(const char *vocab, const char *merges) {
    return read_sized(vocab, strlen(vocab), merges, strlen(merges));
}

static int read_whole(const char *text) {
    const struct json_reader reader = {"dir/tokenizer.json", text, strlen(text), &error};
    subwords_free(&bpe);
    return subwords_read_json(&bpe, NULL, NULL, &reader);
}

static void expect_end_of_text(int32_t token) {
    cr_assert_eq(arrlen(bpe.added), token >= 0);
    if (token < 0) return;
    cr_expect_str_eq(bpe.added[0].text, SUBWORDS_END_OF_TEXT);
    cr_expect_eq(bpe.added[0].token, token);
    cr_expect(bpe.added[0].special);
}

static void expect_usual(void) {
    size_t size;
    cr_assert_eq(bpe.vocab_size, 260);
    cr_expect(bpe.is_gpt2);
    expect_end_of_text(259);
    struct merge *merges = merges_list(&bpe.merges);
    cr_assert_eq(arrlen(merges), 3);
    cr_expect(merges[2].left == ' ' && merges[2].right == 257 && merges[2].token == 258);
    arrfree(merges);
    cr_expect_eq(memcmp(subwords_bytes(&bpe, 258, &size), " the", 4), 0);
    cr_expect_eq(bpe.rule_count, 1);
}

static void expect_failure(int status, const char *message) {
    cr_assert_eq(status, -1, "expected: %s", message);
    cr_expect_not_null(strstr(error.text, message), "\"%s\" is not in: %s", message, error.text);
    cr_expect_eq(bpe.vocab_size, 0);
    cr_expect_null(bpe.names.bytes);
}

Test(gpt2_files, vocabulary_and_merges) {
    cr_assert_eq(read_pair(text_of("{%s}", vocabulary(more_tokens)), usual_merges), 0, "%s",
                 error.text);
    expect_usual();
}

Test(gpt2_files, lines_of_merges_may_end_in_any_way) {
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
Test(gpt2_files, only_the_version_is_a_comment) {
    const char *vocab = text_of("{%s}", vocabulary(", \"##\": 256, \"#ver\": 258, \"ver\": 257"));
    expect_failure(read_pair(vocab, "# #\n# ver\nv er\n"),
                   "the token \"er\" is merged, but not in the vocabulary (line 3)");
    cr_assert_eq(read_pair(vocab, "# #\n# ver\n"), 0, "%s", error.text);
    cr_expect_eq(bpe.merges.count, 2);
    expect_end_of_text(-1);
}

Test(gpt2_files, wrong_merges_are_named_by_line) {
    static const struct {
        const char *merges, *message;
    } rows[] = {
        {"", "dir/merges.txt is empty"},
        {"#version: 0.2\nth\n", "dir/merges.txt: merge 0: a merge must be"},
        {"t h\nth e \n",
         "merge 1: a merge must be \"left right\" or [\"left\", \"right\"] (line 2)"},
        {"t h\n th\n", "merge 1: a merge must be"},
        {"t  h\n", "merge 0: a merge must be"},
        {"t h e\n", "merge 0: a merge must be"},
        {"t h\n\nth e\n", "line 3: it follows an empty line"},
        {"t h\n#versiom x\n", "\"#versiom\" is merged, but not in the vocabulary (line 2)"},
        {"t h\nh q\n", "the token \"h\" merges to a text that is not a token (line 2)"},
        {"t h\nth e\nt h\n", "the token \"t\" is merged with the same token twice (line 3)"},
        {"t \xff\n", "dir/merges.txt is not UTF-8 text"},
    };
    const char *vocab = text_of("{%s}", vocabulary(more_tokens));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_failure(read_pair(vocab, rows[i].merges), rows[i].message);
    expect_failure(read_sized(vocab, strlen(vocab), "t h\n\0", 5),
                   "dir/merges.txt is not UTF-8 text");
}

Test(gpt2_files, wrong_vocabularies_are_named) {
    static const struct {
        const char *before, *more, *after, *message;
    } rows[] = {
        {"{", ", \"th\": 256", "", "dir/vocab.json:1:2463: expected a comma or }"},
        {"{\n\n", ", \"th\": 25\n6", "}", "dir/vocab.json:4:1: expected a comma or }"},
        {"{", "", "} x", "dir/vocab.json:1:2454: expected nothing after"},
        {"[{", "", "}]", "its vocabulary \"that is no object\""},
        {"{", ", \"\xff\": 256", "}", "dir/vocab.json:1:2455: byte 0xff is not UTF-8"},
        {"{\n", ", \"a\\u0000b\": 256", "}", "dir/vocab.json:2:2455: \\u0000"},
        {"{", ", \"\\\\u0000\": 256", "}", NULL},
        {"{", ", \"a\": 256", "}", "\"a\" appears twice"},
        {"{", ", \"th\": 255", "}", "\"th\" has the number of another token"},
        {"{", ", \"th\": 300", "}", "dir/vocab.json: no token has the number 256"},
        {"{", ", \"th\": -1", "}", "\"th\" has no valid number"},
        {"{", ", \"th\": 256.5", "}", "\"th\" has no valid number"},
        {"{", ", \"th\": 1048576", "}", "\"th\" has no valid number"},
        {"{", ", \"th\": 1e300", "}", "\"th\" has no valid number"},
        {"{", ", \"th\": \"256\"", "}", "\"th\" has no valid number"},
        {"{", ", \"th\": null", "}", "\"th\" has no valid number"},
        {"{", ", \"t h\": 256", "}", "\"t h\" is not written in GPT-2's alphabet"},
        {"{", ", \"\": 256", "}", "is empty"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const int status =
            read_pair(text_of("%s%s%s", rows[i].before, vocabulary(rows[i].more), rows[i].after),
                      "#version\n");
        if (rows[i].message) expect_failure(status, rows[i].message);
        else cr_expect_eq(status, 0, "%s", error.text);
    }
    expect_failure(read_pair("", "#version\n"), "dir/vocab.json:1:1: the file is empty");
    expect_failure(read_pair(" \n", "#version\n"), "dir/vocab.json:2:1: the file is empty");
    expect_failure(read_pair("{}", "#version\n"), "its vocabulary \"that is empty\"");
    expect_failure(read_sized("{}\0\n", 4, "t h\n", 4), "dir/vocab.json:1:3: a NUL byte");
}

/* ---- tokenizer.json: parts that a test replaces */

struct parts {
    const char *root, *added, *normalizer, *pre, *post, *decoder, *model, *more, *merges;
};

static const char byte_level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}";

static int read_parts(struct parts parts) {
    return read_whole(
        text_of("{%s\"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, "
                "\"post_processor\": %s, "
                "\"decoder\": %s, \"model\": {%s, \"vocab\": {%s}, \"merges\": %s}}",
                parts.root ? parts.root : "", parts.added ? parts.added : "[]",
                parts.normalizer ? parts.normalizer : "null", parts.pre ? parts.pre : byte_level,
                parts.post ? parts.post : "null",
                parts.decoder ? parts.decoder : "{\"type\": \"ByteLevel\"}",
                parts.model ? parts.model : "\"type\": \"BPE\"",
                vocabulary(parts.more ? parts.more : more_tokens),
                parts.merges ? parts.merges : "[\"t h\", \"th e\", \"\\u0120 the\"]"));
}

Test(gpt2_files, merges_of_tokenizer_json_are_words_or_pairs) {
    cr_assert_eq(read_parts((struct parts){0}), 0, "%s", error.text);
    expect_usual();
    const char *pairs = "[[\"t\", \"h\"], [\"th\", \"e\"], [\"\\u0120\", \"the\"]]";
    cr_assert_eq(read_parts((struct parts){.merges = pairs}), 0, "%s", error.text);
    expect_usual();
}

Test(gpt2_files, tokenizers_of_gpt2s_kind_are_read) {
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
        {.root = "\"truncation\": {\"max_length\": 5}, \"padding\": {}, "},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\"}]",
         .more = ", \"th\": 256, \"the\": 257, \"\\u0120the\": 258"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(read_parts(rows[i]), 0, "row %zu: %s", i, error.text);
        expect_usual();
    }
}

Test(gpt2_files, without_the_pattern_the_text_is_one_piece) {
    cr_assert_eq(read_parts((struct parts){.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": "
                                                  "false, \"use_regex\": false}"}),
                 0, "%s", error.text);
    cr_expect(bpe.is_gpt2);
    cr_expect_eq(bpe.rule_count, 0);
}

/* They are supported, but not together with vocab.json and merges.txt. */
Test(gpt2_files, other_tokenizers_are_not_of_gpt2s_kind) {
    static const struct parts rows[] = {
        {.normalizer = "{\"type\": \"NFC\"}"},
        {.pre = "{\"type\": \"ByteLevel\"}"},
        {.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
                "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}]}"},
        {.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {}}, "
                 "{\"SpecialToken\": {\"id\": \"e\"}}], \"special_tokens\": {\"e\": {\"ids\": "
                 "[259]}}}"},
        {.model = "\"byte_fallback\": true"},
        {.model = "\"ignore_merges\": true"},
        {.added = "[{\"id\": 260, \"content\": \"<pad>\"}]"},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\"}, {\"id\": 260, \"content\": "
                  "\"<pad>\"}]"},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"lstrip\": true}]"},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"rstrip\": true}]"},
        {.added = "[{\"id\": 259, \"content\": \"<|endoftext|>\", \"single_word\": true}]"},
        {.more = ", \"th\": 300", .merges = "[\"t h\"]"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_assert_eq(read_parts(rows[i]), 0, "row %zu: %s", i, error.text);
        cr_expect_not(bpe.is_gpt2, "row %zu", i);
    }
}

/* Every truncation of a valid file is refused. */
Test(gpt2_files, truncated_files_are_refused) {
    const char *vocab = text_of("{%s}", vocabulary(more_tokens));
    for (size_t size = 0; size < strlen(vocab); size += 7) {
        char *part = text_of("%.*s", (int)size, vocab);
        cr_expect_eq(read_pair(part, usual_merges), -1);
        cr_expect_not_null(strstr(error.text, "dir/vocab.json"), "%s", error.text);
    }
}
