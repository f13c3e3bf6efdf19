/* How far each kind of result may be from its fp64 reference, and why: the only place with such
 * numbers. The first three count fp32 roundings, in units of 2^-24 times the sum of the absolute
 * values of what was added up (check_close has the formula); they must not grow with the shape,
 * because a sum in blocks has an error far below that sum. The last counts roundings to the dtype
 * of the output. A missing or doubled term, an element of the padding, or a value rounded once too
 * often exceeds these by orders of magnitude. */
#include "test/kernels/check.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct tolerance table[] = {
    /* One addition of two values: half a unit in the last place. */
    {"embedding_forward", {1, 1, 1}, 1},
};

const struct tolerance *tolerance_of(const char *kind) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].kind, kind)) return &table[i];
    cr_assert_fail("no tolerance for %s", kind);
    return NULL;
}
