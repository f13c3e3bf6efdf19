#include <criterion/criterion.h>
#include <math.h>

#include "test/kernels/bench.h"
#include "test/kernels/check.h"

struct shape {
    int64_t batch, length, columns, size;
    int heads;
    enum dtype dtype;
    bool odd;     /* the rows begin at an odd offset */
    int64_t head; /* size of a head of which only `size` columns are rotated; 0: size */
    bool neighbours;
    int queries; /* first heads, which have angles of their own; 0: none */
};

static const struct shape shapes[] = {
    {1, 1, 2, 2, 1, DTYPE_F32, false, 0, false, 0},
    {2, 77, 9 * 24, 24, 6, DTYPE_F32, false, 0, false, 0},
    {2, 13, 5 * 64, 64, 4, DTYPE_BF16, false, 0, false, 0},
    {1, 26, 3 * 80, 80, 2, DTYPE_F16, false, 0, false, 0},
    {3, 9, 4 * 128, 128, 4, DTYPE_BF16, true, 0, false, 0},
    {1, 5, 256 + 7, 256, 1, DTYPE_F16, false, 0, false, 0},
    {2, 6, 3 * 6, 6, 3, DTYPE_BF16, false, 0, false, 0},
    {2, 13, 5 * 64, 48, 4, DTYPE_BF16, false, 64, false, 0},
    {2, 9, 3 * 24, 6, 2, DTYPE_F32, false, 24, false, 0},
    {2, 13, 5 * 64, 48, 4, DTYPE_BF16, false, 64, true, 0},
    {2, 9, 3 * 24, 6, 2, DTYPE_F32, false, 24, true, 0},
    {3, 9, 4 * 128, 128, 4, DTYPE_BF16, true, 0, true, 3},
    {2, 11, 40, 10, 4, DTYPE_F16, false, 0, true, 1},
    {2, 13, 5 * 64, 64, 4, DTYPE_F16, false, 0, false, 3},
};

static void rotate(struct check *c, const struct shape *s, bool inverse, bool given) {
    const int32_t *positions = NULL, *device_positions = NULL;
    int64_t rows = s->batch * s->length, half = s->size / 2, count = s->length * s->size;
    double *angles = check_doubles(c, count);
    for (int64_t i = 0; i < s->length * half; i++) {
        int64_t t = i / half, j = i % half;
        double angle = (double)t * pow(10000, -2.0 * (double)j / (double)s->size);
        angles[t * s->size + j] = (float)cos(angle);
        angles[t * s->size + half + j] = (float)sin(angle);
    }
    struct tensor table = check_tensor(c, CHECK_READ, DTYPE_F32, s->length, s->size, angles);
    double *scaled = check_doubles(c, s->length * s->size);
    for (int64_t i = 0; i < s->length * s->size; i++)
        scaled[i] = (float)(angles[i] * (double)(1 + i / s->size % 3));
    struct tensor queries = check_tensor(c, CHECK_READ, DTYPE_F32, s->length, s->size, scaled);
    struct tensor x = s->odd ? check_misaligned(c, CHECK_WRITE, s->dtype, rows, s->columns)
                             : check_sum(c, s->dtype, rows, s->columns);
    double *expected = check_read(c, &x), *size = check_read(c, &x);
    if (given) device_positions = check_tokens(c, rows, (int32_t)s->length, &positions);
    CHECK_OP(c, rope, .inout = &x, .angles = &table, .positions = device_positions,
             .query_angles = s->queries ? &queries : NULL, .sequence_length = s->length,
             .heads = s->heads, .query_heads = s->queries, .head_dim = (int)s->head,
             .inverse = inverse, .neighbours = s->neighbours);
    if (!c->verify) return;
    for (int64_t i = 0; i < rows * s->columns; i++) size[i] = fabs(size[i]);
    for (int64_t i = 0; i < rows * s->heads * half; i++) {
        int64_t row = i / half / s->heads, head = i / half % s->heads, j = i % half;
        double *low = expected + row * s->columns + head * (s->head ? s->head : s->size) +
                      (s->neighbours ? 2 : 1) * j,
               *high = low + (s->neighbours ? 1 : half);
        int64_t position = given ? positions[row] : row % s->length;
        const double *at = (head < s->queries ? scaled : angles) + position * s->size + j;
        double cosine = at[0], sine = inverse ? -at[half] : at[half], before = *low;
        double largest = (fabs(*low) + fabs(*high)) * (head < s->queries ? 3 : 1);
        *low = before * cosine - *high * sine;
        *high = *high * cosine + before * sine;
        size[low - expected] = size[high - expected] = largest;
    }
    check_close(c, "rope", &x, expected, size);
}

static void forward(struct check *c, const void *given) {
    rotate(c, given, false, false);
}
static void inverse(struct check *c, const void *given) {
    rotate(c, given, true, false);
}
static void at_positions(struct check *c, const void *given) {
    rotate(c, given, false, true);
}

/* Columns after the rotated heads do not change: their expected values are the input. */
Test(rope, rotates_heads_only) {
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_everywhere(forward, &shapes[i]);
        check_everywhere(inverse, &shapes[i]);
        check_everywhere(at_positions, &shapes[i]);
    }
}

static size_t time_rope(struct bench *b, int variant) {
    struct tensor qkv = bench_rows(b, (enum dtype)variant, BENCH_QKV);
    struct tensor angles = arena_tensor(&b->arena, DTYPE_F32, BENCH_T, BENCH_HEAD_SIZE);
    OP(&b->be, rope, .inout = &qkv, .angles = &angles, .sequence_length = BENCH_T,
       .heads = BENCH_HEADS + BENCH_KV_HEADS);
    return 2 * tensor_bytes(&qkv) / BENCH_QKV * BENCH_QK;
}
BENCH(rope, forward, bench_dtypes, time_rope)
