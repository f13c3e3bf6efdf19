/* Benchmark of the matmuls of one training step of GPT-2 124M: each by every implementation that
 * the library has, in turns. The table shows the library's first choice, the choice of our rule
 * (marked *), and the fastest.
 *
 *   build/fast/tests --bench products [--rows 1024] [--width 768] [--dtype fp32] [--rounds 9]
 *
 * Rows are batch x T. Milliseconds, medians. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/statistics.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/product_library.h"
#include "test/kernels/bench.h"

enum { LAYERS = 12, VOCABULARY = 50304, HEAD_ROWS = 256 };

/* One kind of matmul, and how often a step runs it. */
struct kind {
    const char *name;
    struct product_shape shape;
    int64_t times;
};

struct operands {
    void *out, *a, *b, *bias;
};

static void *filled(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) bench_die("out of memory");
    memset(memory, 0x3c, bytes); /* 0.01 in bf16 and fp32 */
    return memory;
}

static double run_ms(struct product_library *library, const struct cpu_product *product,
                     const struct operands *o, void *scratch) {
    double begin = omp_get_wtime();
    if (!library_run(library, product, o->out, o->a, o->b, o->bias, scratch))
        bench_die("the library failed");
    return 1e3 * (omp_get_wtime() - begin);
}

/* Measures all implementations in turns; returns their medians. */
static int measure(double ms[], char names[][IMPLEMENTATION_NAME_MAX],
                   struct product_library *library, const struct product_shape *s, int rounds) {
    struct cpu_product *products[IMPLEMENTATIONS_MAX];
    double times[IMPLEMENTATIONS_MAX][BENCH_ROUNDS_MAX];
    void *scratch[IMPLEMENTATIONS_MAX];
    size_t in = dtype_bytes((enum dtype)s->in), out = dtype_bytes((enum dtype)s->out);
    struct operands operands = {filled((size_t)(s->m * s->n) * out),
                                filled((size_t)(s->m * s->k) * in),
                                filled((size_t)(s->k * s->n) * in), filled((size_t)s->n * 4)};
    int count = library_implementations(names, library, s);
    for (int i = 0; i < count; i++) {
        products[i] = library_prepare(library, s, names[i]);
        if (!products[i]) bench_die("the library has lost an implementation");
        scratch[i] = filled(library_scratch_bytes(products[i]) + 1);
    }
    for (int round = -1; round < rounds; round++)
        for (int i = 0; i < count; i++) {
            double time = run_ms(library, products[i], &operands, scratch[i]);
            if (round >= 0) times[i][round] = time;
        }
    for (int i = 0; i < count; i++) {
        ms[i] = median_of(times[i], rounds);
        library_discard(products[i]);
        free(scratch[i]);
    }
    void *const memory[] = {operands.out, operands.a, operands.b, operands.bias};
    for (int i = 0; i < 4; i++) free(memory[i]);
    return count;
}

static int chosen_by_rule(char names[][IMPLEMENTATION_NAME_MAX], int count,
                          struct product_library *library, const struct product_shape *shape) {
    struct cpu_product *product = library_prepare(library, shape, NULL);
    const char *name = library_implementation(product);
    int found = 0;
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) found = i;
    library_discard(product);
    return found;
}

struct totals {
    double first, rule, best;
};

static void measure_kind(struct totals *totals, struct product_library *library,
                         const struct kind *kind, int rounds) {
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    double ms[IMPLEMENTATIONS_MAX];
    const struct product_shape *s = &kind->shape;
    int count = measure(ms, names, library, s, rounds);
    if (count == 0) bench_die("the library has no such product: it would be widened to fp32");
    int rule = chosen_by_rule(names, count, library, s), best = 0;
    for (int i = 0; i < count; i++)
        if (ms[i] < ms[best]) best = i;
    printf("%-18s %2lld %6lld %6lld %6lld ", kind->name, (long long)kind->times, (long long)s->m,
           (long long)s->n, (long long)s->k);
    for (int i = 0; i < count; i++) printf("  %c%s %.2f", i == rule ? '*' : ' ', names[i], ms[i]);
    printf("  %.0f GFLOP/s\n", 2e-6 * (double)(s->m * s->n * s->k) / ms[rule]);
    fflush(stdout);
    totals->first += (double)kind->times * ms[0];
    totals->rule += (double)kind->times * ms[rule];
    totals->best += (double)kind->times * ms[best];
}

/* forward: out = in W + bias; gradient of in: dout W^T; gradient of W: in^T dout. */
static void linear(struct totals *totals, struct product_library *library, const char *name,
                   int64_t rows, int64_t in, int64_t out, enum dtype dtype, int rounds) {
    char text[32];
    struct kind forward = {name, {rows, out, in, dtype, dtype, dtype, 0, 0, 0}, LAYERS};
    struct kind input = {text, {rows, in, out, dtype, dtype, -1, 0, 1, 0}, LAYERS};
    struct kind weight = {text, {in, out, rows, dtype, DTYPE_F32, -1, 1, 0, 0}, LAYERS};
    measure_kind(totals, library, &forward, rounds);
    snprintf(text, sizeof text, "%s d in", name);
    measure_kind(totals, library, &input, rounds);
    snprintf(text, sizeof text, "%s d W", name);
    measure_kind(totals, library, &weight, rounds);
}

static void head(struct totals *totals, struct product_library *library, int64_t rows,
                 int64_t width, enum dtype dtype, int rounds) {
    int64_t m = rows < HEAD_ROWS ? rows : HEAD_ROWS, v = VOCABULARY, times = rows / m;
    struct kind kinds[] = {
        {"head", {m, v, width, dtype, dtype, -1, 0, 1, 0}, times},
        {"head d in", {m, width, v, dtype, dtype, -1, 0, 0, 0}, times},
        {"head d W", {v, width, m, dtype, DTYPE_F32, -1, 1, 0, 1}, times},
    };
    for (int i = 0; i < 3; i++) measure_kind(totals, library, &kinds[i], rounds);
}

static void table(void) {
    int64_t rows = bench_number("rows", 1024, 1 << 24), width = bench_number("width", 768, 1 << 20);
    enum dtype dtype = strcmp(bench_text("dtype", "fp32"), "bf16") ? DTYPE_F32 : DTYPE_BF16;
    int rounds = bench_rounds();
    bool forced;
    char text[256];
    struct error error;
    const struct cpu_level *level = cpu_level_choose(&forced, &error);
    struct product_library *library = level ? library_open(level, forced) : NULL;
    if (!library) bench_die(level ? "the library does not start" : error.text);
    struct totals totals = {0};
    cpu_describe(text, sizeof text);
    printf("%s, %s, %d threads, ", text, level->full_name, omp_get_max_threads());
    library_describe(text, sizeof text);
    printf("%s, %s\n%-16s times    M      N      K   implementations, ms (* by rule)\n", text,
           dtype_name(dtype), "product");
    linear(&totals, library, "qkv", rows, width, 3 * width, dtype, rounds);
    linear(&totals, library, "projection", rows, width, width, dtype, rounds);
    linear(&totals, library, "fc", rows, width, 4 * width, dtype, rounds);
    linear(&totals, library, "fc projection", rows, 4 * width, width, dtype, rounds);
    head(&totals, library, rows, width, dtype, rounds);
    printf("all of a step: the library's first %.0f ms, by rule %.0f, by the clock %.0f\n",
           totals.first, totals.rule, totals.best);
    library_close(library);
}
BENCH_TABLE(products, gpt2, table)
