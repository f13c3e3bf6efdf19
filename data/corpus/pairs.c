#include "data/corpus/pairs.h"

#include <assert.h>
#include <inttypes.h>

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

const char *pairs_noun(const struct packing *packing) {
    static const char *const nouns[2][2] = {{"pair", "pairs"},
                                            {"labelled answer", "labelled answers"}};
    return nouns[packing->labelled][packing_units(packing) != 1];
}

/* A pair while it is read. */
struct pair {
    uint64_t begin[PREFERENCE_SIDES];  /* first token that is used */
    uint32_t rows[PREFERENCE_SIDES];   /* at least 1; tokens begin .. begin + rows are used */
    uint32_t answer[PREFERENCE_SIDES]; /* rows before the first one whose target is the answer's */
};

static int fail_damaged(const struct token_shard *shard, uint64_t token, const char *what,
                        struct error *error) {
    return fail(error,
                "%.600s: the pair at token %" PRIu64 " %s\nprepare the rows again with ./prepare",
                shard->name, token, what);
}

/* Reads the document that begins with a token. Returns -1 if there is no prompt or no answer. */
static int read_document(struct pair *pair, int side, const struct token_shard *shard,
                         uint64_t begin, uint64_t *end) {
    *end = token_mask_next_begin(&shard->mask, begin + 1, shard->count);
    const uint64_t answer = token_mask_next_counted(&shard->mask, begin + 1, *end);
    if (answer == *end || *end - begin > INT32_MAX) return -1;
    pair->begin[side] = begin;
    pair->rows[side] = (uint32_t)(*end - 1 - begin);
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
    for (int side = 0; side < PREFERENCE_SIDES; side++) {
        const int other = 1 - side;
        const uint32_t limit = fits                        ? seq_len
                               : rows[other] < half[other] ? seq_len - rows[other]
                                                           : half[side];
        cut |= cut_document(pair, side, MIN(limit, longest));
    }
    return cut;
}

static int add_pairs(const struct loader *loader, struct packing *packing, uint32_t index,
                     struct error *error) {
    const struct token_shard *shard = &loader->tokens->shards[index];
    const uint32_t longest = (uint32_t)loader->options.longest;
    uint64_t next = token_mask_next_begin(&shard->mask, 0, shard->count);
    assert(loader->options.longest >= 1);
    if (packing->seq_len < PREFERENCE_SIDES)
        return fail(error, "data.seq_len is %u, but a pair takes at least %d tokens",
                    packing->seq_len, PREFERENCE_SIDES);
    if (!token_mask_has_pairs(&shard->mask))
        return shard->count == 0 ? 0
                                 : fail(error,
                                        "%.600s holds no pairs, as other shards do\nuse shards of "
                                        "one kind",
                                        shard->name);
    while (next < shard->count) {
        struct pair pair;
        const uint64_t begin = next;
        if (token_mask_is_rejected(&shard->mask, begin) ||
            read_document(&pair, 0, shard, begin, &next) || next == shard->count ||
            !token_mask_is_rejected(&shard->mask, next))
            return fail_damaged(shard, begin, "has no chosen answer", error);
        const bool labelled = token_mask_has_label(&shard->mask, next);
        if (read_document(&pair, 1, shard, next, &next))
            return fail_damaged(shard, begin, "has no rejected answer", error);
        if (packing->documents > 0 && labelled != packing->labelled)
            return fail(error,
                        "%.600s: labelled rows and rows with a chosen and a rejected answer\nuse "
                        "rows of one kind",
                        shard->name);
        packing->labelled = labelled;
        packing->documents++;
        packing->cut += cut_pair(&pair, packing->seq_len, longest);
        for (int side = 0; side < PREFERENCE_SIDES; side++) {
            struct packed_piece piece = {
                .begin = pair.begin[side], .shard = index, .rows = pair.rows[side]};
            arrput(packing->pieces, piece);
        }
    }
    return 0;
}

static uint64_t count_pairs(const struct span *span) {
    return span->piece % PREFERENCE_SIDES; /* counted with its second document */
}

/* Describes the document of a pair that begins at array element `at`. */
static void put_document(const struct loader *loader, const struct span *span,
                         struct loader_arrays *arrays, size_t at) {
    const struct packing *packing = &loader->packing;
    const struct token_mask *mask = &span->shard->mask;
    const size_t side = span->piece % PREFERENCE_SIDES;
    const uint64_t first = span->start + 1;
    const size_t prompt = token_mask_next_counted(mask, first, first + span->length) - first;
    struct preference_pair *to =
        &arrays->pairs[side == 0 ? arrays->counted++ : arrays->counted - 1];
    uint64_t begin = span->start;
    assert(arrays->first_keys);
    span_mask_targets(span, arrays->targets + at,
                      loader->options.prompts && side == 0 ? prompt : 0);
    while (!token_mask_begins(mask, begin)) begin--; /* a prompt may be cut */
    if (side == 0)
        *to = (struct preference_pair){.piece = (uint32_t)span->piece,
                                       .undesirable =
                                           packing->labelled && token_mask_has_label(mask, begin)};
    to->begin[side] = (int32_t)at;
    to->answer[side] = (int32_t)(at + prompt);
    to->end[side] = (int32_t)(at + span->length);
    if (packing->reference) to->reference[side] = packing->reference[span->piece];
}

const struct loader_kind pairs_loader = {PREFERENCE_SIDES, add_pairs, put_document, count_pairs};
