/* Expected tokens are those of transformers 5.24: AutoTokenizer.from_pretrained of the same files,
 * beside a config.json of GPT-2. */
#include "data/tokenize/tokenizer.h"

#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/tokenize/subwords.h"
#include "test/scratch.h"
#include "test/small_bpe.h"

TestSuite(tokenizer_settings, .init = make_folder, .fini = remove_folder);

static void put_file(const char *name, const char *text) {
    SUCCEEDS(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error));
}

/* Writes 256 bytes and the tokens th, the, " the", 12 and <|endoftext|> (260), as a tokenizer.json
 * or as two files. */
static void put_tokenizer(bool whole) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (whole)
        fputs("{\"added_tokens\": [{\"id\": 260, \"content\": \"<|endoftext|>\", \"special\": "
              "true, \"normalized\": false}], \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
              "\"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": "
              "{\"type\": \"BPE\", \"merges\": [\"1 2\", [\"t\", \"h\"], \"th e\", \"\\u0120 "
              "the\"], \"vocab\": ",
              out);
    fputs("{", out);
    print_bytes(out);
    fputs(", \"th\": 256, \"the\": 257, \"\\u0120the\": 258, \"12\": 259, \"<|endoftext|>\": 260}",
          out);
    if (whole) fputs("}}", out);
    fclose(out);
    put_file(whole ? "tokenizer.json" : "vocab.json", text);
    if (!whole) put_file("merges.txt", "#version: 0.2\n1 2\nt h\nth e\n\xc4\xa0 the\n");
    free(text);
}

/* numbers: the tokens, with spaces between. */
static void expect_tokens(const struct tokenizer *tokenizer, const char *text, const char *numbers,
                          const char *label) {
    char found[512] = "";
    int32_t *tokens = NULL;
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    cr_assert_not_null(encoder);
    SUCCEEDS(tokenizer_encode(encoder, &tokens, text, strlen(text), true, &error));
    for (size_t i = 0; i < arrlenu(tokens); i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), i ? " %d" : "%d", tokens[i]);
    cr_expect_str_eq(found, numbers, "%s: %s: %s", label, text, found);
    arrfree(tokens);
    tokenizer_encoder_close(encoder);
}

/* A folder's files and the tokens of a text. NULL: no such file. */
struct row {
    const char *config, *map, *added, *model, *text, *tokens;
    int vocab_size;
    bool changed; /* the tokenizer becomes another tokenizer.json than the files say */
};

#define GPT2 "\"tokenizer_class\": \"GPT2Tokenizer\""
#define QWEN "\"tokenizer_class\": \"Qwen2TokenizerFast\""
#define FAST "\"tokenizer_class\": \"PreTrainedTokenizerFast\""
#define DECODER                                                                \
    "\"added_tokens_decoder\": {\"262\": {\"content\": \"<b>\", \"special\": " \
    "true}, \"300\": {\"content\": \"<c>\", \"special\": false, \"lstrip\": "  \
    "true}, \"261\": {\"content\": \"<a>\", \"special\": false, \"normalized\": false}}"

static void put_row(const struct row *row) {
    const char *const names[] = {"tokenizer_config.json", "special_tokens_map.json",
                                 "added_tokens.json", "config.json"};
    const char *const texts[] = {row->config, row->map, row->added, row->model};
    for (int i = 0; i < 4; i++) {
        if (texts[i]) put_file(names[i], texts[i]);
        else if (file_exists_in(folder, names[i]))
            cr_assert_eq(remove(in_folder("%s", names[i])), 0);
    }
}

/* Other programs take the numbers of added tokens from the file: each must be the token's own, also
 * where the numbers that were read had gaps. */
static void expect_numbers(const struct tokenizer *tokenizer) {
    cJSON *root = cJSON_Parse(tokenizer->files[0].bytes), *token;
    cJSON_ArrayForEach(token, cJSON_GetObjectItem(root, "added_tokens")) {
        const char *content = cJSON_GetStringValue(cJSON_GetObjectItem(token, "content"));
        const int id = (int)cJSON_GetNumberValue(cJSON_GetObjectItem(token, "id"));
        size_t size;
        cr_assert(content && id >= 0 && id < tokenizer->vocab_size, "%d", id);
        const uint8_t *bytes = tokenizer_bytes(tokenizer, id, &size);
        cr_expect(size == strlen(content) && memcmp(bytes, content, size) == 0, "%s is %d", content,
                  id);
    }
    cJSON_Delete(root);
}

