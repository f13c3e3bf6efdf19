#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test/kernels/bench.h"
#include "test/kernels/stored_weight.h"

struct shape {
    int64_t rows, columns;
    enum weight_format format;
    enum dtype out;
    int64_t offset; /* elements of a larger tensor before out */
};

/* The values of the host, rounded once: the same bits. */
static void dequantize(struct check *c, const void *given) {
    const struct shape *s = given;
    struct quantized_weight host, in = random_weight(c, &host, s->format, s->rows, s->columns);
    struct tensor all = check_output(c, s->out, s->offset + s->rows * s->columns + 3, 0);
    struct tensor range = tensor_range(&all, s->offset, s->rows * s->columns);
    struct tensor out = tensor_view(&range, s->rows, s->columns);
    CHECK_OP(c, dequantize, .out = &out, .in = &in);
    if (!c->verify) return;
    double *expected = check_doubles(c, in.count), *around = check_read(c, &all);
    for (int64_t i = 0; i < in.count; i++) {
        float value;
        quantized_weight_load(&host, &value, i, 1);
        expected[i] = check_round(value, s->out);
    }
    check_equal(c, "dequantize", &out, expected);
    for (int64_t i = 0; i < s->offset; i++) cr_assert(isnan(around[i]), "wrote before the start");
    for (int64_t i = s->offset + in.count; i < tensor_count(&all); i++)
        cr_assert(isnan(around[i]), "wrote past the end");
}

/* Counts that are no multiples of a block, of 8 or of 2; more than one block of scales; a length
 * that one GPU block does not cover. */
Test(dequantize, any_size) {
    static const int64_t sizes[][2] = {{1, 1},  {3, 21},    {1, 64},  {5, 13},
                                       {8, 72}, {133, 131}, {64, 300}};
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};
    int n = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int format = WEIGHT_NF4; format <= WEIGHT_FP8_BLOCK; format++)
            for (int d = 0; d < 3; d++)
                check_everywhere(dequantize, &(const struct shape){sizes[i][0], sizes[i][1],
                                                                   (enum weight_format)format,
                                                                   dtypes[d], n++ % 4 ? 0 : 1});
}

static const char *const variants[] = {"nf4 to fp32", "nf4 to bf16", "nf4 to fp16", "fp8 to fp32",
                                       "fp8 to bf16", "fp8 to fp16", NULL};

static size_t time_dequantize(struct bench *b, int variant) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    struct tensor out = bench_rows(b, dtypes[variant % 3], BENCH_HIDDEN);
    struct quantized_weight in = quantized_weight_take(
        &b->arena, variant < 3 ? WEIGHT_NF4 : WEIGHT_FP8, b->rows, BENCH_HIDDEN);
    OP(&b->be, dequantize, .out = &out, .in = &in);
    return tensor_bytes(&out) + quantized_weight_bytes(&in);
}
BENCH(dequantize, forward, variants, time_dequantize)
