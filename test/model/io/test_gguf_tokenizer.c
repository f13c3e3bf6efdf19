#include "test/model/io/checkpoint_fixture.h"

#include "model/io/gguf_tokenizer.h"
#include "test/bos_tokenizer.h"
#include "test/model/io/foreign_weights.h"
#include "test/model/io/gguf_reader.h"
#include "test/small_bpe.h"

TestSuite(gguf_tokenizer, .init = make_folder, .fini = remove_folder);

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static const struct huggingface_tokens five = {
    .begin = 5, .pad = 6, .ends = {7, 8, 9, 10}, .end_count = 4};

static const char tokens_key[] = "tokenizer.ggml.tokens", merges_key[] = "tokenizer.ggml.merges",
                  types_key[] = "tokenizer.ggml.token_type", scores_key[] = "tokenizer.ggml.scores";

/* A byte-level tokenizer.json: ab 256, " a" 257, abc 258, then special tokens. */
struct level {
    const char *pre_tokenizer; /* parts of a sequence before ByteLevel, each with a comma */
    bool cuts;                 /* by GPT-2's pattern */
    bool adds_space;
    bool ignore_merges, no_merges;
    const char *normalizer;     /* NULL: none */
    const char *post_processor; /* NULL: none */
};

static void put_level(const struct level *level) {
    FILE *out = fopen(in_folder("tokenizer.json"), "w");
    static const char *const added[] = {"<|endoftext|>", "<|im_end|>", "<think> "};
    fputs("{\"version\": \"1.0\", \"added_tokens\": [", out);
    for (int i = 0; i < 3; i++)
        fprintf(out,
                "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                "\"rstrip\": false, \"normalized\": false, \"special\": %s}",
                i ? ", " : "", 259 + i, added[i], i < 2 ? "true" : "false");
    fprintf(out,
            "], \"normalizer\": %s, \"post_processor\": %s, \"pre_tokenizer\": {\"type\": "
            "\"Sequence\", \"pretokenizers\": [%s{\"type\": \"ByteLevel\", \"add_prefix_space\": "
            "%s, \"use_regex\": %s}]}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": "
            "{\"type\": \"BPE\", \"ignore_merges\": %s, \"vocab\": {",
            level->normalizer ? level->normalizer : "null",
            level->post_processor ? level->post_processor : "null",
            level->pre_tokenizer ? level->pre_tokenizer : "", level->adds_space ? "true" : "false",
            level->cuts ? "true" : "false", level->ignore_merges ? "true" : "false");
    print_bytes(out);
    fprintf(out,
            ", \"ab\": 256, \"\xc4\xa0"
            "a\": 257, \"abc\": 258}, \"merges\": [%s]}}",
            level->no_merges ? "" : "\"a b\", \"\xc4\xa0 a\", \"ab c\"");
    cr_assert_eq(fclose(out), 0);
}

static int put(struct gguf_writer *writer, int64_t vocab_size, const char *chat_template) {
    struct tokenizer tokenizer;
    SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error));
    error.text[0] = '\0';
    int status = gguf_put_tokenizer(writer, &tokenizer, &five, chat_template, vocab_size, &error);
    tokenizer_close(&tokenizer);
    return status;
}

/* Reads the pairs of the tokenizer in the folder. */
static void put_and_read(struct read_gguf *file, int64_t vocab_size) {
    struct gguf_writer writer = {0};
    unlink(in_folder("out"));
    SUCCEEDS(put(&writer, vocab_size, "{{ messages }}"));
    SUCCEEDS(gguf_write_begin(&writer, in_folder("out"), &error));
    SUCCEEDS(gguf_write_end(&writer, &error));
    gguf_writer_close(&writer);
    read_gguf(file, in_folder("out"));
    expect_string(file, "tokenizer.chat_template", "{{ messages }}");
    cr_expect_eq(find_pair(file, tokens_key)->count, (uint64_t)vocab_size);
    cr_expect_eq(find_pair(file, types_key)->count, (uint64_t)vocab_size);
}

static void expect_refused(const char *reason) {
    struct gguf_writer writer = {0};
    cr_expect_eq(put(&writer, 300, NULL), -1, "added: %s", reason);
    expect_text(error.text, reason);
    gguf_writer_close(&writer);
}

