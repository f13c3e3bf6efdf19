/* Expected tokens come from Hugging Face's tokenizers. test/external/check_tokenizers.sh compares
 * whole vocabularies. */
#include "data/tokenize/subwords.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "test/cpu_time.h"
#include "test/small_bpe.h"

static struct subwords subwords;
static struct error error;

static void end(void) {
    subwords_free(&subwords);
}

TestSuite(subwords, .fini = end);

/* Parts of tokenizer.json that a test replaces. */
struct parts {
    const char *root, *added, *normalizer, *pre, *post, *decoder, *options, *vocabulary, *merges;
};

#define LEVEL   "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define ENDTEXT "{\"id\": 259, \"content\": \"<|endoftext|>\", \"special\": true}"
#define WORDS                                                                          \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " \
    "{\"Regex\": \"\\\\p{N}| ?\\\\p{L}+\"}, \"behavior\": \"Isolated\", \"invert\": "  \
    "false}, " LEVEL "]}"

/* Prints a vocabulary like SentencePiece's: <unk>, bytes from 3 on, then letters and words. */
static void print_characters(FILE *out) {
    fputs("\"<unk>\": 0, \"<s>\": 1, \"</s>\": 2", out);
    for (int byte = 0; byte < 256; byte++)
        fprintf(out, ", \"<0x%02X>\": %d", (unsigned)byte, byte + 3);
    fputs(", \"\\u2581\": 259, \"a\": 260, \"b\": 261, \"ab\": 262, \"\\u2581ab\": 263, "
          "\"\\u2581\\u2581\": 264",
          out);
}

static int read_parts(struct parts parts) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    cr_assert_not_null(out);
    fprintf(out, "{%s\"added_tokens\": [%s], \"normalizer\": %s, \"pre_tokenizer\": %s, ",
            parts.root ? parts.root : "", parts.added ? parts.added : "",
            parts.normalizer ? parts.normalizer : "null", parts.pre ? parts.pre : WORDS);
    fprintf(out, "\"post_processor\": %s, \"decoder\": %s, \"model\": {%s, \"vocab\": {",
            parts.post ? parts.post : "null",
            parts.decoder ? parts.decoder : "{\"type\": \"ByteLevel\"}",
            parts.options ? parts.options : "\"type\": \"BPE\"");
    if (!parts.vocabulary) {
        print_bytes(out);
        fputs(", \"th\": 256, \"the\": 257, \"\\u0120the\": 258", out);
    } else if (strcmp(parts.vocabulary, "characters") == 0) print_characters(out);
    else fputs(parts.vocabulary, out);
    fprintf(out, "}, \"merges\": %s}}",
            parts.merges ? parts.merges : "[\"t h\", [\"th\", \"e\"], \"\\u0120 the\"]");
    cr_assert_eq(fclose(out), 0);
    const struct json_reader reader = {"dir/tokenizer.json", text, size, &error};
    subwords_free(&subwords);
    char *changed = text;
    const int status = subwords_read_json(&subwords, &changed, NULL, &reader);
    cr_expect_null(changed);
    free(text);
    return status;
}

static void open_parts(struct parts parts) {
    cr_assert_eq(read_parts(parts), 0, "%s", error.text);
}

#define CHARACTERS                                                                 \
    .decoder = "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", "  \
               "\"pattern\": {\"String\": \"\\u2581\"}, \"content\": \" \"}, "     \
               "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": "   \
               "\"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}",      \
    .options = "\"type\": \"BPE\", \"unk_token\": \"<unk>\", \"fuse_unk\": true, " \
               "\"byte_fallback\": true",                                          \
    .vocabulary = "characters", .merges = "[\"a b\", \"\\u2581 ab\", \"\\u2581 \\u2581\"]"

#define LLAMA2_FORM                                                                         \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": "      \
    "\"\\u2581\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": " \
    "\"\\u2581\"}]}"

#define ADDED(id, text, more) \
    "{\"id\": " #id ", \"content\": \"" text "\", \"normalized\": false" more "}"

