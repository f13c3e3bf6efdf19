#include "data/text/merges.h"

#include <assert.h>
#include <string.h>

#include <stb/stb_ds.h>

enum { FEW_TOKENS_MAX = 48, FIRST_BITS = 6, FILTER_BITS = 3 };

#define NO_NODE UINT32_MAX

/* A token among many. It stands at the place of its first part. */
struct merges_node {
    uint32_t previous, next;
    uint32_t rank;  /* of the merge with the next token */
    int32_t merged; /* what that gives */
    int32_t token;
};

void merges_free(struct merges *merges) {
    arrfree(merges->slots);
    arrfree(merges->filter);
    *merges = (struct merges){0};
}

void merges_scratch_free(struct merges_scratch *scratch) {
    arrfree(scratch->nodes);
    arrfree(scratch->heap);
}

static uint64_t hash_of(int32_t left, int32_t right) {
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * UINT64_C(0x9e3779b97f4a7c15);
}

/* Where the pair is, or the empty slot where it would be put. */
static struct merge *slot_of(const struct merges *merges, int32_t left, int32_t right) {
    const size_t mask = SIZE_MAX >> merges->shift;
    size_t at = hash_of(left, right) >> merges->shift;
    for (;; at = (at + 1) & mask) {
        struct merge *slot = &merges->slots[at];
        if (slot->rank == MERGES_NO_RANK || (slot->left == left && slot->right == right))
            return slot;
    }
}

/* The merge of a pair; the filter says of most that there is none, without a look at the table,
 * which does not fit the processor's caches. */
static const struct merge *find(const struct merges *merges, int32_t left, int32_t right) {
    static const struct merge none = {.rank = MERGES_NO_RANK};
    const uint64_t bit = hash_of(left, right) >> (merges->shift - FILTER_BITS);
    return merges->filter[bit / 64] >> bit % 64 & 1 ? slot_of(merges, left, right) : &none;
}

static void mark(struct merges *merges, int32_t left, int32_t right) {
    const uint64_t bit = hash_of(left, right) >> (merges->shift - FILTER_BITS);
    merges->filter[bit / 64] |= UINT64_C(1) << bit % 64;
}

static void make_slots(struct merges *merges, int bits) {
    struct merge *old = merges->slots;
    const size_t slots = (size_t)1 << bits;
    merges->slots = NULL;
    merges->shift = 64 - bits;
    arrsetlen(merges->slots, slots);
    for (size_t i = 0; i < slots; i++) merges->slots[i] = (struct merge){.rank = MERGES_NO_RANK};
    arrsetlen(merges->filter, slots << FILTER_BITS >> 6);
    memset(merges->filter, 0, arrlenu(merges->filter) * sizeof *merges->filter);
    for (size_t i = 0; i < arrlenu(old); i++) {
        if (old[i].rank == MERGES_NO_RANK) continue;
        *slot_of(merges, old[i].left, old[i].right) = old[i];
        mark(merges, old[i].left, old[i].right);
    }
    arrfree(old);
}

bool merges_add(struct merges *merges, struct merge merge) {
    assert(merge.rank != MERGES_NO_RANK);
    if (!merges->slots) make_slots(merges, FIRST_BITS);
    if (merges->count * 8 >= arrlenu(merges->slots) * 5) make_slots(merges, 64 - merges->shift + 1);
    struct merge *slot = slot_of(merges, merge.left, merge.right);
    if (slot->rank != MERGES_NO_RANK) return false;
    *slot = merge;
    mark(merges, merge.left, merge.right);
    merges->count++;
    return true;
}