static uint32_t type_of(const struct read_gguf *file, uint64_t token) {
    return word_item(file, types_key, 5, token);
}

Test(gguf_tokenizer, byte_level_tokens_are_written_in_letters) {
    struct read_gguf file;
    put_level(&(const struct level){.cuts = true});
    put_and_read(&file, 264);
    expect_string(&file, "tokenizer.ggml.model", "gpt2");
    expect_string(&file, "tokenizer.ggml.pre", "gpt-2");
    expect_item(&file, tokens_key, 'a', "a");
    expect_item(&file, tokens_key, ' ', "\xc4\xa0");
    expect_item(&file, tokens_key, 257,
                "\xc4\xa0"
                "a");
    expect_item(&file, tokens_key, 260, "<|im_end|>");
    expect_item(&file, tokens_key, 261, "<think> ");
    expect_item(&file, tokens_key, 263, "[PAD263]");
    static const uint32_t types[] = {NORMAL,  NORMAL,       NORMAL, CONTROL,
                                     CONTROL, USER_DEFINED, UNUSED, UNUSED};
    cr_expect_eq(type_of(&file, 0), (uint32_t)NORMAL);
    for (uint64_t i = 0; i < COUNT(types); i++) cr_expect_eq(type_of(&file, 256 + i), types[i]);
    cr_expect_eq(find_pair(&file, merges_key)->count, 3u);
    expect_item(&file, merges_key, 0, "a b");
    expect_item(&file, merges_key, 1, "\xc4\xa0 a");
    expect_item(&file, merges_key, 2, "ab c");
    cr_expect_null(find_pair(&file, scores_key));
    free(file.bytes);
}

Test(gguf_tokenizer, special_tokens_are_the_models) {
    struct read_gguf file;
    put_level(&(const struct level){.cuts = true});
    put_and_read(&file, 300);
    expect_uint32(&file, "tokenizer.ggml.bos_token_id", 5);
    expect_uint32(&file, "tokenizer.ggml.padding_token_id", 6);
    expect_uint32(&file, "tokenizer.ggml.eos_token_id", 7);
    expect_uint32(&file, "tokenizer.ggml.eot_token_id", 8);
    expect_uint32(&file, "tokenizer.ggml.eom_token_id", 9);
    expect_uint32(&file, "tokenizer.ggml.unknown_token_id", -1);
    expect_bool(&file, "tokenizer.ggml.add_bos_token", false);
    expect_bool(&file, "tokenizer.ggml.add_eos_token", false);
    free(file.bytes);
}

/* As gguf's SpecialVocab finds them: those of tokenizer_config.json before those of config.json. */
Test(gguf_tokenizer, settings_name_special_tokens) {
    struct read_gguf file;
    put_level(&(const struct level){.cuts = true});
    put_text("tokenizer_config.json",
             "{\"pad_token\":\"<|im_end|>\",\"unk_token\":{\"content\":\"<|endoftext|>\"},"
             "\"sep_token\":\"<think> \",\"mask_token\":\"<|im_end|>\",\"bos_token\":null}");
    put_and_read(&file, 300);
    expect_uint32(&file, "tokenizer.ggml.bos_token_id", 5);
    expect_uint32(&file, "tokenizer.ggml.padding_token_id", 260);
    expect_uint32(&file, "tokenizer.ggml.unknown_token_id", 259);
    expect_uint32(&file, "tokenizer.ggml.seperator_token_id", 261);
    expect_uint32(&file, "tokenizer.ggml.mask_token_id", 260);
    expect_uint32(&file, "tokenizer.ggml.cls_token_id", -1);
    free(file.bytes);
}

#define TEMPLATE(single)                                                                    \
    "{\"type\": \"TemplateProcessing\", \"single\": [" single                               \
    "], \"pair\": [], \"special_tokens\": {\"e\": {\"id\": \"e\", \"ids\": [259], "         \
    "\"tokens\": [\"<|endoftext|>\"]}, \"i\": {\"id\": \"i\", \"ids\": [260], \"tokens\": " \
    "[\"<|im_end|>\"]}}}"
