#include "test/kernels/check.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/random.h"
#include "kernels/arena.h"
#include "kernels/open/backend_open.h"
#include "test/device.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#endif

enum { GUARD_BYTES = 2 * ARENA_ALIGNMENT, SEED = 20 };

/* Two bytes of this value make a NaN of fp16 and bf16, four a NaN of fp32 and a negative
 * integer. */
static const uint16_t POISON = 0xffa5;

struct check_block {
    struct check_block *next;
    enum check_use use;
    char *memory; /* in backend memory: guard, bytes, guard */
    char *before; /* host copy of the contents when handed out */
    size_t bytes;
};

struct check_host {
    struct check_host *next;
    double values[];
};

/* ---- rounding, independent of kernels/dtype.c */

static const struct {
    int precision, exponent_min, exponent_max; /* significant bits; exponents of normal values */
} formats[] = {
    [DTYPE_F32] = {24, -126, 127}, [DTYPE_F16] = {11, -14, 15}, [DTYPE_BF16] = {8, -126, 127}};

double check_roundoff(enum dtype dtype) {
    return ldexp(1, -formats[dtype].precision);
}

static enum dtype operand(const struct check *c, enum dtype dtype) {
    return dtype == DTYPE_F32 && c->tf32 ? DTYPE_F16 : dtype;
}

double check_operand_roundoff(const struct check *c, enum dtype dtype) {
    return check_roundoff(operand(c, dtype));
}

double check_early_rounding(const struct check *c, const char *kind, enum dtype out) {
    if (c->be.device.kind == BACKEND_CPU || out == DTYPE_F32) return 0;
    return check_roundoff(out) / (tolerance_of(kind)->arithmetic[out] * 0x1p-24);
}

static double smallest(enum dtype dtype) {
    return ldexp(1, formats[dtype].exponent_min - formats[dtype].precision + 1);
}

double check_round(double value, enum dtype dtype) {
    if (value == 0 || !isfinite(value)) return value;
    int exponent = ilogb(value);
    if (exponent < formats[dtype].exponent_min) exponent = formats[dtype].exponent_min;
    int last_place = exponent - formats[dtype].precision + 1;
    double rounded = ldexp(nearbyint(ldexp(value, -last_place)), last_place);
    bool overflow = fabs(rounded) >= ldexp(1, formats[dtype].exponent_max + 1);
    return overflow ? copysign(INFINITY, value) : rounded;
}

double check_operand(const struct check *c, enum dtype dtype, double value) {
    return check_round(value, operand(c, dtype));
}

/* value must be representable in the dtype. */
static void encode(void *to, enum dtype dtype, double value) {
    if (dtype == DTYPE_F32) {
        float single = (float)value;
        memcpy(to, &single, sizeof single);
        return;
    }
    int fraction_bits = formats[dtype].precision - 1, minimum = formats[dtype].exponent_min;
    int exponent = value == 0 ? minimum - 1 : ilogb(value);
    if (exponent < minimum) exponent = minimum - 1; /* subnormal */
    int scale = exponent < minimum ? minimum : exponent;
    uint16_t fraction = (uint16_t)fabs(ldexp(value, fraction_bits - scale));
    uint16_t biased = (uint16_t)(exponent - minimum + 1);
    uint16_t magnitude =
        (uint16_t)((biased << fraction_bits) | (fraction & ((1 << fraction_bits) - 1)));
    uint16_t infinity =
        (uint16_t)((formats[dtype].exponent_max + 1 - minimum + 1) << fraction_bits);
    if (isinf(value)) magnitude = infinity;
    if (isnan(value)) magnitude = infinity + 1;
    uint16_t bits = (uint16_t)(magnitude | (signbit(value) ? 0x8000 : 0));
    memcpy(to, &bits, sizeof bits);
}

