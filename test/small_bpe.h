/* Byte-pair encodings made in memory, for tests and fuzzers: 256 bytes, whose token is the byte's
 * value, and merges. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/text/bpe.h"
#include "data/text/bpe_builder.h"

/* Begins an encoding with the bytes. Ends the program where it cannot, like all of these. */
static inline void small_bpe_begin(struct bpe_builder *builder, struct bpe *bpe) {
    bpe_builder_open(builder, bpe);
    for (int byte = 0; byte < 256; byte++) {
        char name[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&builder->alphabet, name, (uint8_t)byte);
        if (bpe_builder_add_token(builder, name, byte)) abort();
    }
}

/* merges: "left right" each, in the alphabet of bytes, by rank. Their results get the next tokens
 * in their order, a result that is known already keeps its token; last comes <|endoftext|>. */
static inline void small_bpe(struct bpe *bpe, const char *const *merges, size_t count) {
    struct bpe_builder builder;
    char pair[128], result[128], *right;
    small_bpe_begin(&builder, bpe);
    int next = 256;
    for (size_t i = 0; i < count; i++) {
        if (strlen(merges[i]) >= sizeof pair) abort();
        strcpy(pair, merges[i]);
        right = strchr(pair, ' ');
        *right++ = '\0';
        strcpy(result, pair);
        strcat(result, right);
        if (bpe_builder_find(&builder, result) < 0 &&
            bpe_builder_add_token(&builder, result, next++))
            abort();
    }
    if (bpe_builder_add_token(&builder, BPE_END_OF_TEXT, next)) abort();
    if (bpe_builder_finish_tokens(&builder)) abort();
    for (size_t i = 0; i < count; i++) {
        strcpy(pair, merges[i]);
        right = strchr(pair, ' ');
        *right++ = '\0';
        if (bpe_builder_add_merge(&builder, pair, right)) abort();
    }
    bpe_builder_close(&builder);
}

/* Reference for byte_tokens_merge: one merge after the other, without tables; appends to
 * *tokens. */
static inline void naive_merge(const struct bpe *bpe, int32_t **tokens, const uint8_t *piece,
                               size_t size) {
    struct merge *list = merges_list(&bpe->merges);
    int32_t *all = NULL;
    for (size_t i = 0; i < size; i++) arrput(all, bpe->byte_tokens.tokens[piece[i]]);
    for (size_t rank = 0; rank < arrlenu(list);) {
        const struct merge merge = list[rank];
        size_t at = 0;
        while (at + 1 < arrlenu(all) && (all[at] != merge.left || all[at + 1] != merge.right)) at++;
        if (at + 1 >= arrlenu(all)) {
            rank++;
            continue;
        }
        all[at] = merge.token;
        arrdel(all, at + 1);
        /* It may have made a pair of a lower rank. */
        rank = 0;
    }
    for (size_t i = 0; i < arrlenu(all); i++) arrput(*tokens, all[i]);
    arrfree(all);
    arrfree(list);
}
