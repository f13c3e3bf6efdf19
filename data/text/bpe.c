#include "data/text/bpe.h"

#include <assert.h>

#include <stb/stb_ds.h>

enum { SHORT_PIECE_MAX = 48 };

/* A pair in the table is 64 bits: left, right and the rank of their merge. No pair has the last
 * rank. */
enum { TOKEN_BITS = 20, RANK_BITS = 24 };
#define NO_RANK     ((UINT32_C(1) << RANK_BITS) - 1)
#define NO_PAIR     UINT64_MAX
#define NO_NODE     SIZE_MAX
#define PLACE_BITS  40
#define PLACES_MASK ((UINT64_C(1) << PLACE_BITS) - 1)

/* A token of a long piece. It stands at the place of its first byte. */
struct bpe_node {
    size_t previous, next;
    uint32_t rank; /* of the merge with the next token */
    int32_t token;
};

void bpe_free(struct bpe *bpe) {
    arrfree(bpe->bytes);
    arrfree(bpe->starts);
    arrfree(bpe->merges);
    arrfree(bpe->pairs);
    *bpe = (struct bpe){0};
}

void bpe_scratch_free(struct bpe_scratch *scratch) {
    arrfree(scratch->nodes);
    arrfree(scratch->heap);
}

_Static_assert(VOCABULARY_MAX <= 1 << TOKEN_BITS && 2 * TOKEN_BITS + RANK_BITS == 64,
               "a pair with its rank fills 64 bits");

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)left << TOKEN_BITS | (uint64_t)right;
}

static size_t first_slot(const struct bpe *bpe, uint64_t key) {
    return key * UINT64_C(0x9e3779b97f4a7c15) >> bpe->pair_shift;
}

void bpe_index(struct bpe *bpe) {
    const size_t merges = arrlenu(bpe->merges);
    assert(merges <= NO_RANK);
    int bits = 4;
    while ((size_t)1 << bits < merges * 2) bits++;
    const size_t slots = (size_t)1 << bits;
    bpe->pair_shift = 64 - bits;
    arrsetlen(bpe->pairs, slots);
    for (size_t i = 0; i < slots; i++) bpe->pairs[i] = NO_PAIR;
    for (size_t rank = 0; rank < merges; rank++) {
        const uint64_t key = pair_key(bpe->merges[rank].left, bpe->merges[rank].right);
        size_t slot = first_slot(bpe, key);
        while (bpe->pairs[slot] != NO_PAIR) slot = (slot + 1) & (slots - 1);
        bpe->pairs[slot] = key << RANK_BITS | rank;
    }
}

/* The low bits of NO_PAIR are NO_RANK. */
static uint32_t find_rank(const struct bpe *bpe, int32_t left, int32_t right) {
    const uint64_t key = pair_key(left, right);
    const size_t mask = SIZE_MAX >> bpe->pair_shift;
    size_t slot = first_slot(bpe, key);
    while (bpe->pairs[slot] >> RANK_BITS != key && bpe->pairs[slot] != NO_PAIR)
        slot = (slot + 1) & mask;
    return (uint32_t)bpe->pairs[slot] & NO_RANK;
}

/* Looks through all pairs for every merge: quick while there are few. */
static size_t merge_short(const struct bpe *bpe, int32_t *tokens, const uint8_t *piece,
                          size_t size) {
    uint32_t ranks[SHORT_PIECE_MAX]; /* of a token and the next one */
    size_t count = size;
    for (size_t i = 0; i < size; i++) tokens[i] = bpe->byte_tokens[piece[i]];
    for (size_t i = 0; i + 1 < size; i++) ranks[i] = find_rank(bpe, tokens[i], tokens[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        tokens[best] = bpe->merges[ranks[best]].token;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            tokens[i] = tokens[i + 1];
            ranks[i - 1] = ranks[i];
        }
        if (best > 0) ranks[best - 1] = find_rank(bpe, tokens[best - 1], tokens[best]);
        if (best + 1 < count) ranks[best] = find_rank(bpe, tokens[best], tokens[best + 1]);
    }
    return count;
}

static void sift_down(uint64_t *heap, size_t count, size_t at) {
    const uint64_t value = heap[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && heap[child + 1] < heap[child]) child++;
        if (value <= heap[child]) break;
        heap[at] = heap[child];
    }
    heap[at] = value;
}