static double decode(const void *from, enum dtype dtype) {
    if (dtype == DTYPE_F32) {
        float single;
        memcpy(&single, from, sizeof single);
        return single;
    }
    uint16_t bits;
    memcpy(&bits, from, sizeof bits);
    int fraction_bits = formats[dtype].precision - 1, biased = (bits & 0x7fff) >> fraction_bits;
    int fraction = bits & ((1 << fraction_bits) - 1), minimum = formats[dtype].exponent_min;
    double value;
    if (biased == formats[dtype].exponent_max - minimum + 2) value = fraction ? NAN : INFINITY;
    else if (biased == 0) value = ldexp(fraction, minimum - fraction_bits);
    else value = ldexp(fraction + (1 << fraction_bits), biased - 1 + minimum - fraction_bits);
    return bits & 0x8000 ? -value : value;
}

/* ---- memory */

static void *host_memory(size_t bytes) {
    void *memory = calloc(1, bytes ? bytes : 1);
    cr_assert(memory, "no memory for the test");
    return memory;
}

double *check_doubles(struct check *c, int64_t count) {
    struct check_host *host = host_memory(sizeof *host + (size_t)count * sizeof(double));
    host->next = c->host;
    c->host = host;
    return host->values;
}

static void poison(char *memory, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) memory[i] = (char)(i % 2 ? POISON >> 8 : POISON);
}

static size_t guarded(const struct check_block *block) {
    return block->bytes + 2 * GUARD_BYTES;
}

void *check_memory(struct check *c, enum check_use use, const void *host, size_t bytes) {
    struct check_block *block = host_memory(sizeof *block);
    *block = (struct check_block){c->blocks, use, NULL, NULL, bytes};
    c->blocks = block;
    block->before = host_memory(guarded(block));
    poison(block->before, guarded(block));
    if (host) memcpy(block->before + GUARD_BYTES, host, bytes);
    block->memory = backend_allocate(&c->be, guarded(block));
    cr_assert(block->memory && (uintptr_t)block->memory % ARENA_ALIGNMENT == 0);
    backend_upload(&c->be, block->memory, block->before, guarded(block));
    return block->memory + GUARD_BYTES;
}

struct tensor check_tensor(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                           int64_t columns, const double *values) {
    struct tensor tensor = {NULL, dtype, columns ? 2 : 1, {rows, columns}};
    char *host = values ? host_memory(tensor_bytes(&tensor)) : NULL;
    for (int64_t i = 0; values && i < tensor_count(&tensor); i++)
        encode(host + (size_t)i * dtype_bytes(dtype), dtype, check_round(values[i], dtype));
    tensor.data = check_memory(c, use, host, tensor_bytes(&tensor));
    free(host);
    return tensor;
}

static struct tensor random_tensor(struct check *c, enum check_use use, enum dtype dtype,
                                   int64_t rows, int64_t columns, double scale) {
    int64_t count = rows * (columns ? columns : 1);
    double *values = host_memory((size_t)count * sizeof *values);
    uint64_t stream = c->stream++;
    for (int64_t i = 0; i < count; i++)
        values[i] = check_operand(c, dtype, scale * random_normal(SEED, stream, (uint64_t)i));
    struct tensor tensor = check_tensor(c, use, dtype, rows, columns, values);
    free(values);
    return tensor;
}

struct tensor check_normal(struct check *c, enum dtype dtype, int64_t rows, int64_t columns,
                           double scale) {
    return random_tensor(c, CHECK_READ, dtype, rows, columns, scale);
}

struct tensor check_sum(struct check *c, enum dtype dtype, int64_t rows, int64_t columns) {
    return random_tensor(c, CHECK_WRITE, dtype, rows, columns, 1.0);
}

struct tensor check_misaligned(struct check *c, enum check_use use, enum dtype dtype, int64_t rows,
                               int64_t columns) {
    struct tensor whole = use == CHECK_READ ? check_normal(c, dtype, rows * columns + 1, 0, 1.0)
                                            : check_sum(c, dtype, rows * columns + 1, 0);
    struct tensor part = tensor_range(&whole, 1, rows * columns);
    return tensor_view(&part, rows, columns);
}

