#include "data/tokenize/merges.h"

#include <assert.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/hash.h"
#include "data/util/min_max.h"

/* An entry of the table is 64 bits: left, right and the rank of their merge. */
enum { TOKEN_BITS = 20, RANK_BITS = 24, FIRST_BITS = 6, FILTER_BITS = 3 };
enum { LOW_TOKENS = 256, FEW_TOKENS_MAX = 16 };
#define NO_RANK ((UINT32_C(1) << RANK_BITS) - 1)
#define NO_PAIR UINT64_MAX

/* A key of two neighbours in a text is 64 bits as well: the rank of their merge and the position of
 * the left one. */
#define INDEX_BITS 40
#define INDEX_MASK ((UINT64_C(1) << INDEX_BITS) - 1)
#define NO_KEY     UINT64_MAX

_Static_assert(VOCABULARY_MAX <= 1 << TOKEN_BITS && MERGES_RANK_MAX == NO_RANK &&
                   2 * TOKEN_BITS + RANK_BITS == 64 && RANK_BITS + INDEX_BITS == 64,
               "a pair with its rank fills 64 bits, so does a rank with its index");

void merges_free(struct merges *merges) {
    arrfree(merges->slots);
    arrfree(merges->filter);
    arrfree(merges->low);
    arrfree(merges->results);
    *merges = (struct merges){0};
}

void merges_scratch_free(struct merges_scratch *scratch) {
    arrfree(scratch->tree);
    arrfree(scratch->sizes);
}

/* ---- the table */

static uint64_t pair_of(int32_t left, int32_t right) {
    return (uint64_t)left << TOKEN_BITS | (uint64_t)right;
}

static uint64_t hash_of(uint64_t pair) {
    return pair * hash_multiplier;
}

/* Returns the slot of the pair, or the empty slot where it belongs. */
static size_t slot_of(const struct merges *merges, uint64_t pair) {
    const size_t mask = SIZE_MAX >> merges->shift;
    size_t at = hash_of(pair) >> merges->shift;
    while (merges->slots[at] >> RANK_BITS != pair && merges->slots[at] != NO_PAIR)
        at = (at + 1) & mask;
    return at;
}

static void put(struct merges *merges, size_t at, uint64_t slot) {
    const uint64_t bit = hash_of(slot >> RANK_BITS) >> (merges->shift - FILTER_BITS);
    merges->slots[at] = slot;
    merges->filter[bit / 64] |= UINT64_C(1) << bit % 64;
}

static void make_slots(struct merges *merges, int bits) {
    uint64_t *old = merges->slots;
    const size_t slots = (size_t)1 << bits;
    merges->slots = NULL;
    merges->shift = 64 - bits;
    arrsetlen(merges->slots, slots);
    for (size_t i = 0; i < slots; i++) merges->slots[i] = NO_PAIR;
    arrsetlen(merges->filter, slots << FILTER_BITS >> 6);
    memset(merges->filter, 0, arrlenu(merges->filter) * sizeof *merges->filter);
    for (size_t i = 0; i < arrlenu(old); i++)
        if (old[i] != NO_PAIR) put(merges, slot_of(merges, old[i] >> RANK_BITS), old[i]);
    arrfree(old);
}

static void begin_table(struct merges *merges) {
    make_slots(merges, FIRST_BITS);
    arrsetlen(merges->low, LOW_TOKENS * LOW_TOKENS);
    for (size_t i = 0; i < LOW_TOKENS * LOW_TOKENS; i++) merges->low[i] = NO_RANK;
}

bool merges_add(struct merges *merges, struct merge merge) {
    assert(merge.rank < MERGES_RANK_MAX);
    const uint64_t pair = pair_of(merge.left, merge.right);
    if (!merges->slots) begin_table(merges);
    if (merges->count * 8 >= arrlenu(merges->slots) * 5) make_slots(merges, 64 - merges->shift + 1);
    const size_t at = slot_of(merges, pair);
    if (merges->slots[at] != NO_PAIR) return false;
    put(merges, at, pair << RANK_BITS | merge.rank);
    if ((merge.left | merge.right) < LOW_TOKENS)
        merges->low[merge.left * LOW_TOKENS + merge.right] = merge.rank;
    while (arrlenu(merges->results) <= merge.rank) arrput(merges->results, -1);
    int32_t *result = &merges->results[merge.rank];
    assert(*result == -1 || *result == merge.token);
    *result = merge.token;
    merges->count++;
    return true;
}

struct merge *merges_list(const struct merges *merges) {
    struct merge *list = NULL;
    arrsetlen(list, merges->count);
    for (size_t i = 0; i < arrlenu(merges->slots); i++) {
        const uint64_t slot = merges->slots[i], pair = slot >> RANK_BITS;
        const uint32_t rank = slot & NO_RANK;
        if (slot == NO_PAIR) continue;
        assert(rank < merges->count);
        list[rank] = (struct merge){.left = (int32_t)(pair >> TOKEN_BITS),
                                    .right = (int32_t)(pair & ((1 << TOKEN_BITS) - 1)),
                                    .token = merges->results[rank],
                                    .rank = rank};
    }
    return list;
}

/* Returns the rank of a pair's merge, or NO_RANK. For most pairs without a merge the filter answers
 * without reading the slots, which do not fit the CPU caches. The low bits of NO_PAIR are
 * NO_RANK. */
