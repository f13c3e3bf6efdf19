/* Any bytes, encoded and decoded, give the same bytes. Each piece's tokens equal those of
 * merging one pair after the other, whatever pieces were encoded before. */
#include "data/tokenize/tokenizer.h"
#include "test/fuzz/fuzz.h"
#include "test/small_bpe.h"

static const char *const merges[] = {"t h",
                                     "\xc4\xa0 t",
                                     "h e",
                                     "th e",
                                     "\xc4\xa0t he",
                                     "a a",
                                     "aa a",
                                     "aa aa",
                                     "\xc4\xa0 a",
                                     "i n",
                                     "in g",
                                     "' s",
                                     "1 2",
                                     "\xc4\xa0 \xc4\xa0",
                                     "\xc4\x8a \xc4\x8a",
                                     "\xc3\xb0 \xc5\x81",
                                     "\xc3\xb0\xc5\x81 \xc4\xba",
                                     "= =",
                                     "== ==",
                                     "e r",
                                     "\xc3\xa6 \xc4\xb9",
                                     "\xc3\xbf \xc3\xbf",
                                     "h er",
                                     "< |",
                                     "b b",
                                     "a b",
                                     "ab a",
                                     "a ba",
                                     "b a"};

static struct tokenizer tokenizer;
static struct subwords bpe;
static struct tokenizer_encoder *encoder;

static void begin(void) {
    small_bpe(&bpe, merges, sizeof merges / sizeof *merges);
    tokenizer =
        (struct tokenizer){.kind = TOKENIZER_GPT2, .vocab_size = bpe.vocab_size, .subwords = &bpe};
    encoder = tokenizer_encoder_open(&tokenizer);
    require(encoder != NULL);
}

static void require_decoded(const int32_t *tokens, const uint8_t *text, size_t size) {
    size_t at = 0, length;
    for (size_t i = 0; i < arrlenu(tokens); i++) {
        const uint8_t *bytes = tokenizer_bytes(&tokenizer, tokens[i], &length);
        require(length > 0 && length <= size - at && memcmp(bytes, text + at, length) == 0);
        at += length;
    }
    require(at == size);
}

/* Reference: the plain tokens by definition. Used only where it is fast enough. */
static void require_like_naive(const int32_t *tokens, const uint8_t *text, size_t size) {
    int32_t *expected = NULL;
    size_t from, to;
    static struct pretokenizer pretokenizer;
    pretokenizer_begin(&pretokenizer, bpe.rules, 1, text, size);
    while (pretokenizer_next(&pretokenizer, &from, &to)) {
        if (to - from > 200) {
            arrfree(expected);
            return;
        }
        naive_merge(&bpe, &expected, text + from, to - from);
    }
    require(arrlenu(tokens) == arrlenu(expected));
    require(arrlenu(tokens) == 0 ||
            memcmp(tokens, expected, arrlenu(tokens) * sizeof *tokens) == 0);
    arrfree(expected);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    int32_t *tokens = NULL;
    struct error error;
    if (!encoder) begin();
    const bool is_whole = size > 0 && bytes[0] == 'W';
    bpe.rule_count = !is_whole;
    require(tokenizer_encode(encoder, &tokens, bytes, size, true, &error) == 0);
    require_decoded(tokens, bytes, size);
    arrsetlen(tokens, 0);
    require(tokenizer_encode(encoder, &tokens, bytes, size, false, &error) == 0);
    require_decoded(tokens, bytes, size);
    if (!is_whole) require_like_naive(tokens, bytes, size);
    arrfree(tokens);
    return 0;
}