struct tensor check_output(struct check *c, enum dtype dtype, int64_t rows, int64_t columns) {
    return check_tensor(c, CHECK_WRITE, dtype, rows, columns, NULL);
}

const int32_t *check_tokens(struct check *c, int64_t count, int32_t limit, const int32_t **host) {
    int32_t *tokens = (int32_t *)(void *)check_doubles(c, count);
    uint64_t stream = c->stream++;
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(random_bits(SEED, stream, (uint64_t)i) % (uint64_t)limit);
    if (host) *host = tokens;
    return check_memory(c, CHECK_READ, tokens, (size_t)count * sizeof *tokens);
}

const struct decode_keys *check_decode_keys(struct check *c, const struct decode_keys *keys,
                                            int64_t count) {
    return check_memory(c, CHECK_READ, keys, (size_t)count * sizeof *keys);
}

double *check_read(struct check *c, const struct tensor *tensor) {
    int64_t count = tensor_count(tensor);
    size_t size = dtype_bytes(tensor->dtype);
    char *raw = host_memory(tensor_bytes(tensor));
    backend_download(&c->be, raw, tensor->data, tensor_bytes(tensor));
    double *values = check_doubles(c, count);
    for (int64_t i = 0; i < count; i++) values[i] = decode(raw + (size_t)i * size, tensor->dtype);
    free(raw);
    return values;
}

struct tensor check_rank3(struct tensor tensor, int64_t a, int64_t b, int64_t columns) {
    return (struct tensor){tensor.data, tensor.dtype, 3, {a, b, columns}};
}

/* ---- running */

enum expect { NOTHING_CHANGED, OUTPUTS_CHANGED };

static void inspect(struct check *c, const char *operation, enum expect expect) {
    for (struct check_block *block = c->blocks; block; block = block->next) {
        char *now = host_memory(guarded(block));
        backend_download(&c->be, now, block->memory, guarded(block));
        size_t after = GUARD_BYTES + block->bytes;
        cr_assert(!memcmp(now, block->before, GUARD_BYTES), "%s: wrote before a tensor", operation);
        cr_assert(!memcmp(now + after, block->before + after, GUARD_BYTES),
                  "%s: wrote behind a tensor", operation);
        if (expect == NOTHING_CHANGED || block->use == CHECK_READ)
            cr_assert(!memcmp(now, block->before, guarded(block)), "%s: %s", operation,
                      expect == NOTHING_CHANGED ? "planning wrote to a tensor" : "input changed");
        for (size_t i = GUARD_BYTES; block->use == CHECK_WRITE && i < after; i++)
            c->digest = (c->digest ^ (unsigned char)now[i]) * 0x100000001b3;
        /* Later operations of the same body are compared with this state. */
        memcpy(block->before, now, guarded(block));
        free(now);
    }
}

void check_plan_begin(struct check *c) {
    c->be.workspace_bytes = 0; /* this operation alone must request all it needs */
    backend_plan_begin(&c->be);
}

void check_plan_end(struct check *c, const char *operation) {
    struct error error;
    cr_assert(backend_plan_end(&c->be, &error) == 0, "%s", error.text);
    char *noise = host_memory(c->be.workspace_bytes);
    poison(noise, c->be.workspace_bytes);
    backend_upload(&c->be, c->be.workspace, noise, c->be.workspace_bytes);
    free(noise);
    inspect(c, operation, NOTHING_CHANGED);
}

void check_finished(struct check *c, const char *operation) {
    cr_assert(!c->be.failure.text[0], "%s: %s", operation, c->be.failure.text);
    inspect(c, operation, OUTPUTS_CHANGED);
}

static void release(struct check *c) {
    while (c->blocks) {
        struct check_block *block = c->blocks;
        c->blocks = block->next;
        backend_release(&c->be, block->memory);
        free(block->before);
        free(block);
    }
    while (c->host) {
        struct check_host *host = c->host;
        c->host = host->next;
        free(host);
    }
    backend_close(&c->be);
}