/* The changed tokenizer.json must be the same tokenizer, with or without the settings beside it. */
static void expect_saved(const struct tokenizer *tokenizer, const struct row *row, bool two_files) {
    static const struct row nothing;
    struct tokenizer again;
    cr_assert_str_eq(tokenizer->files[0].name, "tokenizer.json");
    cr_assert_eq(tokenizer->file_count, 1);
    expect_numbers(tokenizer);
    /* tokenizers reads no ByteLevel without these members. */
    for (const char *at = tokenizer->files[0].bytes; (at = strstr(at, "{\"type\":\"ByteLevel\""));
         at++) {
        const size_t size = strcspn(at, "}");
        cr_expect(!two_files || (memmem(at, size, "\"trim_offsets\":", 15) &&
                                 memmem(at, size, "\"use_regex\":", 12) &&
                                 memmem(at, size, "\"add_prefix_space\":", 19)),
                  "%.*s", (int)size, at);
    }
    put_file("tokenizer.json", tokenizer->files[0].bytes);
    for (int i = 0; i < 2; i++) {
        SUCCEEDS(tokenizer_open(&again, TOKENIZER_FILES, folder, &error));
        expect_tokens(&again, row->text, row->tokens, "saved");
        cr_expect_str_eq(again.sha256, tokenizer->sha256, "%s", row->config);
        tokenizer_close(&again);
        put_row(&nothing);
    }
    cr_assert_eq(remove(in_folder("tokenizer.json")), 0);
}

static void expect_row(const struct row *row, bool whole) {
    struct tokenizer tokenizer;
    const char *label = row->config ? row->config : row->added ? row->added : row->model;
    put_tokenizer(whole);
    put_row(row);
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error), 0, "%s: %s", label,
                 error.text);
    expect_tokens(&tokenizer, row->text, row->tokens, label);
    cr_expect_eq(tokenizer.vocab_size, row->vocab_size, "%s: %d", label, tokenizer.vocab_size);
    if (row->changed) expect_saved(&tokenizer, row, !whole);
    else cr_expect_str_eq(tokenizer.files[0].name, whole ? "tokenizer.json" : "vocab.json");
    tokenizer_close(&tokenizer);
}

#define NUMBERS "the 12 don't\r\n\n"

Test(tokenizer_settings, two_files_are_read_as_their_class_reads_them) {
    static const struct row rows[] = {
        {.config = "{" GPT2 "}",
         .text = NUMBERS,
         .tokens = "257 32 259 32 100 111 110 39 116 13 10 10",
         .vocab_size = 261},
        {.config = "{" QWEN "}",
         .text = NUMBERS,
         .tokens = "257 32 49 50 32 100 111 110 39 116 13 10 10",
         .vocab_size = 261,
         .changed = true},
        {.model = "{\"model_type\": \"qwen3\"}",
         .text = "the 12",
         .tokens = "257 32 49 50",
         .vocab_size = 261,
         .changed = true},
        {.model = "{\"model_type\": \"gpt2\", \"tokenizer_class\": \"Qwen2Tokenizer\"}",
         .text = "the 12",
         .tokens = "257 32 49 50",
         .vocab_size = 261,
         .changed = true},
        {.config = "{" QWEN "}",
         .text = "e\xcc\x81",
         .tokens = "195 169",
         .vocab_size = 261,
         .changed = true},
        {.config = "{" GPT2 ", \"add_prefix_space\": true}",
         .text = "the<|endoftext|>the",
         .tokens = "258 260 258",
         .vocab_size = 261,
         .changed = true},
        {.config = "{" GPT2 ", " DECODER "}",
         .text = "the<a><b> <c><|endoftext|>",
         .tokens = "257 261 262 263 260",
         .vocab_size = 264,
         .changed = true},
        {.config = "{" GPT2 ", " DECODER "}",
         .added = "{\"<d>\": 400}",
         .text = "<a><d>",
         .tokens = "261 60 100 62",
         .vocab_size = 264,
         .changed = true},
        {.config = "{" GPT2 "}",
         .added = "{\"<b>\": 262, \"<a>\": 261}",
         .text = "<a><b>",
         .tokens = "261 262",
         .vocab_size = 263,
         .changed = true},
        {.added = "{\"<b>\": 261}",
         .text = "<b><|endoftext|>",
         .tokens = "261 260",
         .vocab_size = 262,
         .changed = true},
        {.config = "{" GPT2 ", \"pad_token\": \"[PAD]\", \"eos_token\": \"the\", "
                   "\"additional_special_tokens\": [\"<x>\", {\"__type\": \"AddedToken\", "
                   "\"content\": \"<y>\", \"lstrip\": true, \"special\": true}], "
                   "\"image_token\": \"<i>\", \"add_bos_token\": false}",
         .text = "a the [PAD]<x> <y><i>",
         .tokens = "97 32 257 32 261 263 264 262",
         .vocab_size = 265,
         .changed = true},
        {.config = "{" GPT2 ", \"pad_token\": \"<p>\"}",
         .map = "{\"pad_token\": {\"content\": \"[PAD]\", \"lstrip\": false}, "
                "\"additional_special_tokens\": [\"<x>\"]}",
         .text = "[PAD]<x>",
         .tokens = "261 262",
         .vocab_size = 263,
         .changed = true},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) expect_row(&rows[i], false);
}