static uint32_t find_rank(const struct merges *merges, int32_t left, int32_t right) {
    if ((left | right) < LOW_TOKENS) return merges->low[left * LOW_TOKENS + right];
    const uint64_t pair = pair_of(left, right);
    const uint64_t bit = hash_of(pair) >> (merges->shift - FILTER_BITS);
    if (!(merges->filter[bit / 64] >> bit % 64 & 1)) return NO_RANK;
    return (uint32_t)merges->slots[slot_of(merges, pair)] & NO_RANK;
}

/* ---- merging */

/* Scans all pairs for every merge, which is fastest for few tokens. */
static size_t apply_to_few(const struct merges *merges, int32_t *tokens, size_t count) {
    uint32_t ranks[FEW_TOKENS_MAX]; /* ranks[i]: merge of tokens[i] and tokens[i + 1] */
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = find_rank(merges, tokens[i], tokens[i + 1]);
    while (count > 1) {
        uint32_t lowest = ranks[0];
        size_t best = 0;
        /* The comparison is unpredictable, so it is written without branches. */
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < lowest ? i : best;
            lowest = ranks[i] < lowest ? ranks[i] : lowest;
        }
        if (lowest == NO_RANK) break;
        tokens[best] = merges->results[lowest];
        count--;
        for (size_t i = best + 1; i < count; i++) {
            tokens[i] = tokens[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (best > 0) ranks[best - 1] = find_rank(merges, tokens[best - 1], tokens[best]);
        if (best + 1 < count) ranks[best] = find_rank(merges, tokens[best], tokens[best + 1]);
    }
    return count;
}

/* State of merging many tokens. A merged token stays at the position of its first part. Its size is
 * stored at its first and its last part, so that its neighbours are found from either side.
 *
 * The tree is a tournament over the keys of all pairs. Node i holds the lower key of nodes 2 i and
 * 2 i + 1; the leaf of the pair at a position is node width + position. */
struct merging {
    const struct merges *merges;
    int32_t *tokens;
    uint32_t *sizes;
    uint64_t *tree;
    size_t count, width;
};

static uint64_t key_at(const struct merging *merging, size_t index, size_t next) {
    if (next == merging->count) return NO_KEY;
    const uint32_t rank = find_rank(merging->merges, merging->tokens[index], merging->tokens[next]);
    return (uint64_t)rank << INDEX_BITS | index;
}

static void settle(uint64_t *tree, size_t node) {
    const uint64_t left = tree[2 * node], right = tree[2 * node + 1];
    tree[node] = MIN(left, right);
}

static struct merging begin_many(const struct merges *merges, struct merges_scratch *scratch,
                                 int32_t *tokens, size_t count) {
    assert(count <= INDEX_MASK);
    size_t width = FEW_TOKENS_MAX;
    while (width < count) width *= 2;
    arrsetlen(scratch->tree, 2 * width);
    arrsetlen(scratch->sizes, count);
    const struct merging merging = {.merges = merges,
                                    .tokens = tokens,
                                    .sizes = scratch->sizes,
                                    .tree = scratch->tree,
                                    .count = count,
                                    .width = width};
    for (size_t i = 0; i < count; i++) merging.sizes[i] = 1;
    for (size_t i = 0; i < count; i++) merging.tree[width + i] = key_at(&merging, i, i + 1);
    for (size_t i = count; i < width; i++) merging.tree[width + i] = NO_KEY;
    for (size_t i = width; i-- > 1;) settle(merging.tree, i);
    return merging;
}

static void merge_at(const struct merging *merging, size_t index, uint32_t rank) {
    uint32_t *sizes = merging->sizes;
    uint64_t *tree = merging->tree;
    const size_t next = index + sizes[index];
    const uint32_t size = sizes[index] + sizes[next];
    const size_t before = index > 0 ? index - sizes[index - 1] : index;
    sizes[index] = sizes[index + size - 1] = size;
    merging->tokens[index] = merging->merges->results[rank];
    size_t a = merging->width + before, b = merging->width + index, c = merging->width + next;
    tree[a] = key_at(merging, before, index);
    tree[b] = key_at(merging, index, index + size);
    tree[c] = NO_KEY;
    while (a > 1) {
        settle(tree, a /= 2);
        settle(tree, b /= 2);
        settle(tree, c /= 2);
    }
}

static size_t apply_to_many(const struct merges *merges, struct merges_scratch *scratch,
                            int32_t *tokens, size_t count) {
    const struct merging merging = begin_many(merges, scratch, tokens, count);
    for (;;) {
        const uint64_t lowest = merging.tree[1];
        if (lowest >> INDEX_BITS == NO_RANK) break;
        merge_at(&merging, lowest & INDEX_MASK, (uint32_t)(lowest >> INDEX_BITS));
    }
    size_t left = 0;
    for (size_t index = 0; index < count; index += merging.sizes[index])
        tokens[left++] = tokens[index];
    return left;
}

size_t merges_apply(const struct merges *merges, struct merges_scratch *scratch, int32_t *tokens,
                    size_t count) {
    if (merges->count == 0 || count < 2) return count;
    return count > FEW_TOKENS_MAX ? apply_to_many(merges, scratch, tokens, count)
                                  : apply_to_few(merges, tokens, count);
}

/* ---- bytes */

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