#ifdef EMULATED
/* Sets the order in which threads and blocks run: 0 numeric, 1 reversed, otherwise a random
 * order. */
void cuda_emulator_schedule(unsigned seed);
#else
static void cuda_emulator_schedule(unsigned seed) {
    (void)seed;
}
#endif

/* A body with its argument, to run with the option tf32 or without. */
struct subject {
    void (*body)(struct check *c, const void *given);
    const void *given;
    bool tf32;
};

/* Runs body with one thread count; returns the digest of its outputs. */
static uint64_t run_once(struct subject what, int threads, bool verify) {
    struct check c = {.verify = verify, .tf32 = what.tf32, .digest = 0xcbf29ce484222325};
    struct backend_options options = {test_device(), .threads = threads, .tf32 = what.tf32};
    struct error error;
    cr_assert(backend_open(&c.be, &options, &error) == 0, "%s", error.text);
    cuda_emulator_schedule((unsigned)threads - 1);
    what.body(&c, what.given);
    uint64_t digest = c.digest;
    release(&c);
    return digest;
}

static void run_everywhere(struct subject what) {
    static const int threads[] = {2, 3, 2};
    size_t runs = test_emulated() ? 2 : 3; /* the same schedule twice shows nothing new there */
    if (test_short()) {
        run_once(what, 3, true);
        return;
    }
    uint64_t first = run_once(what, 1, true);
    for (size_t run = 0; run < runs; run++)
        cr_assert(run_once(what, threads[run], false) == first,
                  "%d threads gave other bits than 1 thread", threads[run]);
}

static void run_on_each_gpu(struct subject what) {
#ifdef EMULATED
    if (test_emulated() && !getenv("TEST_ONE_GPU")) {
        cuda_emulator_capability(80);
        run_everywhere(what);
        cuda_emulator_capability(90);
    }
#endif
    run_everywhere(what);
}

static int run_on_gpu(int sm, int held, struct subject what) {
#ifdef EMULATED
    if (test_emulated()) {
        cuda_emulator_capability(sm);
        cuda_emulator_stats_reset();
        run_everywhere(what);
        cuda_emulator_capability(90);
        return cuda_emulator_stats().blocks_held;
    }
#endif
    (void)sm, (void)what;
    return held;
}

void check_everywhere(void (*body)(struct check *c, const void *given), const void *given) {
    run_everywhere((struct subject){body, given, false});
}

void check_on_each_gpu(void (*body)(struct check *c, const void *given), const void *given) {
    run_on_each_gpu((struct subject){body, given, false});
}

void check_tf32(void (*body)(struct check *c, const void *given), const void *given) {
    run_on_each_gpu((struct subject){body, given, true});
}

int check_on_gpu(int sm, int held, void (*body)(struct check *c, const void *given),
                 const void *given) {
    return run_on_gpu(sm, held, (struct subject){body, given, false});
}

int check_tf32_on_gpu(int sm, int held, void (*body)(struct check *c, const void *given),
                      const void *given) {
    return run_on_gpu(sm, held, (struct subject){body, given, true});
}

void check_products(void (*body)(struct check *c, const void *given), const void *given) {
    for (int threads = 1; threads <= 3; threads++) {
        struct subject what = {body, given, false};
        uint64_t first = run_once(what, threads, true);
        if (test_short()) return;
        cr_assert(run_once(what, threads, false) == first,
                  "other bits the second time, with %d threads", threads);
    }
}

/* ---- comparing */

/* An exponential below 2^-126 may be flushed to zero, and what multiplies it later may be large.
 * With 2^-24 of this, results below 2^-120 are not compared. */
static const double UNDERFLOW = 0x1p-96;