#define SPECIAL(id) "{\"SpecialToken\": {\"id\": \"" id "\", \"type_id\": 0}}"
#define SEQUENCE    "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}"

Test(gguf_tokenizer, tokens_around_a_text_are_the_tokenizers) {
    struct read_gguf file;
    put_level(&(const struct level){
        .cuts = true, .post_processor = TEMPLATE(SPECIAL("e") ", " SEQUENCE ", " SPECIAL("i"))});
    put_and_read(&file, 300);
    expect_uint32(&file, "tokenizer.ggml.bos_token_id", 259);
    expect_uint32(&file, "tokenizer.ggml.eos_token_id", 260);
    expect_uint32(&file, "tokenizer.ggml.eot_token_id", 7);
    expect_bool(&file, "tokenizer.ggml.add_bos_token", true);
    expect_bool(&file, "tokenizer.ggml.add_eos_token", true);
    free(file.bytes);
    put_level(&(const struct level){
        .cuts = true, .post_processor = TEMPLATE(SPECIAL("e") ", " SPECIAL("i") ", " SEQUENCE)});
    expect_refused("several tokens begin or end each text");
}

#define SPLIT(regex, behavior, invert)                                                         \
    "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"" regex "\"}, \"behavior\": \"" behavior \
    "\", \"invert\": " invert "}, "
#define ISOLATED(regex) SPLIT(regex, "Isolated", "false")
#define CONTRACTIONS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES          "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define LLAMA3(digits)                                                      \
    CONTRACTIONS "|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}" digits \
                 "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" SPACES
#define CASED "[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?[\\\\p{Lu}\\\\p{Lt}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define SMALL "[\\\\p{Ll}\\\\p{Lm}\\\\p{Lo}\\\\p{M}]"
#define WORDS(ends, digits)                                                  \
    CASED "*" SMALL "+" ends "|" CASED "+" SMALL "*" ends "|\\\\p{N}" digits \
          "| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n/]*" SPACES

