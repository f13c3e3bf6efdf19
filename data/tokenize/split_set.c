/* Sets of characters of data/tokenize/split_program.h. */
#include "data/tokenize/split_program.h"

#include <assert.h>

#include "data/tokenize/unicode.h"

static bool is_ascii_space(uint32_t code) {
    return code == ' ' || (code >= '\t' && code <= '\r');
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
    if (a->atoms & b->atoms) return false;
    const bool a_adds = a->range_count > 0 && !a->negated;
    const bool b_adds = b->range_count > 0 && !b->negated;
    return !(a_adds && split_set_has_wide(b)) && !(b_adds && split_set_has_wide(a));
}

bool split_set_has_wide(const struct split_set *set) {
    return set->atoms != 0 || (set->range_count > 0 && !set->negated);
}

/* The members of ranges are not examined, so a range counts as white space and as other
 * characters. */
bool split_set_has_space(const struct split_set *set) {
    bool has = (set->atoms & UNICODE_SET(UNICODE_SPACE)) || (set->range_count > 0 && !set->negated);
    for (uint32_t code = 0; code < 128; code++) has |= set->ascii[code] && is_ascii_space(code);
    return has;
}

bool split_set_has_other(const struct split_set *set) {
    bool has =
        (set->atoms & ~UNICODE_SET(UNICODE_SPACE)) || (set->range_count > 0 && !set->negated);
    for (uint32_t code = 0; code < 128; code++) has |= set->ascii[code] && !is_ascii_space(code);
    return has;
}
