/* Any bytes as tokenizer.json, as a part of a valid one, as a pattern, as ranks or as a text:
 * either rejected with a message that names the file, or tokens of the vocabulary. */
#include "data/tokenize/tiktoken_vocab.h"
#include "test/fuzz/fuzz.h"
#include "test/small_bpe.h"

#include <stb/stb_ds.h>

static char letters[4096]; /* the members of a vocabulary that has all bytes, and a comma */

static void begin(void) {
    FILE *out = fmemopen(letters, sizeof letters, "w");
    require(out != NULL);
    print_bytes(out);
    fputs(",", out);
    require(fclose(out) == 0);
}

static void encode(const struct subwords *subwords, const void *text, size_t size) {
    int32_t *tokens = NULL;
    struct error error = {0};
    struct subwords_encoder *encoder = subwords_encoder_open(subwords);
    require(encoder != NULL);
    if (subwords_encode(encoder, &tokens, text, size, true, &error)) require(*error.text);
    if (subwords_encode(encoder, &tokens, text, size, false, &error)) require(*error.text);
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        size_t length;
        subwords_bytes(subwords, tokens[i], &length);
        require(tokens[i] >= 0 && tokens[i] < subwords->vocab_size && length > 0);
    }
    subwords_encoder_close(encoder);
    arrfree(tokens);
}

static void finish(struct subwords *subwords, int status, const char *error) {
    static const char text[] = "The the <x>  \xff\xc3\xa4 e\xcc\x81 aaaa 1234'S\n\n"
                               "\xe2\x96\x81";
    if (status == 0) encode(subwords, text, sizeof text);
    else require(subwords->vocab_size == 0 && strstr(error, "NAME"));
    subwords_free(subwords);
}

/* Returns the text of the parts in memory of exactly that size and a NUL, so that sanitizers
 * detect overreads. */
static char *join(size_t *size, const char *before, const uint8_t *bytes, size_t count,
                  const char *after) {
    *size = strlen(before) + count + strlen(after);
    char *text = malloc(*size + 1);
    require(text != NULL);
    memcpy(text, before, strlen(before));
    memcpy(text + strlen(before), bytes, count);
    strcpy(text + strlen(before) + count, after);
    return text;
}

static void read_json(const char *before, const uint8_t *bytes, size_t count, const char *after) {
    struct subwords subwords;
    struct error error = {0};
    size_t size;
    char *text = join(&size, before, bytes, count, after);
    finish(&subwords,
           subwords_read_json(&subwords, NULL, NULL,
                              &(struct json_reader){"NAME", text, size, &error}),
           error.text);
    free(text);
}

/* bytes: tiktoken.json, a NUL, and lines of ranks. */
static void read_ranks(const uint8_t *bytes, size_t count) {
    struct subwords subwords;
    struct error error = {0};
    size_t size, ranks_size;
    const uint8_t *nul = memchr(bytes, 0, count);
    const size_t first = nul ? (size_t)(nul - bytes) : count;
    char *json = join(&size, "", bytes, first, "");
    char *ranks = join(&ranks_size, "", bytes + first, count - first, "");
    if (nul) memmove(ranks, ranks + 1, ranks_size--);
    finish(&subwords,
           subwords_read_tiktoken(&subwords, &(struct json_reader){"NAME", json, size, &error},
                                  &(struct json_reader){"NAME", ranks, ranks_size, &error}),
           error.text);
    free(json);
    free(ranks);
}

/* The text passes through every feature that a tokenizer can have. */
static void encode_any(const uint8_t *bytes, size_t count) {
    static struct subwords subwords;
    static const char head[] =
        "{\"normalizer\":{\"type\":\"NFC\"},\"added_tokens\":[{\"id\":258,\"content\":\"<x>\","
        "\"lstrip\":true,\"rstrip\":true},{\"id\":259,\"content\":\"xx\",\"single_word\":true}],"
        "\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"Sequence\","
        "\"pretokenizers\":[{\"type\":\"Digits\"},{\"type\":\"Split\",\"behavior\":\"Isolated\","
        "\"pattern\":{\"Regex\":\"(?i:'s|'re)|[^\\\\r\\\\n\\\\p{L}]?\\\\p{L}+|\\\\s*[\\\\r\\\\n]+"
        "|\\\\s+(?!\\\\S)|\\\\s+\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false}]},"
        "\"model\":{\"vocab\":{";
    struct error error;
    if (!subwords.atoms) {
        char text[8192];
        snprintf(text, sizeof text, "%s%s\"th\":256,\"aa\":257},\"merges\":[\"t h\",\"a a\"]}}",
                 head, letters);
        require(subwords_read_json(&subwords, NULL, NULL,
                                   &(struct json_reader){"NAME", text, strlen(text), &error}) == 0);
    }
    encode(&subwords, bytes, count);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
    char before[8192], after[8192];
    if (!*letters) begin();
    const uint8_t choice = size ? bytes[0] : 0;
    if (size) bytes++, size--;
    snprintf(after, sizeof after, ",\"model\":{\"vocab\":{%s\"th\":256},\"merges\":[\"t h\"]}}",
             letters);
    switch (choice % 6) {
    case 0: read_json("", bytes, size, ""); break;
    case 1: /* all but the model */ read_json("{", bytes, size, after); break;
    case 2: /* a pattern */
        snprintf(before, sizeof before,
                 "{\"decoder\":%s,\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{"
                 "\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{\"Regex\":\"",
                 level);
        memmove(after + strlen("\"}}, ]}") + strlen(level), after, strlen(after) + 1);
        memcpy(after, "\"}}, ", 5);
        memcpy(after + 5, level, strlen(level));
        memcpy(after + 5 + strlen(level), "]}", 2);
        read_json(before, bytes, size, after);
        break;
    case 3: /* a tokenizer of characters */
        read_json("{\"decoder\":{\"type\":\"Fuse\"},", bytes, size,
                  ",\"model\":{\"unk_token\":\"a\",\"fuse_unk\":true,\"vocab\":{\"\xe2\x96\x81\":0,"
                  "\"a\":1,\"aa\":2},\"merges\":[\"a a\"]}}");
        break;
    case 4: read_ranks(bytes, size); break;
    default: encode_any(bytes, size);
    }
    return 0;
}
