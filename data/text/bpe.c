#include "data/text/bpe.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/text/json_reader.h"

void bpe_free(struct bpe *bpe) {
    arrfree(bpe->bytes);
    arrfree(bpe->starts);
    merges_free(&bpe->merges);
    *bpe = (struct bpe){0};
}

static bool same_token(const struct bpe *a, const struct bpe *b, int token) {
    const uint32_t size = a->starts[token + 1] - a->starts[token];
    return size == b->starts[token + 1] - b->starts[token] &&
           memcmp(a->bytes + a->starts[token], b->bytes + b->starts[token], size) == 0;
}

static bool same_merges(const struct merges *a, const struct merges *b) {
    struct merge *left = merges_list(a), *right = merges_list(b);
    const bool same = a->count == b->count &&
                      (a->count == 0 || memcmp(left, right, a->count * sizeof *left) == 0);
    arrfree(left);
    arrfree(right);
    return same;
}

int bpe_compare(const struct bpe *a, const char *a_name, const struct bpe *b, const char *b_name,
                struct error *error) {
    const char *const remedy = "keep the files of one tokenizer only";
    if (a->vocab_size != b->vocab_size)
        return fail(error, "%.*s has %d tokens, but %.*s has %d\n%s", JSON_READER_PATH_SHOWN,
                    a_name, a->vocab_size, JSON_READER_PATH_SHOWN, b_name, b->vocab_size, remedy);
    for (int token = 0; token < a->vocab_size; token++)
        if (!same_token(a, b, token))
            return fail(error, "%.*s and %.*s disagree on the token %d\n%s", JSON_READER_PATH_SHOWN,
                        a_name, JSON_READER_PATH_SHOWN, b_name, token, remedy);
    if (!same_merges(&a->merges, &b->merges) || a->whole_text != b->whole_text)
        return fail(error, "%.*s and %.*s disagree on the merges\n%s", JSON_READER_PATH_SHOWN,
                    a_name, JSON_READER_PATH_SHOWN, b_name, remedy);
    return 0;
}
