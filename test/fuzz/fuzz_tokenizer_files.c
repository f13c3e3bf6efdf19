/* Any bytes as vocab.json, merges.txt or tokenizer.json, alone or set into files that are right
 * otherwise, are refused with a message that names the file, or give an encoding that is whole. */
#include "data/text/bpe_builder.h"
#include "data/text/bpe_files.h"
#include "data/text/tokenizer.h"
#include "test/fuzz/fuzz.h"

#include <stb/stb_ds.h>

static char letters[4096]; /* the members of a vocabulary that has all bytes */

static void begin(void) {
    struct byte_alphabet alphabet;
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++) {
        char letter[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, letter, (uint8_t)byte);
        snprintf(letters + strlen(letters), sizeof letters - strlen(letters), "\"%s%s\":%d,",
                 byte == '"' || byte == '\\' ? "\\" : "", letter, byte);
    }
}

static void require_whole(struct bpe *bpe) {
    static const uint8_t text[] = "The the <|endoftext|> \xff\xc3\xa4 aaaa\n";
    struct error error;
    size_t at = 0, length;
    int32_t *tokens = NULL;
    const struct tokenizer tokenizer = {.kind = TOKENIZER_GPT2,
                                        .vocab_size = bpe->vocab_size,
                                        .end_of_text = bpe->end_of_text,
                                        .bpe = bpe};
    require(bpe->vocab_size >= 256 && bpe->vocab_size <= VOCABULARY_MAX);
    require(bpe_compare(bpe, "a", bpe, "b", &error) == 0);
    struct merge *merges = merges_list(&bpe->merges);
    for (size_t i = 0; i < arrlenu(merges); i++) {
        const uint32_t *starts = bpe->starts;
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

static void finish(struct bpe *bpe, int status, const char *error) {
    if (status == 0) require_whole(bpe);
    else require(bpe->vocab_size == 0 && (strstr(error, "VOCAB") || strstr(error, "MERGES")));
    bpe_free(bpe);
}

/* Memory of exactly the text's size and its NUL, so that reading beyond is seen. */
static struct bpe_file file_of(const char *path, const char *before, const uint8_t *bytes,
                               size_t size, const char *after) {
    const size_t all = strlen(before) + size + strlen(after);
    char *text = malloc(all + 1);
    require(text != NULL);
    memcpy(text, before, strlen(before));
    memcpy(text + strlen(before), bytes, size);
    strcpy(text + strlen(before) + size, after);
    return (struct bpe_file){.path = path, .bytes = text, .size = all};
}

static void read_pair(struct bpe_file vocab, struct bpe_file merges) {
    struct bpe bpe;
    struct error error = {0};
    finish(&bpe, bpe_read_vocab_and_merges(&bpe, &vocab, &merges, &error), error.text);
    free((char *)vocab.bytes);
    free((char *)merges.bytes);
}

static void read_whole(struct bpe_file file) {
    struct bpe bpe;
    struct error error = {0};
    finish(&bpe, bpe_read_tokenizer(&bpe, &file, &error), error.text);
    free((char *)file.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static const char some[] = "\"th\":256,\"the\":257,\"#t\":258,\"<|endoftext|>\":259}",
                      level[] = "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}";
    char before[8192], after[8192];
    if (!*letters) begin();
    const uint8_t choice = size ? bytes[0] : 0;
    if (size) bytes++, size--;
    const uint8_t none[1] = "";
    switch (choice % 6) {
    case 0:
        read_pair(file_of("VOCAB", "", bytes, size, ""), file_of("MERGES", "t h\n", none, 0, ""));
        break;
    case 1: /* more tokens */
        snprintf(before, sizeof before, "{%s", letters);
        read_pair(file_of("VOCAB", before, bytes, size, "}"),
                  file_of("MERGES", "t h\n", none, 0, ""));
        break;
    case 2: /* merges */
        snprintf(before, sizeof before, "{%s%s", letters, some);
        read_pair(file_of("VOCAB", before, none, 0, ""), file_of("MERGES", "", bytes, size, ""));
        break;
    case 3: read_whole(file_of("VOCAB", "", bytes, size, "")); break;
    case 4: /* merges and whatever follows them */
        snprintf(before, sizeof before,
                 "{\"pre_tokenizer\":%s,\"decoder\":%s,\"model\":{\"vocab\":{%s%s,\"merges\":",
                 level, level, letters, some);
        read_whole(file_of("VOCAB", before, bytes, size, "}}"));
        break;
    default: /* all but the model */
        snprintf(after, sizeof after, ",\"model\":{\"vocab\":{%s%s,\"merges\":[\"t h\"]}}", letters,
                 some);
        read_whole(file_of("VOCAB", "{", bytes, size, after));
    }
    return 0;
}
