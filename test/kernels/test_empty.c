/* Operations on tensors without rows: nothing is read or written, and nothing fails. */
#include <criterion/criterion.h>

#include "test/kernels/check.h"

enum { C = 32, HEADS = 2 };

static void rows_and_columns(struct check *c, const void *given) {
    const enum dtype dtype = *(const enum dtype *)given;
    struct tensor in = check_normal(c, dtype, 0, C, 1), out = check_output(c, dtype, 0, C);
    struct tensor wide_in = check_normal(c, dtype, 0, 2 * C, 1);
    struct tensor wide_out = check_output(c, dtype, 0, 2 * C);
    struct tensor weight = check_normal(c, DTYPE_F32, C, 0, 1);
    struct tensor sums = check_sum(c, DTYPE_F32, C, 0), bias_sums = check_sum(c, DTYPE_F32, C, 0);
    struct tensor angles = check_normal(c, DTYPE_F32, 4, C / HEADS, 1);
    float *mean = check_memory(c, CHECK_WRITE, NULL, 0);
    float *rstd = check_memory(c, CHECK_WRITE, NULL, 0);
    CHECK_OP(c, layernorm_forward, .out = &out, .mean = mean, .rstd = rstd, .in = &in,
             .weight = &weight, .bias = &weight, .epsilon = 1e-5f);
    CHECK_OP(c, layernorm_backward, .din = &out, .dweight = &sums, .dbias = &bias_sums, .dout = &in,
             .in = &in, .mean = mean, .rstd = rstd, .weight = &weight);
    CHECK_OP(c, gelu_forward, .out = &out, .in = &in);
    CHECK_OP(c, gelu_backward, .din = &out, .dout = &in, .in = &in);
    CHECK_OP(c, gated_forward, .out = &out, .gate_up = &wide_in);
    CHECK_OP(c, gated_backward, .dgate_up = &wide_out, .dout = &in, .gate_up = &wide_in);
    CHECK_OP(c, column_sums, .sums = &sums, .in = &in);
    CHECK_OP(c, rope, .inout = &out, .angles = &angles, .sequence_length = 4, .heads = HEADS);
    CHECK_OP(c, cast, .out = &out, .in = &in);
    CHECK_OP(c, softcap, .inout = &out, .cap = 30);
    CHECK_OP(c, copy_last_columns, .out = &out, .in = &wide_in);
    CHECK_OP(c, weighted_sum, .out = &out, .a = &in, .b = &in, .columns = C, .alpha = 1, .beta = 1);
    CHECK_OP(c, normalize, .out = &out, .in = &in, .epsilon = 1e-7f);
}

static void draws_and_parts(struct check *c, const void *given) {
    const enum dtype dtype = *(const enum dtype *)given;
    const struct step_inputs *inputs =
        check_memory(c, CHECK_READ, &(struct step_inputs){.step = 1}, sizeof *inputs);
    struct tensor in = check_normal(c, dtype, 0, C, 1), out = check_output(c, dtype, 0, C);
    struct tensor part = check_normal(c, DTYPE_F32, 0, C, 1);
    struct tensor dpart = check_output(c, dtype, 0, C);
    CHECK_OP(c, dropout, .out = &out, .in = &in, .inputs = inputs, .probability = 0.5);
    CHECK_OP(c, block_diagonal_forward, .out = &out, .blocks = {{part, 0}}, .count = 1, .scale = 1);
    CHECK_OP(c, block_diagonal_backward, .dblocks = {{dpart, 0}}, .dout = &part, .count = 1,
             .scale = 1);
}

static void codes(struct check *c, const void *given) {
    const struct quantize_format format = {DTYPE_E4M3, 1, 32, DTYPE_E8M0, SCALE_OF_EXPONENT, false};
    struct tensor in = check_normal(c, *(const enum dtype *)given, 0, C, 1);
    struct tensor out = check_output(c, DTYPE_BF16, 0, C), scales = out, values = out;
    scales.dtype = format.scale, values.dtype = format.element;
    CHECK_OP(c, fake_quantize, .out = &out, .in = &in, .format = format);
    CHECK_OP(c, dequantize_blocks, .out = &out, .codes = &values, .block_scales = &scales,
             .format = format);
    CHECK_OP(c, hadamard, .out = &out, .in = &in, .signs = 5);
}

static void records(struct check *c, const void *given) {
    struct step_state *state =
        check_memory(c, CHECK_WRITE, &(struct step_state){.quantized_zero = 3}, sizeof *state);
    const struct step_inputs *inputs =
        check_memory(c, CHECK_READ, &(struct step_inputs){.step = 1}, sizeof *inputs);
    float *none = check_memory(c, CHECK_WRITE, NULL, 0);
    struct step_state after;
    (void)given;
    CHECK_OP(c, quantize_history, .state = state, .amax = none, .history = none,
             .records = (struct quantize_record *)none, .inputs = inputs, .ranks = 1, .each = 0,
             .count = 0, .length = 4, .margin = 1);
    backend_download(&c->be, &after, state, sizeof after);
    cr_expect_eq(after.quantized_zero, 0);
}

static void each_dtype(void (*body)(struct check *c, const void *given)) {
    for (int i = 0; i < DTYPE_COUNT; i++) {
        const enum dtype dtype = (enum dtype)i;
        check_everywhere(body, &dtype);
    }
}

Test(empty, rows) {
    each_dtype(rows_and_columns);
}

Test(empty, dropout_and_block_diagonals) {
    each_dtype(draws_and_parts);
}

Test(empty, blocks_of_codes) {
    each_dtype(codes);
}

Test(empty, records_of_quantizations) {
    check_everywhere(records, NULL);
}