/* numbers: the tokens, with spaces between. */
static void expect_tokens(const char *text, bool special, const char *numbers) {
    char found[512] = "";
    int32_t *tokens = NULL;
    struct subwords_encoder *encoder = subwords_encoder_open(&subwords);
    cr_assert_not_null(encoder);
    cr_expect_eq(subwords_encode(encoder, &tokens, text, strlen(text), special, &error), 0, "%s",
                 error.text);
    for (size_t i = 0; i < arrlenu(tokens); i++)
        snprintf(found + strlen(found), sizeof found - strlen(found), i ? " %d" : "%d", tokens[i]);
    cr_expect_str_eq(found, numbers, "%s: %s", text, found);
    arrfree(tokens);
    subwords_encoder_close(encoder);
}

static void expect_bytes(int32_t token, const char *text) {
    size_t size;
    const uint8_t *bytes = subwords_bytes(&subwords, token, &size);
    cr_expect(size == strlen(text) && memcmp(bytes, text, size) == 0, "%d", token);
}

Test(subwords, bytes_are_merged_within_pieces) {
    open_parts((struct parts){.added = ENDTEXT});
    cr_expect_eq(subwords.vocab_size, 260);
    expect_tokens("", true, "");
    expect_tokens("the the", true, "257 258");
    expect_tokens("a1the", true, "97 49 257");
    expect_tokens("1the", true, "49 257");
    expect_tokens("t\xff"
                  "h",
                  true, "116 255 104");
    expect_bytes(258, " the");
    expect_bytes(259, "<|endoftext|>");
    expect_bytes(260, "");
    expect_bytes(-1, "");
}

Test(subwords, special_tokens_can_be_ordinary_text) {
    open_parts((struct parts){.added = ENDTEXT});
    expect_tokens("the<|endoftext|>the", true, "257 259 257");
    expect_tokens("<|endo", true, "60 124 101 110 100 111");
    expect_tokens("<|endoftext|>", false, "60 124 101 110 100 111 102 116 101 120 116 124 62");
}

Test(subwords, pieces_that_are_tokens_need_no_merges) {
    const struct parts parts = {.options = "\"ignore_merges\": true", .merges = "[\"t h\"]"};
    open_parts(parts);
    expect_tokens("the the thet", true, "257 258 32 256 101 116");
    open_parts((struct parts){.merges = "[\"t h\"]"});
    expect_tokens("the", true, "256 101");
}

Test(subwords, added_tokens_can_include_white_space_or_require_whole_words) {
    open_parts((struct parts){
        .added = "{\"id\": 259, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false}, "
                 "{\"id\": 260, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false}, "
                 "{\"id\": 261, \"content\": \"one\", \"single_word\": true}, "
                 "{\"id\": 262, \"content\": \"<l><r>\"}"});
    cr_expect_eq(subwords.vocab_size, 263);
    expect_tokens("a \t\xc2\xa0<l> b", true, "97 259 32 98");
    expect_tokens("a <r> \n b", true, "97 32 260 98");
    expect_tokens("<r>  <l>", true, "260 259");
    expect_tokens("one, onea one", true, "261 44 32 111 110 101 97 32 261");
    expect_tokens("\xc3\xa4one", true, "195 164 111 110 101");
    /* The longest match at a position wins, and tokens of the raw text come before others. */
    expect_tokens("<l><r>", true, "259 260");
}

