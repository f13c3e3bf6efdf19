/* Sets of characters of data/tokenize/split_pattern.h. */
#include "data/tokenize/split_pattern.h"

#include <assert.h>

#include "data/tokenize/unicode.h"

/* True if the set contains ranges beyond ASCII. */
static bool adds_ranges(const struct split_set *set) {
    return set->range_count > 0 && !set->negated;
}

void split_set_add_atoms(struct split_set *set, const uint8_t *atoms, uint32_t mask) {
    set->atoms |= mask;
    for (int code = 0; code < 128; code++) set->ascii[code] |= mask >> atoms[code] & 1;
}

bool split_set_add_range(struct split_set *set, uint32_t first, uint32_t last) {
    for (; first < 128 && first <= last; first++) set->ascii[first] = 1;
    if (first > last) return true;
    if (set->range_count == SPLIT_RANGES_MAX) return false;
    set->ranges[set->range_count++] = (struct split_range){first, last};
    return true;
}

bool split_set_add_folded(struct split_set *set, uint32_t code) {
    const uint32_t lower = code >= 'A' && code <= 'Z' ? code + 32 : code;
    const bool is_letter = lower >= 'a' && lower <= 'z';
    const uint32_t other = lower == 's' ? 0x17f : lower == 'k' ? 0x212a : lower;
    return split_set_add_range(set, lower, lower) && split_set_add_range(set, other, other) &&
           (!is_letter || split_set_add_range(set, lower - 32, lower - 32));
}

void split_set_negate(struct split_set *set) {
    assert(!set->negated);
    for (int code = 0; code < 128; code++) set->ascii[code] ^= 1;
    set->atoms = ~set->atoms & UNICODE_ALL;
    set->negated = true;
}

bool split_sets_disjoint(const struct split_set *a, const struct split_set *b) {
    for (int code = 0; code < 128; code++)
        if (a->ascii[code] && b->ascii[code]) return false;
    return !(a->atoms & b->atoms) && !(adds_ranges(a) && split_set_has_wide(b)) &&
           !(adds_ranges(b) && split_set_has_wide(a));
}

bool split_set_has_wide(const struct split_set *set) {
    return set->atoms != 0 || adds_ranges(set);
}

/* The members of ranges are not examined, so a range counts as both. */
bool split_set_has(const struct split_set *set, bool space) {
    const uint32_t spaces = UNICODE_SET(UNICODE_SPACE);
    bool has = (set->atoms & (space ? spaces : ~spaces)) || adds_ranges(set);
    for (int code = 0; code < 128; code++)
        has |= set->ascii[code] && (code == ' ' || (code >= '\t' && code <= '\r')) == space;
    return has;
}
