/* Any bytes as vocab.json, merges.txt or tokenizer.json, alone or inserted into otherwise valid
 * files, are rejected with a message that names the file, or give a complete encoding. */
#include "data/tokenize/tokenizer.h"
#include "test/fuzz/fuzz.h"
#include "test/small_bpe.h"

static char letters[4096]; /* the members of a vocabulary that has all bytes, and a comma */

static void begin(void) {
    FILE *out = fmemopen(letters, sizeof letters, "w");
    require(out != NULL);
    print_bytes(out);
    fputs(",", out);
    require(fclose(out) == 0);
}

static void require_whole(struct subwords *bpe) {
    static const uint8_t text[] = "The the <|endoftext|> \xff\xc3\xa4 aaaa\n";
    struct error error;
    size_t at = 0, length;
    int32_t *tokens = NULL;
    const struct tokenizer tokenizer = {
        .kind = TOKENIZER_GPT2, .vocab_size = bpe->vocab_size, .subwords = bpe};
    require(bpe->vocab_size >= 256 && bpe->vocab_size <= VOCABULARY_MAX);
    struct merge *merges = merges_list(&bpe->merges);
    for (size_t i = 0; i < arrlenu(merges); i++) {
        const uint32_t *starts = bpe->names.starts;
        const struct merge merge = merges[i];
        require(starts[merge.left + 1] - starts[merge.left] + starts[merge.right + 1] -
                    starts[merge.right] ==
                starts[merge.token + 1] - starts[merge.token]);
    }
    arrfree(merges);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    require(encoder != NULL);
    require(tokenizer_encode(encoder, &tokens, text, sizeof text, true, &error) == 0);
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        const uint8_t *bytes = tokenizer_bytes(&tokenizer, tokens[i], &length);
        require(length > 0 && memcmp(bytes, text + at, length) == 0);
        at += length;
    }
    require(at == sizeof text);
    tokenizer_encoder_close(encoder);
    arrfree(tokens);
}

static void finish(struct subwords *bpe, int status, const char *error) {
    if (status == 0) require(bpe->vocab_size <= VOCABULARY_MAX);
    if (status == 0 && bpe->is_gpt2) require_whole(bpe);
    if (status)
        require(bpe->vocab_size == 0 && (strstr(error, "VOCAB") || strstr(error, "MERGES")));
    subwords_free(bpe);
}

/* Memory of exactly the text's size and its NUL, so that sanitizers detect overreads. */
static char *join(const char *before, const uint8_t *bytes, size_t size, const char *after,
                  size_t *all) {
    *all = strlen(before) + size + strlen(after);
    char *text = malloc(*all + 1);
    require(text != NULL);
    memcpy(text, before, strlen(before));
    memcpy(text + strlen(before), bytes, size);
    strcpy(text + strlen(before) + size, after);
    return text;
}

static void read_pair(const char *before, const uint8_t *bytes, size_t size, const char *after,
                      const uint8_t *lines, size_t lines_size) {
    struct subwords bpe;
    struct error error = {0};
    size_t vocab_size, merges_size;
    char *vocab = join(before, bytes, size, after, &vocab_size);
    char *merges = join("", lines, lines_size, "", &merges_size);
    finish(&bpe,
           subwords_read_gpt2(&bpe, NULL, NULL,
                              &(struct json_reader){"VOCAB", vocab, vocab_size, &error},
                              &(struct json_reader){"MERGES", merges, merges_size, &error}),
           error.text);
    free(vocab);
    free(merges);
}

static void read_whole(const char *before, const uint8_t *bytes, size_t size, const char *after) {
    struct subwords bpe;
    struct error error = {0};
    size_t all;
    char *text = join(before, bytes, size, after, &all);
    finish(&bpe,
           subwords_read_json(&bpe, NULL, NULL, &(struct json_reader){"VOCAB", text, all, &error}),
           error.text);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char some[] = "\"th\":256,\"the\":257,\"#t\":258,\"<|endoftext|>\":259}",
                      level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
    char before[8192], after[8192];
    if (!*letters) begin();
    const uint8_t choice = size ? bytes[0] : 0;
    if (size) bytes++, size--;
    const uint8_t line[] = {'t', ' ', 'h', '\n'};
    snprintf(before, sizeof before, "{%s", letters);
    switch (choice % 6) {
    case 0: read_pair("", bytes, size, "", line, sizeof line); break;
    case 1: /* more tokens */ read_pair(before, bytes, size, "}", line, sizeof line); break;
    case 2: /* merges */ read_pair(before, bytes, 0, some, bytes, size); break;
    case 3: read_whole("", bytes, size, ""); break;
    case 4: /* merges and whatever follows them */
        snprintf(before, sizeof before,
                 "{\"pre_tokenizer\":%s,\"decoder\":%s,\"model\":{\"vocab\":{%s%s,\"merges\":",
                 level, level, letters, some);
        read_whole(before, bytes, size, "}}");
        break;
    default: /* all but the model */
        snprintf(after, sizeof after, ",\"model\":{\"vocab\":{%s%s,\"merges\":[\"t h\"]}}", letters,
                 some);
        read_whole("{", bytes, size, after);
    }
    return 0;
}
