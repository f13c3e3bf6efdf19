/* Sets of characters of a pattern, as they are built while it is read. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/text/split_program.h"

/* All of these add to a set, which is zeros at first. */
void split_set_add_atoms(struct split_set *set, const uint8_t *atoms, uint32_t mask);

/* Returns false where the set has no room for more ranges. */
bool split_set_add_range(struct split_set *set, uint32_t first, uint32_t last);

/* An ASCII character in both cases, with the others that are folded to it: U+017F to s, U+212A to
 * k. */
bool split_set_add_folded(struct split_set *set, uint32_t code);

/* Once, when all is added: the characters that it lacks. */
void split_set_negate(struct split_set *set);

/* Whether no character is in both, as far as is easily seen. */
bool split_sets_disjoint(const struct split_set *a, const struct split_set *b);

/* Whether characters beyond ASCII, white space, and others than white space are in it. */
bool split_set_has_wide(const struct split_set *set);
bool split_set_has_space(const struct split_set *set);
bool split_set_has_other(const struct split_set *set);