Test(gguf_tokenizer, patterns_have_llama_cpps_names) {
    static const struct {
        struct level level;
        const char *name; /* NULL: none */
    } cases[] = {
        {{.cuts = true}, "gpt-2"},
        {{.cuts = true, .ignore_merges = true}, NULL},
        {{.cuts = true, .pre_tokenizer = "{\"type\": \"Digits\", \"individual_digits\": true}, "},
         "smollm"},
        {{.cuts = true, .pre_tokenizer = "{\"type\": \"Digits\", \"individual_digits\": false}, "},
         NULL},
        {{.pre_tokenizer = ISOLATED(LLAMA3("")), .normalizer = "{\"type\": \"NFC\"}"}, "qwen2"},
        {{.pre_tokenizer = ISOLATED(LLAMA3("")), .ignore_merges = true}, NULL},
        {{.pre_tokenizer = ISOLATED(LLAMA3("")), .cuts = true}, NULL},
        {{.pre_tokenizer = SPLIT(LLAMA3(""), "Removed", "true")}, NULL},
        {{.pre_tokenizer = ISOLATED(LLAMA3("{1,3}")), .ignore_merges = true}, "llama-bpe"},
        {{.pre_tokenizer = ISOLATED(LLAMA3("{1,3}"))}, "smaug-bpe"},
        {{.pre_tokenizer = ISOLATED(LLAMA3("{1,2}"))}, NULL},
        {{.pre_tokenizer = ISOLATED(WORDS("", "")), .ignore_merges = true}, "tekken"},
        {{.pre_tokenizer = ISOLATED(WORDS(CONTRACTIONS "?", "{1,3}"))}, "gpt-4o"},
        {{.cuts = false}, NULL},                       /* a whole text is one piece, */
        {{.cuts = false, .no_merges = true}, "gpt-2"}, /* which matters only with merges */
        {{.cuts = false, .no_merges = true, .ignore_merges = true}, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct read_gguf file;
        put_level(&cases[i].level);
        if (!cases[i].name) {
            expect_refused("it does not know the pattern that cuts text");
            continue;
        }
        put_and_read(&file, 300);
        expect_string(&file, "tokenizer.ggml.pre", cases[i].name);
        free(file.bytes);
    }
}

/* llama.cpp does not load a file without the array of merges. Others refuse a merge whose parts are
 * not in the vocabulary. */
Test(gguf_tokenizer, bytes_have_an_empty_array_of_merges) {
    struct read_gguf file;
    put_level(&(const struct level){.no_merges = true});
    put_and_read(&file, 300);
    cr_expect_eq(find_pair(&file, merges_key)->count, 0u);
    free(file.bytes);
}

/* Writes test/bos_tokenizer.h's file with one text replaced by another. */
static void put_characters(const char *from, const char *to) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    print_bos_tokenizer(out);
    fclose(out);
    char *at = strstr(text, from);
    cr_assert_not_null(at, "%s", from);
    out = fopen(in_folder("tokenizer.json"), "w");
    fprintf(out, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    cr_assert_eq(fclose(out), 0);
    free(text);
}

Test(gguf_tokenizer, characters_have_scores) {
    struct read_gguf file;
    put_characters("", "");
    put_and_read(&file, 268);
    expect_string(&file, "tokenizer.ggml.model", "llama");
    expect_string(&file, "tokenizer.ggml.pre", "default");
    expect_item(&file, tokens_key, 3 + 10, "<0x0A>");
    expect_item(&file, tokens_key, 265,
                "b\xe2\x96\x81"
                "a");
    cr_expect_eq(type_of(&file, 0), (uint32_t)UNKNOWN);
    cr_expect_eq(type_of(&file, 2), (uint32_t)CONTROL);
    cr_expect_eq(type_of(&file, 3), (uint32_t)BYTE);
    cr_expect_eq(type_of(&file, 258), (uint32_t)BYTE);
    cr_expect_eq(type_of(&file, 259), (uint32_t)NORMAL);
    cr_expect_eq(type_of(&file, 267), (uint32_t)UNUSED);
    for (int i = 0; i < 4; i++) { /* by rank: U+2581 a, ab, b U+2581 a, bc */
        uint32_t bits = word_item(&file, scores_key, 6, (uint64_t)(263 + i));
        float score;
        memcpy(&score, &bits, sizeof score);
        cr_expect_eq(score, -1.0f - (float)i);
    }
    cr_expect_null(find_pair(&file, merges_key));
    expect_uint32(&file, "tokenizer.ggml.bos_token_id", 1);
    expect_uint32(&file, "tokenizer.ggml.unknown_token_id", 0);
    expect_bool(&file, "tokenizer.ggml.add_bos_token", true);
    expect_bool(&file, "tokenizer.ggml.add_space_prefix", true);
    free(file.bytes);
    put_characters("{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"}, ", "");
    put_and_read(&file, 300);
    expect_bool(&file, "tokenizer.ggml.add_space_prefix", false);
    free(file.bytes);
}

/* As in Gemma's tokenizers. */
Test(gguf_tokenizer, white_space_among_characters) {
    struct read_gguf file;
    put_characters("], \"normalizer\"",
                   ", {\"id\": 267, \"content\": \"\\u2581\\u2581\", \"normalized\": false, "
                   "\"special\": false}], \"normalizer\"");
    put_and_read(&file, 300);
    expect_item(&file, tokens_key, 267, "  ");
    cr_expect_eq(type_of(&file, 267), (uint32_t)USER_DEFINED);
    free(file.bytes);
    put_characters("\"<0x09>\"", "\"\\t\"");
    put_and_read(&file, 300);
    expect_item(&file, tokens_key, 3 + 9, "\t");
    cr_expect_eq(type_of(&file, 3 + 9), (uint32_t)NORMAL);
    free(file.bytes);
}

Test(gguf_tokenizer, characters_that_scores_cannot_express) {
    static const char *const replaced[][3] = {
        {", [\"b\", \"c\"]", "", "scores of tokens cannot express the merges"},
        {"\"bc\": 266}", "\"bc\": 266, \"abc\": 267}", "scores of tokens"}, /* ab c, and a bc */
        {"\"prepend\": \"\\u2581\"", "\"prepend\": \"x\"", "normalizer changes more than spaces"},
        {"{\"type\": \"Prepend\"", "{\"type\": \"NFC\"}, {\"type\": \"Prepend\"",
         "more than spaces"},
        {"\"String\": \" \"", "\"String\": \"x\"", "more than spaces"},
        {"\"pre_tokenizer\": null",
         "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", "
         "\"prepend_scheme\": \"first\", \"split\": true}",
         "spaces are not marked as by SentencePiece"},
        {"\"byte_fallback\": true", "\"byte_fallback\": false", "some bytes have no token"},
    };
    for (size_t i = 0; i < COUNT(replaced); i++) {
        put_characters(replaced[i][0], replaced[i][1]);
        expect_refused(replaced[i][2]);
    }
}

/* The merges of abc are ab c and a bc. All have one score, so their ranks must follow each other.
 */
Test(gguf_tokenizer, ranks_of_a_token_must_follow_each_other) {
    struct read_gguf file;
    static const char merges[] = "[\"a\", \"b\"], [\"b\", \"\\u2581a\"], [\"b\", \"c\"]]}}";
    static const char vocabulary[] = "\"bc\": 266}, \"merges\": [[\"\\u2581\", \"a\"], ";
    char from[200], to[300];
    snprintf(from, sizeof from, "%s%s", vocabulary, merges);
    for (int apart = 0; apart < 2; apart++) {
        snprintf(to, sizeof to,
                 "\"bc\": 266, \"abc\": 267}, \"merges\": [[\"\\u2581\", \"a\"], [\"a\", \"b\"], "
                 "[\"b\", \"c\"], [\"ab\", \"c\"], %s[\"a\", \"bc\"]%s]}}",
                 apart ? "[\"b\", \"\\u2581a\"], " : "", apart ? "" : ", [\"b\", \"\\u2581a\"]");
        put_characters(from, to);
        if (apart) expect_refused("scores of tokens cannot express the merges");
        else put_and_read(&file, 300);
    }
    free(file.bytes);
}

Test(gguf_tokenizer, others_are_refused) {
    put_level(&(const struct level){
        .cuts = true,
        .normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}, \"content\": "
                      "\"y\"}"});
    expect_refused("the normalizer replaces characters");
    expect_text(error.text, "llama.cpp has no such tokenizer");
    expect_text(error.text, "export to a folder instead, without .gguf");
    put_level(&(const struct level){.cuts = true, .adds_space = true});
    expect_refused("a space is put before each text");
    put_level(&(const struct level){.cuts = true});
    struct gguf_writer writer = {0};
    cr_expect_eq(put(&writer, 261, NULL), -1);
    expect_text(error.text, "has 262 tokens, but the model has 261");
    gguf_writer_close(&writer);
}

