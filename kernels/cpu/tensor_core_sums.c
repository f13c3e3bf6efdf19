#include "kernels/cpu/tensor_core_sums.h"

#include "kernels/arena.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/widened.h"
#include "kernels/float8.h"

enum {
    FRACTION = 13,          /* bits kept after the largest exponent */
    CHUNK = 128,            /* products of a sum without fast accumulation */
    LEAST = -29 - FRACTION, /* a smaller largest exponent changes nothing: all terms are zero */
    ZERO = -1000,           /* exponent of a factor that is zero */
    WIDTH = 64              /* outputs of a row that are summed at a time */
};

/* Products of a step, by enum matmul_sums. */
static int block_of(enum matmul_sums sums) {
    return sums == MATMUL_SUMS_HOPPER ? 32 : 16;
}

/* Factors in fp32 with their exponents: A as [M, K], B as [K, N]. */
struct factors {
    float *values;
    int32_t *exponents;
};

struct layout {
    struct factors a, b;
    float *sums; /* [M, N] */
    size_t bytes;
};

static struct factors take_factors(struct arena *arena, const struct tensor *operand) {
    size_t count = (size_t)tensor_count(operand);
    struct factors f;
    f.values = arena_take(arena, count * sizeof *f.values);
    f.exponents = arena_take(arena, count * sizeof *f.exponents);
    return f;
}

static struct layout lay_out(const struct matmul_args *args, void *memory) {
    struct arena arena = {memory, 0, SIZE_MAX};
    struct layout l = {.bytes = 0};
    l.a = take_factors(&arena, args->a);
    l.b = take_factors(&arena, args->b);
    l.sums = arena_take(&arena, (size_t)tensor_count(matmul_sum(args)) * sizeof *l.sums);
    l.bytes = arena.used;
    return l;
}

bool tensor_core_sums_wanted(const struct matmul_args *args) {
    return args->sums != MATMUL_SUMS_EXACT && dtype_is_f8(args->a->dtype);
}

size_t tensor_core_sums_scratch(const struct matmul_args *args) {
    return lay_out(args, NULL).bytes;
}

/* Sets a factor from its code. Returns false if it is not finite. */
static bool set_factor(const struct factors *f, int64_t at, uint8_t code, enum dtype dtype) {
    const struct f8_format format = f8_format(dtype);
    float value = f8_widen(code, dtype);
    int exponent = (int)(f32_bits(value) >> 23 & 0xff) - 127;
    if (exponent < 1 - format.bias) exponent = 1 - format.bias;
    f->values[at] = value;
    f->exponents[at] = value == 0 ? ZERO : exponent;
    return (uint32_t)(code & 0x7f) < format.infinity;
}

/* Decodes an operand, or its transpose, into factors [rows, columns]. Returns false if a code is
 * not finite. */
static bool decode(const struct factors *f, const struct tensor *operand, int64_t rows,
                   int64_t columns, bool transposed) {
    const uint8_t *codes = operand->data;
    bool finite = true;
#pragma omp parallel for schedule(static) reduction(&& : finite)
    for (int64_t row = 0; row < rows; row++)
        for (int64_t c = 0; c < columns; c++) {
            uint8_t code = codes[transposed ? c * rows + row : row * columns + c];
            finite = set_factor(f, row * columns + c, code, operand->dtype) && finite;
        }
    return finite;
}

/* Adds products first .. last - 1 of a row of A and WIDTH or fewer columns of B to sums, in one
 * step. b: at the first column; stride: columns of B. */
static void add_block(float sums[WIDTH], const struct factors *a, const struct factors *b,
                      int64_t stride, int64_t first, int64_t last, int64_t width) {
    int32_t largest[WIDTH], total[WIDTH];
    float multiplier[WIDTH];
    for (int64_t j = 0; j < width; j++) {
        int32_t own = (int32_t)(f32_bits(sums[j]) >> 23 & 0xff) - 127;
        largest[j] = own > LEAST ? own : LEAST;
    }
    for (int64_t i = first; i < last; i++) {
        const int32_t *exponents = b->exponents + i * stride, own = a->exponents[i];
        for (int64_t j = 0; j < width; j++) {
            int32_t sum = own + exponents[j];
            largest[j] = sum > largest[j] ? sum : largest[j];
        }
    }
    for (int64_t j = 0; j < width; j++) {
        multiplier[j] = f32_of_bits((uint32_t)(127 + FRACTION - largest[j]) << 23);
        total[j] = (int32_t)(sums[j] * multiplier[j]);
    }
    for (int64_t i = first; i < last; i++) {
        const float *values = b->values + i * stride, own = a->values[i];
        for (int64_t j = 0; j < width; j++) total[j] += (int32_t)(own * values[j] * multiplier[j]);
    }
    for (int64_t j = 0; j < width; j++) {
        float unit = f32_of_bits((uint32_t)(127 - FRACTION + largest[j]) << 23);
        uint32_t bits = f32_bits((float)total[j] * unit);
        sums[j] = f32_of_bits(bits & ~((1u << (23 - FRACTION)) - 1)) + 0.0f; /* -0 becomes 0 */
    }
}

/* Sums all products of some outputs of a row. */
static void sum_outputs(float out[WIDTH], const struct factors *a, const struct factors *b,
                        int64_t stride, int64_t k, int64_t width, const struct matmul_args *args) {
    const int block = block_of(args->sums);
    const int64_t chunk = args->fast_accumulation ? k : CHUNK;
    for (int64_t j = 0; j < width; j++) out[j] = 0;
    for (int64_t first = 0; first < k; first += chunk) {
        int64_t end = first + block_length(first, k, chunk);
        float sums[WIDTH] = {0};
        for (int64_t i = first; i < end; i += block)
            add_block(sums, a, b, stride, i, i + block_length(i, end, block), width);
        for (int64_t j = 0; j < width; j++) out[j] += sums[j];
    }
}

bool tensor_core_sums_multiply(const struct matmul_args *args, void *scratch) {
    const struct product_shape s = product_shape_of(args);
    const struct layout l = lay_out(args, scratch);
    const int64_t blocks = blocks_of(s.n, WIDTH);
    if (!decode(&l.a, args->a, s.m, s.k, args->transpose_a)) return false;
    if (!decode(&l.b, args->b, s.k, s.n, args->transpose_b)) return false;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < s.m * blocks; i++) {
        int64_t row = i / blocks, first = i % blocks * WIDTH;
        const struct factors a = {l.a.values + row * s.k, l.a.exponents + row * s.k};
        const struct factors b = {l.b.values + first, l.b.exponents + first};
        sum_outputs(l.sums + row * s.n + first, &a, &b, s.n, s.k, block_length(first, s.n, WIDTH),
                    args);
    }
    widened_finish(args, l.sums);
    return true;
}
