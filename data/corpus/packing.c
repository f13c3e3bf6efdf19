#include "data/corpus/packing.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"

uint32_t packing_units(const struct packing *packing) {
    assert(arrlenu(packing->pieces) < PIECE_NONE);
    return (uint32_t)arrlenu(packing->pieces) / packing->sides;
}

void packing_add_documents(struct packing *packing, const struct token_shard *shard,
                           uint32_t index) {
    const struct token_mask *mask = &shard->mask;
    for (uint64_t begin = 0, end, part; begin + 1 < shard->count; begin = end) {
        end = token_mask_next_begin(mask, begin + 1, shard->count);
        uint64_t last = MIN(end, shard->count - 1); /* target */
        while (last > begin && !token_mask_in_loss(mask, last)) last--;
        packing->documents += last > begin;
        packing->cut += last - begin > packing->seq_len;
        for (uint64_t at = begin; at < last; at += part) {
            part = MIN(last - at, packing->seq_len);
            if (token_mask_counted(mask, at + 1, part) == 0) continue;
            struct packed_piece piece = {.begin = at, .shard = index, .rows = (uint32_t)part};
            assert(piece.begin == at && piece.shard == index);
            arrput(packing->pieces, piece);
        }
    }
}

/* Returns the rows of the unit that begins with a piece. */
static uint32_t rows_of(const struct packing *packing, uint32_t unit) {
    return packing->pieces[unit].rows +
           (packing_has_pairs(packing) ? packing->pieces[unit + 1].rows : 0);
}

/* Units of a length, and sequences with as many free rows, are linked lists. As lengths fall,
 * `best` stays the fewest free rows that suffice, or less: it only rises over free rows that no
 * sequence has, at most seq_len for each sequence that is filled up. */
void packing_fill(struct packing *packing, size_t begun) {
    const uint32_t seq_len = packing->seq_len;
    const size_t before = arrlenu(packing->first), lists = (size_t)seq_len + 1;
    uint32_t *by_rows = NULL, *next = NULL; /* stb_ds arrays */
    arrsetlen(by_rows, 2 * lists);
    memset(by_rows, 0xff, 2 * lists * sizeof *by_rows);
    uint32_t *by_free = by_rows + lists;
    struct packed_piece *pieces = packing->pieces;
    for (size_t unit = begun; unit < arrlenu(pieces); unit += packing->sides) {
        const uint32_t rows = rows_of(packing, (uint32_t)unit);
        packing->rows += rows;
        pieces[unit].next = by_rows[rows];
        by_rows[rows] = (uint32_t)unit;
    }
    for (uint32_t rows = seq_len, best = seq_len; rows > 0; rows--) {
        if (by_free[rows] != PIECE_NONE) best = rows;
        for (uint32_t unit; (unit = by_rows[rows]) != PIECE_NONE;) {
            while (best < seq_len && by_free[best] == PIECE_NONE) best++;
            uint32_t sequence = by_free[best];
            if (sequence == PIECE_NONE) {
                sequence = (uint32_t)(arrlenu(packing->first) - before);
                arrput(packing->first, PIECE_NONE);
                arrput(next, PIECE_NONE);
            } else by_free[best] = next[sequence];
            by_rows[rows] = pieces[unit].next;
            pieces[unit].next = packing->first[before + sequence];
            packing->first[before + sequence] = unit;
            const uint32_t left = best - rows;
            next[sequence] = by_free[left];
            by_free[left] = sequence;
            if (left >= rows) best = left;
        }
    }
    arrfree(by_rows);
    arrfree(next);
}

void packing_close(struct packing *packing) {
    free(packing->reference);
    arrfree(packing->pieces);
    arrfree(packing->first);
    memset(packing, 0, sizeof *packing);
}
