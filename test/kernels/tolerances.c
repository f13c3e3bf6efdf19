/* Maximum error of each kind of result against its fp64 reference, and the reason. No other file
 * has such numbers.
 *
 * `arithmetic` counts fp32 roundings, in units of u = 2^-24 times the sum of the absolute values
 * of what was added up (check_close has the formula); `roundings` those to the output's dtype.
 *
 * Why 4 for most sums, however long: the k-th of n partial sums is rounded by at most u of itself,
 * with a standard deviation of 0.6 u. For terms of random sign it is about sqrt(k) terms large, so
 * that the errors of all n add up to 0.6 u sqrt(n^2 / 2) = 0.4 u n terms, or 0.5 u times the sum
 * of n absolute values. Five times that does not occur in the few 10^5 values of a test, and sums
 * in blocks or vectors are better. The rest of the 4 is for the operations before and after the
 * sum. The bugs that these tests must catch (a missing or doubled term, an element of the padding,
 * a value rounded once too often) exceed this by orders of magnitude. */
#include "test/kernels/check.h"

#include <criterion/criterion.h>
#include <string.h>

static const struct tolerance table[] = {
    /* One addition. To fp32 it is the rounding of the output; 16 bits are rounded from fp32. */
    {"embedding_forward", {0, 1, 1}, 1},
    /* A product before it. */
    {"embedding_scaled", {1, 2, 2}, 1},
    {"residual_sum", {0, 1, 1}, 1},

    /* Sums, as above; rounded to the output once, at the end. */
    {"embedding_backward", {4, 4, 4}, 1},
    {"column_sums", {4, 4, 4}, 1},
    {"loss_sum", {4, 4, 4}, 1},

    {"layernorm_mean", {4, 4, 4}, 1},
    /* All squares are positive, so partial sums grow to the whole: 0.3 u sqrt(n), which is 7 u
     * for a row of 512 added one by one. The root halves it; times 3 for safety. */
    {"layernorm_rstd", {12, 12, 12}, 1},
    /* mean and rstd enter like terms; two products and an addition follow. */
    {"layernorm_forward", {4, 4, 4}, 1},
    /* Two sums over a row and five products each, all in the magnitude. */
    {"layernorm_backward", {4, 4, 4}, 1},
    {"layernorm_dweight", {4, 4, 4}, 1},

    /* The error of rstd is at most 12 u, see layernorm_rstd; two products follow. */
    {"rmsnorm_forward", {14, 14, 14}, 1},

    /* The same for a head of at most 256 values: the error of rstd is at most 7 u. Backward it
     * enters three times, beside the two sums; in the weight's gradient once. */
    {"qk_norm_forward", {9, 9, 9}, 1},
    {"qk_norm_backward", {25, 25, 25}, 1},
    {"qk_norm_dweight", {11, 11, 11}, 1},

    /* An exponential, a reciprocal and four products of one sign each; see the test for how the
     * argument's error enters. CUDA's approximations are within 2 ulp, 4 u each. */
    {"gated", {12, 12, 12}, 1},
    /* gelu_forward's or gelu_backward's error, and up to two products. */
    {"gated_gelu", {6, 6, 6}, 1},
    /* x / cap is off by up to 2 u, which tanh does not amplify; tanh is within 2.6 ulp. The product
     * with the cap is the rounding of the output in fp32. */
    {"softcap", {8, 9, 9}, 1},
    /* A rounded factor and a product, which may be added. */
    {"dropout", {2, 2, 2}, 1},
    /* Four stages, each of which rounds sums that are at most the sum of all magnitudes. */
    {"hadamard", {4, 4, 4}, 1},
    /* A product; its gradient is added besides. */
    {"block_diagonal_forward", {0, 1, 1}, 1},
    {"block_diagonal_backward", {1, 2, 2}, 1},
    /* Two products and a sum. */
    {"rope", {4, 4, 4}, 1},

    /* 4, and half of that again: some tests compare 10^5 values, and libraries may add the bias
     * first, before partial sums that it makes larger. 16-bit products are exact in fp32. */
    {"matmul", {6, 6, 6}, 1},
    /* 16-bit matmuls of more than 512 terms on tensor cores. After each 8 products (on an A100) the
     * sum is truncated from 24 bits after the point to 23, so that it loses 0.36 u of itself on
     * average, always towards zero. Partial sums of an output that ends z standard deviations from
     * 0 average half of it: it loses K / 8 * 0.36 / 2 * z sqrt(K) u terms, or for normal operands
     * 0.035 z sqrt(K) u times the sum of absolute values, beside the errors of random sign. With z
     * = 4, the 6 of "matmul" hold 512 terms and 32 hold 40000. Simulated as an A100 and an H100
     * add: up to 3.4 u for K = 300, 10 u for 2000, 22 u for 20000. */
    {"matmul_long", {32, 32, 32}, 1},
    /* The two scales are multiplied, the sum by the result, and bias or output are added: one more
     * rounding each. */
    {"matmul_8_bit", {9, 9, 9}, 1},
    /* Added to it on tensor cores, of sqrt(K + 2) M, where M is the largest product or partial sum:
     * of K products and, for each 16 of them, of the sum before and after, bits below 2^-13 M are
     * dropped. Each loss has a standard deviation of 2^-13 M / sqrt(3) and, as products have random
     * signs, no mean: five standard deviations are 5 sqrt(18 / 16 / 3) 2^-13 M = 3.1 x 2^11 u M for
     * each sqrt(K). Simulated for K from 16 to 3072 as Hopper and Ada add: up to 1.2 x 2^11 u. */
    {"matmul_8_bit_truncated", {3.1 * 0x1p11, 3.1 * 0x1p11, 3.1 * 0x1p11}, 1},
    /* Codes in blocks: a few large terms make partial sums nearly as large as the sum of absolute
     * values. K = 256 additions round partial sums that grow to it, by 2 u / sqrt(12) of them in
     * the mean: 2 / sqrt(12) sqrt(256 / 3) = 5.3 u is a standard deviation. Five of them. */
    {"matmul_blocks", {27, 27, 27}, 1},
    /* The matmul's result may be rounded to the output before it is multiplied by gelu', as two
     * separate operations would do. */
    {"matmul_dgelu", {6, 6, 6}, 2},
    /* The library's fused form, used for 16-bit outputs, takes tanh.approx, whose relative error is
     * at most 2^-11 (PTX ISA). With t = tanh, gelu' = (1 + t) / 2 + x / 2 (1 - t^2) slope is then
     * off by up to 2^-11 (|t| / 2 + |x| slope t^2), which is at most 2^-11 = 2^13 u times the
     * sensitivity in the magnitude. */
    {"matmul_dgelu_approx", {6, 6 + 0x1p13, 6 + 0x1p13}, 2},
    /* gelu of the sum, compared with gelu of the stored sum, whose rounding is at most roundoff
     * |x|. |gelu'| is at most 1.13: gelu_forward's 4, and 1.13 times the roundoff of the dtype,
     * which is 1, 2^13 or 2^16 u. 16-bit outputs may be x / 2 (1 + tanh.approx): 2^-12 |x|, or
     * 2^12 u. */
    {"matmul_gelu", {5.2, 4 + 1.13 * 0x1p13 + 0x1p12, 4 + 1.13 * 0x1p16 + 0x1p12}, 1},

    /* tanh within 2.5 ulp (5 u), of an argument within 3 u, for x / 2 (1 + tanh): 1 + tanh is
     * near 0 for negative x and has the error of 1. */
    {"gelu_forward", {4, 4, 4}, 1},
    /* The magnitude includes how gelu' reacts to errors of tanh and its argument. */
    {"gelu_backward", {4, 4, 4}, 1},

    /* The magnitudes include that the relative error of exp(score) is the absolute error of the
     * score; otherwise sums of products. P and dS stay fp32 for all dtypes. */
    {"attention_lse", {4, 4, 4}, 1},
    {"attention_forward", {4, 4, 4}, 1},
    {"attention_backward", {4, 4, 4}, 1},
    /* On tensor cores the factors of a matmul have 16 bits, or are TF32, which has the fraction of
     * fp16: P and dS are rounded to the dtype of qkv before they multiply V, dO, Q or K. Each term
     * is then off by up to roundoff(dtype) of itself, 2^13 u in fp16 and 2^16 u in bf16, and so is
     * the sum of absolute values. */
    {"attention_forward_mma", {4 + 0x1p13, 4 + 0x1p13, 4 + 0x1p16}, 1},
    {"attention_backward_mma", {4 + 0x1p13, 4 + 0x1p13, 4 + 0x1p16}, 1},

    /* The same sums, for one row. Against attention_forward, both sides have errors and
     * roundings. */
    {"attention_decode", {4, 4, 4}, 1},
    {"attention_decode_row", {8, 8, 8}, 2},
    {"attention_decode_row_mma", {8, 8 + 0x1p13, 8 + 0x1p16}, 2},

    /* Relative to the largest element: sums over keys and values, of sums over the rows of a chunk
     * or of a document, twice (the triangular system, then its products), 4 each; and as much again
     * for tensor cores, which truncate sums. Measured up to 9 u on CPUs, 17 u as an H100 adds. */
    {"delta_rule", {32, 32, 32}, 1},
    /* A sum of K terms, then silu and its slope, as in "gated". */
    {"causal_convolution", {12, 12, 12}, 1},

    /* A sum of exponentials (1 ulp each) and its logarithm; then one more exponential. */
    {"cross_entropy_loss", {4, 4, 4}, 1},
    {"cross_entropy_gradient", {4, 4, 4}, 1},

    /* The same at two temperatures, and a sum over the teacher's tokens whose probabilities are
     * quotients of such sums. alpha is given in fp32. */
    {"distillation_loss", {5, 5, 5}, 1},
    {"distillation_gradient", {5, 5, 5}, 1},

    /* Sums of up to 34 terms on GPUs, and some differences, each of the size of the terms; then
     * an exponential, a logarithm and a few products. */
    {"preference", {8, 8, 8}, 1},

    /* An exponential of a difference, and a few products and sums of its size. */
    {"policy", {8, 8, 8}, 1},

    /* Summed in fp64; the products with the inverse scale are rounded, the inverse itself is part
     * of the reference. */
    {"gradient_norm", {2, 2, 2}, 1},

    /* Three roundings of the gradient (unscale, clip, inverse scale), twice in its square, and
     * those of the average. */
    {"adamw_moment", {8, 8, 8}, 1},
    /* The same through a quotient and a root, and the weight's own two roundings. */
    {"adamw_master", {8, 8, 8}, 1},

    /* Against PyTorch, whose fp32 sums are rounded as well: twice the above, and relative to the
     * largest element where cancellation makes small ones, so twice again. */
    {"golden_sum", {16, 16, 16}, 1},
    /* Scores reach 10, so that their exponentials are off by 10 times as much on both sides. */
    {"golden_attention", {40, 40, 40}, 1},
    /* Rounded to bf16 on both sides. Those that multiply bf16 round P and dS, and the backward pass
     * reads a rounded out: each term is then off by up to 2^16 u. */
    {"golden_attention_bf16", {40, 40, 40 + 0x1p16}, 2},
    /* The same, with twice "delta_rule". PyTorch adds the derivatives of g as differences of sums
     * over rows, which loses digits where exp(g) is small: measured 58 in that of A_log. */
    {"golden_delta_rule", {32, 32, 32}, 1},
    {"golden_delta_decay", {128, 128, 128}, 1},
    /* One or two operations. */
    {"golden", {2, 2, 2}, 1},
    /* Five steps of the above; 1 - beta is 4 u off, because the betas are given as fp32 here. */
    {"golden_adamw", {24, 24, 24}, 1},

    /* The differences are exact to 1e-11, but the magnitude is the largest element only. */
    {"differences", {8, 8, 8}, 1},
};

const struct tolerance *tolerance_of(const char *kind) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (!strcmp(table[i].kind, kind)) return &table[i];
    cr_assert_fail("no tolerance for %s", kind);
    return NULL;
}