/* Llama 3's pattern, but ranks: 256 bytes, then ab and abc. */
Test(gguf_tokenizer, ranks_in_place_of_merges_are_refused) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    FILE *out = fopen(in_folder("ranks.tiktoken"), "w");
    for (int byte = 0; byte < 256; byte++)
        fprintf(out, "%c%c== %d\n", digits[byte >> 2], digits[(byte & 3) << 4], byte);
    fputs("YWI= 256\nYWJj 257\n", out);
    cr_assert_eq(fclose(out), 0);
    out = fopen(in_folder("tiktoken.json"), "w");
    fputs("{\"pattern\": \"" LLAMA3("{1,3}") "\", \"special_tokens\": {}}", out);
    cr_assert_eq(fclose(out), 0);
    expect_refused("ranks of tokens take the place of merges");
}

Test(gguf_tokenizer, there_may_be_none) {
    struct gguf_writer writer = {0};
    struct read_gguf file;
    SUCCEEDS(gguf_put_tokenizer(&writer, NULL, &five, NULL, 300, &error));
    SUCCEEDS(gguf_write_begin(&writer, in_folder("out"), &error));
    SUCCEEDS(gguf_write_end(&writer, &error));
    gguf_writer_close(&writer);
    read_gguf(&file, in_folder("out"));
    cr_expect_eq(file.pair_count, 1u);
    expect_string(&file, "tokenizer.ggml.model", "none");
    free(file.bytes);
}