void check_close(struct check *c, const char *kind, const struct tensor *got,
                 const double *expected, const double *magnitude) {
    const struct tolerance *tolerance = tolerance_of(kind);
    double *values = check_read(c, got), worst = -1;
    double rounding = check_roundoff(got->dtype) * tolerance->roundings;
    double arithmetic = tolerance->arithmetic[got->dtype] * 0x1p-24;
    double largest = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) largest = fmax(largest, fabs(expected[i]));
    int64_t at = 0;
    for (int64_t i = 0; i < tensor_count(got); i++) {
        double size = magnitude ? fabs(magnitude[i]) : largest;
        double allowed = rounding * fabs(expected[i]) + arithmetic * (size + UNDERFLOW) +
                         smallest(got->dtype) / 2;
        double ratio = fabs(values[i] - expected[i]) / allowed;
        if (values[i] == expected[i]) ratio = 0;
        if (!(ratio <= worst)) { /* a NaN counts as the largest error */
            worst = ratio;
            at = i;
            if (isnan(ratio)) break;
        }
    }
    if (getenv("CHECK_VERBOSE"))
        fprintf(stderr, "worst %s %s %.3f\n", kind, dtype_name(got->dtype), worst);
    int64_t columns = tensor_columns(got);
    cr_assert(worst <= 1, "%s, %s: row %lld column %lld is %.9g, expected %.9g: %.3g x the allowed",
              kind, dtype_name(got->dtype), (long long)(at / columns), (long long)(at % columns),
              values[at], expected[at], worst);
}

void check_equal(struct check *c, const char *what, const struct tensor *got,
                 const double *expected) {
    double *values = check_read(c, got);
    for (int64_t i = 0; i < tensor_count(got); i++)
        cr_assert(values[i] == expected[i], "%s, %s: element %lld is %.9g, expected %.9g", what,
                  dtype_name(got->dtype), (long long)i, values[i], expected[i]);
}

struct amax *check_amax(struct check *c, float largest, bool not_finite) {
    struct amax before = {0, not_finite};
    memcpy(&before.largest, &largest, sizeof largest);
    return check_memory(c, CHECK_WRITE, &before, sizeof before);
}

void check_amax_covers(struct check *c, const struct amax *amax, float before, bool bad_before,
                       const struct tensor *tensor) {
    struct amax found;
    float largest;
    double *values = check_read(c, tensor), wanted = (double)before;
    bool bad = bad_before;
    for (int64_t i = 0; i < tensor_count(tensor); i++) {
        if (!isfinite(values[i])) bad = true;
        else if (fabs(values[i]) > wanted) wanted = fabs(values[i]);
    }
    backend_download(&c->be, &found, amax, sizeof found);
    memcpy(&largest, &found.largest, sizeof largest);
    cr_expect_eq((double)largest, wanted, "largest magnitude %a, not %a", (double)largest, wanted);
    cr_expect_eq(found.not_finite, bad);
}

void check_column_sums(struct check *c, const struct tensor *sums, const double *before,
                       const struct tensor *of) {
    int64_t columns = tensor_columns(of);
    double *values = check_read(c, of), *size = check_doubles(c, columns);
    double *wanted = check_doubles(c, columns);
    for (int64_t i = 0; i < columns; i++) {
        wanted[i] = before[i];
        size[i] = fabs(before[i]);
    }
    for (int64_t i = 0; i < tensor_count(of); i++) {
        wanted[i % columns] += values[i];
        size[i % columns] += fabs(values[i]);
    }
    /* The CPU adds n rows one by one. If all have one sign, partial sums grow to the whole: 0.3
     * u sqrt(n), times 3 for safety. */
    double longer = c->be.device.kind == BACKEND_CPU ? 1 + sqrt((double)tensor_rows(of)) / 4 : 1;
    for (int64_t i = 0; i < columns; i++) size[i] *= longer;
    check_close(c, "column_sums", sums, wanted, size);
}

double check_derivative(double (*f)(const void *state), const void *state, double *x) {
    const double step = 1e-3, middle = *x;
    double at[5];
    for (int i = -2; i <= 2; i++) {
        *x = middle + i * step;
        at[i + 2] = f(state);
    }
    *x = middle;
    return (8 * (at[3] - at[1]) - (at[4] - at[0])) / (12 * step);
}