static uint64_t heap_pop(uint64_t *heap) {
    const uint64_t top = heap[0], last = arrpop(heap);
    if (arrlenu(heap) > 0) {
        heap[0] = last;
        sift_down(heap, arrlenu(heap), 0);
    }
    return top;
}

static void heap_push(uint64_t **heap, uint64_t value) {
    arrput(*heap, value);
    size_t at = arrlenu(*heap) - 1;
    for (size_t parent; at > 0 && (*heap)[parent = (at - 1) / 2] > value; at = parent)
        (*heap)[at] = (*heap)[parent];
    (*heap)[at] = value;
}

static uint64_t heap_value(uint32_t rank, size_t place) {
    return (uint64_t)rank << PLACE_BITS | place;
}

/* Looks up the merge of the token at `place` with its next one. */
static void look_up(const struct bpe *bpe, struct bpe_scratch *scratch, size_t place) {
    struct bpe_node *node = &scratch->nodes[place];
    node->rank = NO_RANK;
    if (node->next != NO_NODE)
        node->rank = find_rank(bpe, node->token, scratch->nodes[node->next].token);
    if (node->rank != NO_RANK) heap_push(&scratch->heap, heap_value(node->rank, place));
}

static void begin_long(const struct bpe *bpe, struct bpe_scratch *scratch, const uint8_t *piece,
                       size_t size) {
    assert(size <= PLACES_MASK);
    arrsetlen(scratch->nodes, size);
    arrsetlen(scratch->heap, 0);
    struct bpe_node *nodes = scratch->nodes;
    for (size_t i = 0; i < size; i++) {
        nodes[i] = (struct bpe_node){.previous = i > 0 ? i - 1 : NO_NODE,
                                     .next = i + 1 < size ? i + 1 : NO_NODE,
                                     .rank = NO_RANK,
                                     .token = bpe->byte_tokens[piece[i]]};
        if (i == 0) continue;
        nodes[i - 1].rank = find_rank(bpe, nodes[i - 1].token, nodes[i].token);
        if (nodes[i - 1].rank != NO_RANK)
            arrput(scratch->heap, heap_value(nodes[i - 1].rank, i - 1));
    }
    for (size_t i = arrlenu(scratch->heap) / 2; i-- > 0;)
        sift_down(scratch->heap, arrlenu(scratch->heap), i);
}

static void merge_with_next(const struct bpe *bpe, struct bpe_scratch *scratch, size_t place) {
    struct bpe_node *node = &scratch->nodes[place], *gone = &scratch->nodes[node->next];
    node->token = bpe->merges[node->rank].token;
    node->next = gone->next;
    gone->rank = NO_RANK;
    if (node->next != NO_NODE) scratch->nodes[node->next].previous = place;
    look_up(bpe, scratch, place);
    if (node->previous != NO_NODE) look_up(bpe, scratch, node->previous);
}

/* Without merges every byte is a token; a text that is one piece need not be held in nodes. */
static void take_bytes(const struct bpe *bpe, int32_t **tokens, const uint8_t *piece, size_t size) {
    int32_t *added = arraddnptr(*tokens, size);
    for (size_t i = 0; i < size; i++) added[i] = bpe->byte_tokens[piece[i]];
}

static void merge_long(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t **tokens,
                       const uint8_t *piece, size_t size) {
    begin_long(bpe, scratch, piece, size);
    while (arrlenu(scratch->heap) > 0) {
        const uint64_t top = heap_pop(scratch->heap);
        const size_t place = (size_t)(top & PLACES_MASK);
        /* An entry is out of date when its token or the next one has changed; a pair that has
         * changed is longer text, so that its rank has changed too. */
        if (scratch->nodes[place].rank == top >> PLACE_BITS) merge_with_next(bpe, scratch, place);
    }
    for (size_t place = 0; place != NO_NODE; place = scratch->nodes[place].next)
        arrput(*tokens, scratch->nodes[place].token);
}

void bpe_merge(const struct bpe *bpe, struct bpe_scratch *scratch, int32_t **tokens,
               const uint8_t *piece, size_t size) {
    if (size == 0) return;
    if (arrlenu(bpe->merges) == 0) {
        take_bytes(bpe, tokens, piece, size);
    } else if (size > SHORT_PIECE_MAX) {
        merge_long(bpe, scratch, tokens, piece, size);
    } else {
        const size_t before = arrlenu(*tokens);
        arrsetlen(*tokens, before + size);
        arrsetlen(*tokens, before + merge_short(bpe, *tokens + before, piece, size));
    }
}