/* Looks through all pairs for every merge: quick while there are few. */
static size_t apply_to_few(const struct merges *merges, int32_t *tokens, size_t count) {
    const struct merge *found[FEW_TOKENS_MAX]; /* of a token and the next one */
    for (size_t i = 0; i + 1 < count; i++) found[i] = find(merges, tokens[i], tokens[i + 1]);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (found[i]->rank < found[best]->rank) best = i;
        if (found[best]->rank == MERGES_NO_RANK) break;
        tokens[best] = found[best]->token;
        count--;
        for (size_t i = best + 1; i < count; i++) {
            tokens[i] = tokens[i + 1];
            found[i - 1] = found[i];
        }
        if (best > 0) found[best - 1] = find(merges, tokens[best - 1], tokens[best]);
        if (best + 1 < count) found[best] = find(merges, tokens[best], tokens[best + 1]);
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

/* Looks up the merge of the token at `place` with its next one; returns whether there is one. */
static bool look_up(const struct merges *merges, struct merges_node *nodes, uint32_t place) {
    struct merges_node *node = &nodes[place];
    node->rank = MERGES_NO_RANK;
    if (node->next == NO_NODE) return false;
    const struct merge *merge = find(merges, node->token, nodes[node->next].token);
    node->rank = merge->rank;
    node->merged = merge->token;
    return node->rank != MERGES_NO_RANK;
}

static uint64_t heap_value(const struct merges_node *nodes, uint32_t place) {
    return (uint64_t)nodes[place].rank << 32 | place;
}

static void begin_many(const struct merges *merges, struct merges_scratch *scratch,
                       const int32_t *tokens, size_t count) {
    assert(count < NO_NODE);
    arrsetlen(scratch->nodes, count);
    arrsetlen(scratch->heap, 0);
    struct merges_node *nodes = scratch->nodes;
    for (uint32_t i = 0; i < count; i++)
        nodes[i] = (struct merges_node){.previous = i > 0 ? i - 1 : NO_NODE,
                                        .next = i + 1 < count ? i + 1 : NO_NODE,
                                        .token = tokens[i]};
    for (uint32_t i = 0; i < count; i++)
        if (look_up(merges, nodes, i)) arrput(scratch->heap, heap_value(nodes, i));
    for (size_t i = arrlenu(scratch->heap) / 2; i-- > 0;)
        sift_down(scratch->heap, arrlenu(scratch->heap), i);
}

static void merge_with_next(const struct merges *merges, struct merges_scratch *scratch,
                            uint32_t place) {
    struct merges_node *nodes = scratch->nodes, *node = &nodes[place], *gone = &nodes[node->next];
    node->token = node->merged;
    node->next = gone->next;
    gone->rank = MERGES_NO_RANK;
    if (node->next != NO_NODE) nodes[node->next].previous = place;
    if (look_up(merges, nodes, place)) heap_push(&scratch->heap, heap_value(nodes, place));
    if (node->previous != NO_NODE && look_up(merges, nodes, node->previous))
        heap_push(&scratch->heap, heap_value(nodes, node->previous));
}

static size_t apply_to_many(const struct merges *merges, struct merges_scratch *scratch,
                            int32_t *tokens, size_t count) {
    begin_many(merges, scratch, tokens, count);
    while (arrlenu(scratch->heap) > 0) {
        const uint64_t top = heap_pop(scratch->heap);
        const uint32_t place = (uint32_t)top;
        /* An entry is out of date when its token or the next one has changed; a pair that has
         * changed is longer text, so that its rank has changed too. */
        if (scratch->nodes[place].rank == top >> 32) merge_with_next(merges, scratch, place);
    }
    size_t left = 0;
    for (uint32_t place = 0; place != NO_NODE; place = scratch->nodes[place].next)
        tokens[left++] = scratch->nodes[place].token;
    return left;
}

size_t merges_apply(const struct merges *merges, struct merges_scratch *scratch, int32_t *tokens,
                    size_t count) {
    if (merges->count == 0 || count < 2) return count;
    return count > FEW_TOKENS_MAX ? apply_to_many(merges, scratch, tokens, count)
                                  : apply_to_few(merges, tokens, count);
}
