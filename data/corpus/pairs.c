#include "data/corpus/pairs.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"

bool pairs_exist(const struct tokens *tokens) {
    for (size_t i = 0; i < arrlenu(tokens->shards); i++)
        if (token_mask_has_pairs(&tokens->shards[i].mask)) return true;
    return false;
}

bool pairs_labelled(const struct tokens *tokens) {
    for (size_t i = 0; i < arrlenu(tokens->shards); i++) {
        const struct token_shard *shard = &tokens->shards[i];
        for (uint64_t token = 0; token_mask_has_pairs(&shard->mask) && token < shard->count;
             token++)
            if (token_mask_is_rejected(&shard->mask, token))
                return token_mask_has_label(&shard->mask, token);
    }
    return false;
}

const char *pairs_noun(const struct pairs *pairs) {
    static const char *const nouns[2][2] = {{"pair", "pairs"},
                                            {"labelled answer", "labelled answers"}};
    return nouns[pairs->labelled][arrlenu(pairs->list) != 1];
}

static int fail_damaged(const struct token_shard *shard, uint64_t token, const char *what,
                        struct error *error) {
    return fail(error,
                "%.600s: the pair at token %" PRIu64 " %s\nprepare the rows again with ./prepare",
                shard->name, token, what);
}

/* Returns the first token from `token` on that begins a document, or the number of tokens. */
static uint64_t next_begin(const struct token_shard *shard, uint64_t token) {
    while (token < shard->count && !token_mask_begins(&shard->mask, token)) token++;
    return token;
}

/* Reads the document that begins with a token. Returns -1 if there is no prompt or no answer. */
static int read_document(struct pair *pair, int side, const struct token_shard *shard,
                         uint64_t begin, uint64_t *end) {
    uint64_t answer = begin + 1;
    *end = next_begin(shard, begin + 1);
    const uint64_t last = *end - 1;
    while (answer <= last && !token_mask_in_loss(&shard->mask, answer)) answer++;
    if (answer > last || last - begin > INT32_MAX) return -1;
    pair->begin[side] = begin;
    pair->rows[side] = (uint32_t)(last - begin);
    pair->answer[side] = (uint32_t)(answer - begin - 1);
    return 0;
}

/* Cuts a document to at most `limit` rows. */
static bool cut_document(struct pair *pair, int side, uint32_t limit) {
    const uint32_t prompt = pair->answer[side], answer = pair->rows[side] - prompt;
    if (pair->rows[side] <= limit) return false;
    const uint32_t wanted = MIN(answer, limit - limit / 2);
    const uint32_t skipped = prompt + wanted > limit ? prompt + wanted - limit : 0;
    pair->begin[side] += skipped;
    pair->answer[side] -= skipped;
    pair->rows[side] = MIN(pair->rows[side] - skipped, limit);
    return true;
}

static bool cut_pair(struct pair *pair, uint32_t seq_len, uint32_t longest) {
    const uint32_t rows[] = {pair->rows[0], pair->rows[1]};
    const uint32_t half[] = {seq_len / 2, seq_len - seq_len / 2};
    const bool fits = rows[0] + (uint64_t)rows[1] <= seq_len;
    bool cut = false;
    for (int side = 0; side < PAIR_SIDES; side++) {
        const int other = 1 - side;
        const uint32_t limit = fits                        ? seq_len
                               : rows[other] < half[other] ? seq_len - rows[other]
                                                           : half[side];
        cut |= cut_document(pair, side, MIN(limit, longest));
    }
    return cut;
}

static int read_shard(struct pairs *pairs, const struct token_shard *shard, uint32_t index,
                      const struct pairs_options *options, struct error *error) {
    uint64_t next = next_begin(shard, 0);
    if (!token_mask_has_pairs(&shard->mask))
        return shard->count == 0 ? 0
                                 : fail(error,
                                        "%.600s holds no pairs, as other shards do\nuse shards of "
                                        "one kind",
                                        shard->name);
    while (next < shard->count) {
        struct pair pair = {.shard = index};
        const uint64_t begin = next;
        if (token_mask_is_rejected(&shard->mask, begin) ||
            read_document(&pair, 0, shard, begin, &next) || next == shard->count ||
            !token_mask_is_rejected(&shard->mask, next))
            return fail_damaged(shard, begin, "has no chosen answer", error);
        const bool labelled = token_mask_has_label(&shard->mask, next);
        if (read_document(&pair, 1, shard, next, &next))
            return fail_damaged(shard, begin, "has no rejected answer", error);
        if (arrlenu(pairs->list) > 0 && labelled != pairs->labelled)
            return fail(error,
                        "%.600s: labelled rows and rows with a chosen and a rejected answer\nuse "
                        "rows of one kind",
                        shard->name);
        pairs->labelled = labelled;
        pair.undesirable = labelled && token_mask_has_label(&shard->mask, begin);
        pairs->cut += cut_pair(&pair, options->seq_len, options->longest);
        arrput(pairs->list, pair);
    }
    return 0;
}

/* Fills each sequence until the next pair does not fit. */
static void fill_sequences(struct pairs *pairs, uint64_t seq_len) {
    uint64_t used = seq_len;
    for (uint64_t i = 0; i < arrlenu(pairs->list); i++) {
        const uint64_t rows = (uint64_t)pairs->list[i].rows[0] + pairs->list[i].rows[1];
        if (used + rows > seq_len) {
            arrput(pairs->first, i);
            used = 0;
        }
        used += rows;
    }
    arrput(pairs->first, arrlenu(pairs->list));
}

int pairs_open(struct pairs *pairs, const struct tokens *tokens,
               const struct pairs_options *options, struct error *error) {
    memset(pairs, 0, sizeof *pairs);
    assert(options->longest >= 1);
    if (options->seq_len < PAIR_SIDES)
        return fail(error, "data.seq_len is %u, but a pair takes at least %d tokens",
                    options->seq_len, PAIR_SIDES);
    for (size_t i = 0; i < arrlenu(tokens->shards); i++)
        if (read_shard(pairs, &tokens->shards[i], (uint32_t)i, options, error)) {
            pairs_close(pairs);
            return -1;
        }
    if (arrlenu(pairs->list) == 0) return fail(error, "there is no pair of answers");
    fill_sequences(pairs, options->seq_len);
    return 0;
}

void pairs_close(struct pairs *pairs) {
    free(pairs->reference);
    arrfree(pairs->list);
    arrfree(pairs->first);
    memset(pairs, 0, sizeof *pairs);
}
