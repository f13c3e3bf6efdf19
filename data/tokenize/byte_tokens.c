#include "data/tokenize/byte_tokens.h"

#include <stb/stb_ds.h>

void byte_tokens_join(struct byte_tokens *bytes, const uint8_t *name, size_t size) {
    for (size_t i = 1; i < size; i++) bytes->joined[name[i - 1]][name[i]] = true;
}

/* No merge crosses two bytes that no token joins, so each run between such positions is merged
 * alone. Most unusual text splits this way, and merging fewer tokens at once is faster. */
void byte_tokens_merge(const struct byte_tokens *bytes, const struct merges *merges,
                       struct merges_scratch *scratch, int32_t **tokens, const uint8_t *piece,
                       size_t size) {
    if (size == 0) return;
    const size_t before = arrlenu(*tokens);
    int32_t *added = arraddnptr(*tokens, size);
    size_t count = 0;
    for (size_t begin = 0, end; begin < size; begin = end) {
        end = begin;
        do added[count + end - begin] = bytes->tokens[piece[end]];
        while (++end < size && bytes->joined[piece[end - 1]][piece[end]]);
        count += merges_apply(merges, scratch, added + count, end - begin);
    }
    arrsetlen(*tokens, before + count);
}
