/* How far each kind of result may be from its fp64 reference, and why: the only place with such
 * numbers.
 *
 * The first three count fp32 roundings, in units of 2^-24 times the sum of the absolute values of
 * what was added up (check_close has the formula). They do not grow with the shape: each of n
 * partial sums is rounded by at most 2^-24 of itself, which adds up to n in the worst case, but
 * the errors have random signs and the partial sums of random terms are smaller than that sum, so
 * that in practice the total stays below 1, and further below it for sums in blocks. The last
 * column counts roundings to the dtype of the output. A missing or doubled term, an element of the
 * padding, or a value rounded once too often exceeds these by orders of magnitude. */
#include "test/kernels/check.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct tolerance table[] = {
    /* One addition: one fp32 rounding. */
    {"embedding_forward", {1, 1, 1}, 1},
    {"residual_add", {1, 1, 1}, 1},
    {"embedding_backward", {4, 4, 4}, 1},
    {"layernorm_mean", {2, 2, 2}, 1},
    {"layernorm_rstd", {2, 2, 2}, 1},
    {"layernorm_forward", {2, 2, 2}, 1},
    {"layernorm_backward", {2, 2, 2}, 1},
    {"layernorm_dweight", {2, 2, 2}, 1},
    {"matmul", {4, 4, 4}, 1},
    {"matmul_dgelu", {4, 4, 4}, 2},
    {"column_sums", {2, 2, 2}, 1},
    {"gelu_forward", {2, 2, 2}, 1},
    {"gelu_backward", {2, 2, 2}, 1},
    {"attention_lse", {2, 2, 2}, 1},
    {"attention_forward", {2, 2, 2}, 1},
    {"attention_backward", {2, 2, 2}, 1},
    {"cross_entropy_loss", {2, 2, 2}, 1},
    {"cross_entropy_gradient", {2, 2, 2}, 1},
    {"loss_sum", {2, 2, 2}, 1},
    {"gradient_norm", {2, 2, 2}, 1},
    {"adamw_moment", {4, 4, 4}, 1},
    {"adamw_master", {4, 4, 4}, 1},
    {"golden", {2, 2, 2}, 1},
    {"golden_sum", {16, 16, 16}, 1},
    {"golden_adamw", {16, 16, 16}, 1},
    {"differences", {4, 4, 4}, 1},
};

const struct tolerance *tolerance_of(const char *kind) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].kind, kind)) return &table[i];
    cr_assert_fail("no tolerance for %s", kind);
    return NULL;
}