/* Expected tokens are those of Hugging Face's tokenizers 0.23. */
Test(subwords, added_tokens_get_the_numbers_that_tokenizers_give) {
    static const struct {
        const char *added, *text, *tokens;
    } rows[] = {
        {ADDED(300, "<a>", "") "," ADDED(400, "<b>", ""), "<a>the<b>", "259 257 260"},
        {ADDED(260, "<a>", "") "," ADDED(259, "<b>", ""), "<a>the<b>", "259 257 260"},
        {ADDED(999, "the", "") "," ADDED(1000, "<b>", ""), "xthe the<b>", "120 257 32 257 259"},
        {ADDED(258, "\u0120the", "") "," ADDED(259, "<b>", ""), "\u0120the the<b>", "258 258 259"},
        {ADDED(259, "<a>", "") "," ADDED(259, "<a>", ", \"lstrip\": true") "," ADDED(260, "<b>",
                                                                                     ""),
         "x <a><b>", "120 259 260"},
        {ADDED(259, "", "") "," ADDED(260, "<b>", ""), "<b>", "259"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_parts((struct parts){.added = rows[i].added});
        expect_tokens(rows[i].text, true, rows[i].tokens);
    }
}

/* An added token may have the bytes of a token that the vocabulary writes in letters, or the text
 * of the letter of a byte: U+00EF is the letter of the byte 0xEF. */
Test(subwords, added_twins_of_the_vocabulary) {
    char vocabulary[8000];
    FILE *out = fmemopen(vocabulary, sizeof vocabulary, "w");
    print_bytes(out);
    fputs(", \"th\": 256, \"the\": 257, \"\u0120the\": 258, \"na\u00c3\u00afve\": 259", out);
    fclose(out);
    open_parts((struct parts){.vocabulary = vocabulary,
                              .added = ADDED(260, "na\u00efve", "") "," ADDED(261, "\u00ef", "")});
    expect_tokens("na\u00efve the na\u00efv a\u00ef", true, "260 258 32 110 97 239 118 32 97 239");
    cr_expect_eq(subwords.vocab_size, 261);
}

Test(subwords, added_tokens_that_a_model_lacks_are_left_out) {
    open_parts((struct parts){.added = ENDTEXT "," ADDED(260, "<a>", "") "," ADDED(
                                  261, "<ab>", "") "," ADDED(262, "<c>", ", \"special\": true")});
    cr_expect_eq(subwords_leave_out(&subwords, 263), 0, "there are none");
    cr_expect_eq(subwords_leave_out(&subwords, 258), 0, "\" the\" is no added token");
    cr_expect_eq(subwords_leave_out(&subwords, 261), 2);
    cr_expect_eq(subwords.vocab_size, 261);
    expect_tokens("the<ab><a><c>", true, "257 60 97 98 62 260 60 99 62");
    expect_bytes(261, "");
    open_parts((struct parts){
        .added = ENDTEXT,
        .post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                "\"X\"}}, {\"Sequence\": {}}], \"special_tokens\": {\"X\": {\"ids\": [259]}}}"});
    cr_expect_eq(subwords_leave_out(&subwords, 259), 0, "a text begins with it");
    cr_expect_eq(subwords.vocab_size, 260);
}

/* transformers sets both anew for each text. */
Test(subwords, saved_truncation_and_padding_are_ignored) {
    open_parts((struct parts){
        .root = "\"truncation\": {\"direction\": \"Right\", \"max_length\": 2, \"strategy\": "
                "\"LongestFirst\", \"stride\": 0}, \"padding\": {\"strategy\": {\"Fixed\": 9}}, "});
    expect_tokens("the the the", true, "257 258 258");
}

Test(subwords, normal_form_nfc) {
    open_parts((struct parts){
        .normalizer = "{\"type\": \"NFC\"}",
        .added = "{\"id\": 259, \"content\": \"e\\u0301!\", \"normalized\": true}, "
                 "{\"id\": 260, \"content\": \"e\\u0301?\", \"normalized\": false}"});
    expect_tokens("e\xcc\x81", true, "195 169");
    expect_tokens("\xc3\xa9!", true, "259");
    expect_tokens("e\xcc\x81!", true, "259");
    expect_tokens("\xc3\xa9?e\xcc\x81?", true, "195 169 63 260");
}

Test(subwords, a_missing_space_is_prepended) {
    open_parts((struct parts){.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
                              .added = ENDTEXT});
    expect_tokens("the the<|endoftext|>the", true, "258 258 259 258");
    expect_tokens(" the", true, "258");
}

Test(subwords, characters_with_a_space_before) {
    open_parts((struct parts){CHARACTERS, .normalizer = LLAMA2_FORM, .pre = "null",
                              .added = "{\"id\": 2, \"content\": \"</s>\", \"special\": true}"});
    expect_tokens("ab ab", true, "263 263");
    expect_tokens("  ab", true, "264 263");
    expect_tokens("ab</s>ab", true, "263 2 263");
    expect_tokens("a\xc3\xa4\n", true, "259 260 198 167 13");
    expect_tokens("a\xff", true, "259 260 258");
    expect_bytes(263, " ab");
    expect_bytes(13, "\n");
    expect_bytes(1, "<s>");
    cr_expect(subwords.strips_space);
    cr_expect(subwords.cuts_at_words);
    cr_expect_not(subwords_cuts_before(&subwords, ' '));
}

/* Spaces are marked, but none is put before a text, and added tokens of white space are not
 * special. Expected tokens are those of Hugging Face's tokenizers 0.23. */
Test(subwords, characters_of_gemma) {
    struct parts parts = {CHARACTERS,
                          .normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, "
                                        "\"content\": \"\\u2581\"}"};
    parts.pre = "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": "
                "\"MergedWithPrevious\", \"invert\": false}";
    parts.decoder = "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
                    "{\"String\": \"\\u2581\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, "
                    "{\"type\": \"Fuse\"}]}";
    parts.added = ADDED(264, "\\u2581\\u2581", "") "," ADDED(265, "\\n", "") "," ADDED(
        266, "\\n\\n", "") "," ADDED(267, "<i>", "") "," ADDED(268, "<eos>", ", \"special\": true");
    open_parts(parts);
    expect_tokens("ab ab", true, "262 263");
    expect_tokens(" ab   ab", true, "263 264 263");
    expect_tokens("ab\n\n\n ab", true, "262 266 265 263");
    expect_tokens("\u2581\u2581ab", true, "264 262");
    expect_tokens("<eos><i>\t\u00e4", true, "268 267 12 198 167");
    expect_tokens("<i>", false, "267");
    expect_bytes(264, "  ");
    cr_expect_not(subwords.strips_space);
}

/* A byte of which byte_fallback has no token makes an unknown character. */
Test(subwords, a_character_can_replace_its_byte) {
    char *vocabulary;
    size_t size;
    FILE *out = open_memstream(&vocabulary, &size);
    print_characters(out);
    cr_assert_eq(fclose(out), 0);
    struct parts parts = {CHARACTERS, .normalizer = LLAMA2_FORM, .pre = "null"};
    parts.vocabulary = vocabulary;
    memcpy(strstr(vocabulary, "\"<0x09>\""), "\"\\t\"    ", 8);
    open_parts(parts);
    expect_tokens("\t\u00e4", true, "259 12 198 167");
    expect_bytes(12, "\t");
    memcpy(strstr(vocabulary, "\"<0x0A>\""), "\"<0x0a>\"", 8);
    open_parts(parts);
    expect_tokens("\n\xe4\xb8\x8b\t", true, "259 231 187 142 0 12"); /* the order of tokenizers */
    free(vocabulary);
}

/* Letters of bytes have one byte or, like U+0102 of 0x02, two, which byte_fallback spells. The
 * unknown token comes after those of byte_fallback, as in tokenizers. */
Test(subwords, bytes_without_tokens) {
    static const struct {
        const char *options, *tokens[5];
    } rows[] = {
        {"\"type\": \"BPE\"", {"2", "2", "2", "2", "2"}},
        {"\"unk_token\": \"<unk>\"", {"0 3 1", "0 3 3 3 3 1", "3 2", "3 3 2 3 3", "2 3 3"}},
        {"\"unk_token\": \"<unk>\", \"fuse_unk\": true", {"0 3 1", "0 3 1", "3 2", "3 2 3", "2 3"}},
        {"\"byte_fallback\": true", {"0 4 5 1", "0 4 5 1", "2", "2", "2 4 5 4 5"}},
        {"\"unk_token\": \"<unk>\", \"byte_fallback\": true",
         {"0 4 5 1", "0 4 5 3 3 3 1", "3 2", "3 3 2 3 3", "2 4 5 4 5"}},
        {"\"unk_token\": \"<unk>\", \"fuse_unk\": true, \"byte_fallback\": true",
         {"0 4 5 1", "0 4 5 3 1", "3 2", "3 2 3", "2 4 5 4 5"}},
        {"\"ignore_merges\": true", {"2", "2", "6", "2", "2"}},
    };
    static const char *const texts[] = {"a\x02"
                                        "b",
                                        "a\x01\x02\x01\x01"
                                        "b",
                                        "cab",
                                        "\x01"
                                        "cab c",
                                        "ab\x02\x02"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        open_parts((struct parts){.pre = LEVEL,
                                  .options = rows[i].options,
                                  .vocabulary = "\"a\": 0, \"b\": 1, \"ab\": 2, \"<unk>\": 3, "
                                                "\"<0xC4>\": 4, \"<0x82>\": 5, \"cab\": 6",
                                  .merges = "[\"a b\"]"});
        for (size_t j = 0; j < sizeof texts / sizeof *texts; j++)
            expect_tokens(texts[j], true, rows[i].tokens[j]);
        cr_expect_eq(subwords.lacking[2], !strstr(rows[i].options, "fallback"));
        cr_expect(subwords.lacking['c'] && !subwords.lacking['a']);
    }
}

/* tokenizers fails in the same way, and only for such a text. */
Test(subwords, an_unknown_token_that_is_none) {
    int32_t *tokens = NULL;
    open_parts((struct parts){.pre = LEVEL,
                              .options = "\"unk_token\": \"none\"",
                              .vocabulary = "\"a\": 0, \"b\": 1, \"ab\": 2",
                              .merges = "[\"a b\"]"});
    expect_tokens("ab", true, "2");
    struct subwords_encoder *encoder = subwords_encoder_open(&subwords);
    for (int i = 0; i < 2; i++) { /* not even from the cache */
        cr_expect_eq(subwords_encode(encoder, &tokens, "abc", 3, true, &error), -1);
        cr_expect_not_null(strstr(error.text, "a character (first byte 0x63) without a token"),
                           "%s", error.text);
    }
    arrfree(tokens);
    subwords_encoder_close(encoder);
}

Test(subwords, characters_without_tokens) {
    struct parts parts = {CHARACTERS, .normalizer = LLAMA2_FORM, .pre = "null"};
    parts.options = "\"unk_token\": \"<unk>\", \"fuse_unk\": true";
    open_parts(parts);
    expect_tokens("axyb\xc3\xa4", true, "259 260 0 261 0");
    parts.options = "\"unk_token\": \"<unk>\"";
    open_parts(parts);
    expect_tokens("axyb", true, "259 260 0 0 261");
    parts.options = "\"type\": \"BPE\"";
    open_parts(parts);
    expect_tokens("axyb", true, "263");
}

Test(subwords, metaspace) {
    struct parts parts = {CHARACTERS};
    parts.pre = "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": "
                "\"first\", \"split\": false}";
    parts.added = "{\"id\": 2, \"content\": \"</s>\", \"special\": true}";
    open_parts(parts);
    expect_tokens("ab  ab</s>ab ab", true, "263 259 263 2 262 263");
    parts.pre = "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\"}";
    open_parts(parts);
    expect_tokens("ab  ab</s>ab", true, "263 259 263 2 263");
    expect_tokens(" ab", true, "263");
    parts.pre = "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": "
                "\"never\", \"split\": false}";
    open_parts(parts);
    expect_tokens("ab ab", true, "262 263");
}

Test(subwords, templates_add_tokens_around_a_text) {
    open_parts((struct parts){
        .added = ENDTEXT,
        .post = "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}, "
                "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                "\"X\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, "
                "{\"SpecialToken\": {\"id\": \"Y\", \"type_id\": 0}}], \"pair\": [], "
                "\"special_tokens\": {\"X\": {\"id\": \"X\", \"ids\": [259], \"tokens\": []}, "
                "\"Y\": {\"ids\": [1, 2]}}}]}"});
    cr_expect(subwords.begin_count == 1 && subwords.begins[0] == 259);
    cr_expect(subwords.end_count == 2 && subwords.ends[0] == 1 && subwords.ends[1] == 2);
}

Test(subwords, positions_where_text_may_be_cut) {
    struct parts parts = {.pre = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"};
    open_parts(parts);
    cr_expect(subwords_cuts_before(&subwords, ' '));
    parts.normalizer = "{\"type\": \"NFC\"}";
    open_parts(parts);
    cr_expect(subwords_cuts_before(&subwords, '\n'));
    parts.normalizer = LLAMA2_FORM;
    open_parts(parts);
    cr_expect_not(subwords_cuts_before(&subwords, ' '));
}

#define GROW                                                                          \
    "{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"aaaaaa" \
    "aaaaaaaaaaaaaaaaaaaa\"}"

Test(subwords, a_normal_form_that_is_too_long_fails) {
    int32_t *tokens = NULL;
    uint8_t text[1000];
    memset(text, 'a', sizeof text);
    open_parts((struct parts){.normalizer =
                                  "{\"type\": \"Sequence\", \"normalizers\": [" GROW ", " GROW
                                  ", " GROW ", " GROW ", " GROW ", " GROW "]}"});
    struct subwords_encoder *encoder = subwords_encoder_open(&subwords);
    cr_assert_eq(subwords_encode(encoder, &tokens, text, sizeof text, true, &error), -1);
    cr_expect_not_null(strstr(error.text, "normalizer, Replace by \"aaaaaa"), "%s", error.text);
    cr_expect_eq(subwords_encode(encoder, &tokens, "b", 1, true, &error), 0, "as usual afterwards");
    cr_assert_eq(arrlenu(tokens), 1);
    cr_expect_eq(tokens[0], 'b');
    subwords_encoder_close(encoder);
    arrfree(tokens);
}

static void encode_copies(const void *part, size_t size) {
    int32_t *tokens = NULL;
    char *text = malloc(size);
    struct subwords_encoder *encoder = subwords_encoder_open(&subwords);
    cr_assert(text && encoder);
    for (size_t i = 0; i < size; i++) text[i] = ((const char *)part)[i % strlen(part)];
    cr_expect_eq(subwords_encode(encoder, &tokens, text, size, true, &error), 0);
    subwords_encoder_close(encoder);
    arrfree(tokens);
    free(text);
}

Test(subwords, added_tokens_with_white_space_take_linear_time) {
    open_parts((struct parts){.added = "{\"id\": 9, \"content\": \"\\t\", \"lstrip\": true, "
                                       "\"rstrip\": true, \"normalized\": false}"});
    cr_expect(grows_in_proportion(encode_copies, "\t", 300000));
    cr_expect(grows_in_proportion(encode_copies, "\t ", 300000));
}

/* Members that would make the cost grow with the product of their sizes. */
Test(subwords, long_added_tokens_and_templates_are_refused) {
    char *added = NULL, *post = NULL;
    size_t added_size, post_size;
    FILE *out = open_memstream(&added, &added_size);
    fprintf(out, "{\"id\": 259, \"content\": \"%01025d\"}", 0);
    fclose(out);
    cr_expect_eq(read_parts((struct parts){.added = added}), -1);
    cr_expect_not_null(strstr(error.text, "more than 1,024 bytes"), "%s", error.text);
    out = open_memstream(&post, &post_size);
    fputs("{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {}}", out);
    for (int i = 0; i < 20; i++) fputs(", {\"SpecialToken\": {\"id\": \"x\"}}", out);
    fputs("], \"special_tokens\": {\"x\": {\"ids\": []}}}", out);
    fclose(out);
    cr_expect_eq(read_parts((struct parts){.post = post}), -1);
    cr_expect_not_null(strstr(error.text, "template of so many parts"), "%s", error.text);
    free(added);
    free(post);
}

Test(subwords, unsupported_parts_are_refused_by_name) {
    static const struct {
        struct parts parts;
        const char *message;
    } rows[] = {
        {{.root = "\"future\": 1, "}, "its file has \"future\", which is not supported"},
        {{.options = "\"type\": \"Unigram\""}, "its model \"Unigram\" is not supported"},
        {{.options = "\"dropout\": 0.1"}, "its model's option \"dropout\""},
        {{.options = "\"continuing_subword_prefix\": \"##\""}, "prefix \"##\""},
        {{.options = "\"end_of_word_suffix\": \"</w>\""}, "suffix \"</w>\""},
        {{.options = "\"future\": true"}, "its model has \"future\""},
        {{.options = "\"ignore_merges\": 1"}, "\"ignore_merges\" is neither true nor false"},
        {{.normalizer = "{\"type\": \"Lowercase\"}"}, "its normalizer \"Lowercase\""},
        {{.normalizer = "{\"type\": \"NFC\", \"future\": 1}"}, "its normalizer has \"future\""},
        {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFKC\"}]}"},
         "its normalizer \"NFKC\""},
        {{.normalizer = "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \" +\"}, "
                        "\"content\": \"x\"}"},
         "\"Replace of a Regex\""},
        {{.normalizer = "5"}, "its normalizer \"that is no object\""},
        {{.pre = "{\"type\": \"BertPreTokenizer\"}"}, "its pre_tokenizer \"BertPreTokenizer\""},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": "
                 "\"MergedWithNext\"}"},
         "its Split's behavior \"MergedWithNext\""},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\bx\"}, \"behavior\": "
                 "\"Isolated\"}"},
         "the pattern that cuts text, at \"\\bx\": this escape is not supported"},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}"},
         "its pattern \"without a text\""},
        {{.pre = "{\"type\": \"Split\", \"pattern\": {\"String\": \"(\"}, \"behavior\": "
                 "\"Isolated\"}"},
         "\"Split without ByteLevel\""},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [" LEVEL ", " LEVEL "]}"},
         "\"after ByteLevel\""},
        {{.pre = "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, "
                 "{\"type\": \"ByteLevel\"}]}"},
         "\"ByteLevel with add_prefix_space after others\""},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"_\"}"}, "replacement \"_\""},
        {{.pre = "{\"type\": \"Metaspace\", \"replacement\": \"\\u2581\", \"prepend_scheme\": "
                 "\"last\"}"},
         "prepend_scheme \"last\""},
        {{.post = "{\"type\": \"RobertaProcessing\"}"}, "its post_processor \"RobertaProcessing\""},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": []}"},
         "\"template without one text\""},
        {{.post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
                  "\"X\"}}, {\"Sequence\": {}}], \"special_tokens\": {}}"},
         "its template's token \"X\""},
        {{.decoder = "{\"type\": \"WordPiece\"}"}, "its decoder \"WordPiece\""},
        {{.decoder = "null"}, "its decoder \"null\""},
        {{.pre = "null", .decoder = "{\"type\": \"CTC\"}"}, "its decoder \"CTC\""},
        {{.added = "{\"id\": 259, \"content\": \"x!\", \"future\": 0}"},
         "its added token has \"future\""},
        {{.added = "{\"id\": 5.5, \"content\": \"x!\"}"}, "has no valid number"},
        {{.added = "{\"content\": \"x!\"}"}, "has no valid number"},
        {{.vocabulary = ""}, "its vocabulary \"that is empty\""},
        {{.vocabulary = "\"a\": 0, \"b\": 0"}, "\"b\" has the number of another token"},
        {{.vocabulary = "\"a\": 0, \"a\": 1"}, "\"a\" appears twice"},
        {{.vocabulary = "\"a b\": 0"}, "not written in GPT-2's alphabet of bytes"},
        {{.vocabulary = "\"a\": 1.5"}, "has no valid number"},
        {{.vocabulary = "\"\": 0"}, "is empty"},
        {{.merges = "[\"th\"]"}, "merge 0: a merge must be"},
        {{.merges = "[\"t q\"]"}, "\"t\" merges to a text that is not a token"},
        {{.merges = "[\"tq t\"]"}, "\"tq\" is merged, but not in the vocabulary"},
        {{.merges = "[\"t h\", \"t h\"]"}, "the same token twice"},
        {{.merges = "{}"}, "its merges \"that are no list\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cr_expect_eq(read_parts(rows[i].parts), -1, "expected: %s", rows[i].message);
        cr_expect_not_null(strstr(error.text, rows[i].message), "\"%s\" is not in: %s",
                           rows[i].message, error.text);
        cr_expect_not_null(strstr(error.text, "dir/tokenizer.json:"), "%s", error.text);
        cr_expect_eq(subwords.vocab_size, 0);
    }
}