/* The vocab.json of a Qwen2 ends before <|endoftext|>. */
Test(tokenizer_settings, a_qwen2_has_an_end_beyond_its_vocabulary) {
    static const struct {
        const char *config, *tokens;
    } cases[] = {
        {"{" QWEN "}", "257 260 97"},
        {"{" QWEN ", \"eos_token\": \"<e>\"}", "257 261 97"},
        {"{" QWEN ", \"eos_token\": \"<e>\", \"pad_token\": null, \"unk_token\": null}",
         "257 60 124 101 110 100 111 102 116 101 120 116 124 62 97"},
    };
    struct tokenizer tokenizer;
    char *vocab;
    size_t size;
    put_tokenizer(false);
    SUCCEEDS(file_read_all(&vocab, &size, in_folder("vocab.json"), 100000, &error));
    strcpy(strstr(vocab, ", \"<|endoftext|>\""), "}");
    put_file("vocab.json", vocab);
    free(vocab);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_file("tokenizer_config.json", cases[i].config);
        SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error));
        expect_tokens(&tokenizer, "the<|endoftext|>a", cases[i].tokens, cases[i].config);
        tokenizer_close(&tokenizer);
    }
}

Test(tokenizer_settings, tokenizer_json_gets_the_tokens_beside_it) {
    static const struct row rows[] = {
        {.config = "{" FAST ", " DECODER "}",
         .text = "the<a><b> <c><|endoftext|>",
         .tokens = "257 261 262 263 260",
         .vocab_size = 264,
         .changed = true},
        {.config = "{" FAST ", \"added_tokens_decoder\": {\"260\": {\"content\": "
                   "\"<|endoftext|>\", \"lstrip\": true, \"special\": true}}}",
         .text = "the  <|endoftext|>",
         .tokens = "257 260",
         .vocab_size = 261,
         .changed = true},
        {.config = "{" FAST ", \"added_tokens_decoder\": {\"260\": {\"content\": "
                   "\"<|endoftext|>\", \"special\": true}}}",
         .text = "the  <|endoftext|>",
         .tokens = "257 32 32 260",
         .vocab_size = 261},
        {.config = "{" FAST "}",
         .added = "{\"<a>\": 261}",
         .text = "<a>",
         .tokens = "261",
         .vocab_size = 262,
         .changed = true},
        {.config = "{" GPT2 ", \"add_prefix_space\": true}",
         .text = "the",
         .tokens = "258",
         .vocab_size = 261,
         .changed = true},
        {.config = "{" FAST ", \"add_prefix_space\": true}",
         .text = "the",
         .tokens = "257",
         .vocab_size = 261},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) expect_row(&rows[i], true);
}

/* transformers makes a template of both flags: 260 257 257 for "the". A tokenizer.json has its own.
 */
Test(tokenizer_settings, tokens_around_a_text_come_from_the_flags_without_tokenizer_json) {
    static const struct row row = {.config = "{" GPT2 ", \"add_bos_token\": true, "
                                             "\"add_eos_token\": true, \"eos_token\": \"the\"}",
                                   .text = "a",
                                   .tokens = "97",
                                   .vocab_size = 261,
                                   .changed = true};
    struct tokenizer tokenizer;
    expect_row(&row, false);
    for (int whole = 0; whole < 2; whole++) {
        put_tokenizer(whole);
        put_row(&row);
        SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error));
        cr_expect_eq(tokenizer.subwords->begin_count, !whole);
        cr_expect_eq(tokenizer.subwords->end_count, !whole);
        if (!whole)
            cr_expect(tokenizer.subwords->begins[0] == 260 && tokenizer.subwords->ends[0] == 257);
        tokenizer_close(&tokenizer);
    }
}

Test(tokenizer_settings, other_classes_and_wrong_files_are_refused_by_name) {
    static const struct {
        struct row row;
        const char *message;
    } rows[] = {
        {{.config = "{" FAST "}"}, "tokenizer_class is \"PreTrainedTokenizerFast\""},
        {{.config = "{\"tokenizer_class\": \"LlamaTokenizer\"}"}, "GPT2Tokenizer and Qwen2"},
        {{.config = "{\"added_tokens_decoder\": {\"x\": {\"content\": \"<a>\"}}}"},
         "tokenizer_config.json: \"x\" in added_tokens_decoder"},
        {{.config = "{\"added_tokens_decoder\": {\"7\": {\"lstrip\": true}}}"},
         "tokenizer_config.json: \"7\" in added_tokens_decoder"},
        {{.added = "{\"<a>\": \"7\"}"}, "added_tokens.json: \"<a>\""},
        {{.added = "{\"<a>\": 1e300}"}, "added_tokens.json: \"<a>\""},
        {{.config = "{" GPT2 ", \"add_bos_token\": true, \"bos_token\": \"<s>\"}"},
         "add_bos_token is true, but the vocabulary has no \"<s>\""},
        {{.config = "{"}, "tokenizer_config.json:1:2: expected a key"},
        {{.config = "{" QWEN ", \"add_prefix_space\": true}"},
         "\"ByteLevel with add_prefix_space after others\""},
    };
    struct tokenizer tokenizer;
    put_tokenizer(false);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_row(&rows[i].row);
        cr_expect_eq(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error), -1, "%s",
                     rows[i].message);
        cr_expect_not_null(strstr(error.text, rows[i].message), "%s: %s", rows[i].message,
                           error.text);
        cr_expect_not_null(strstr(error.text, folder), "%s", error.text);
    }
}
