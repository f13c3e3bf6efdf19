#include "kernels/cpu/products.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/algorithms.h"

enum { ROUNDS = 5, PAGE_BYTES = 4096 };

struct product_entry {
    struct product_shape key;
    struct cpu_product *value; /* NULL: widen */
    bool only_size;            /* it was prepared for its scratch memory, not to run */
};

struct cpu_products {
    struct product_library *library;
    struct product_entry *prepared; /* stb_ds map */
    struct algorithms *algorithms;  /* the backend's */
    char fallback[256];             /* see cpu_products_fallback; "": none */
};

/* ---- trials */

struct operands {
    void *out, *a, *b, *bias, *scratch;
};

static size_t lay_out(struct operands *operands, const struct product_shape *shape,
                      size_t scratch_bytes, void *memory) {
    struct arena arena = {memory, 0, SIZE_MAX};
    size_t in = dtype_bytes((enum dtype)shape->in), out = dtype_bytes((enum dtype)shape->out);
    operands->a = arena_take(&arena, (size_t)(shape->m * shape->k) * in);
    operands->b = arena_take(&arena, (size_t)(shape->k * shape->n) * in);
    operands->out = arena_take(&arena, (size_t)(shape->m * shape->n) * out);
    operands->bias = arena_take(&arena, (size_t)shape->n * sizeof(float));
    operands->scratch = arena_take(&arena, scratch_bytes);
    return arena.used;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the implementation with the smallest median time, without first runs. Implementations
 * alternate, so that other load on the machine affects them alike. */
static int fastest(struct product_library *library, struct cpu_product *const *products, int count,
                   const struct operands *o) {
    double times[IMPLEMENTATIONS_MAX][ROUNDS];
    for (int round = -1; round < ROUNDS; round++)
        for (int i = 0; i < count; i++) {
            double begin = omp_get_wtime();
            bool good = products[i] &&
                        library_run(library, products[i], o->out, o->a, o->b, o->bias, o->scratch);
            if (round >= 0) times[i][round] = good ? omp_get_wtime() - begin : INFINITY;
        }
    int best = 0;
    for (int i = 0; i < count; i++) {
        qsort(times[i], ROUNDS, sizeof **times, by_value);
        if (times[i][ROUNDS / 2] < times[best][ROUNDS / 2]) best = i;
    }
    return best;
}

/* Times the library's implementations on operands of its own and records the fastest, if there are
 * several and there is memory. 0x3c3c is 0.01 in bf16 and fp32, and 1.06 in fp16, so timings are
 * those of ordinary numbers. */
static void tune(struct cpu_products *products, const struct product_shape *shape,
                 const char *matmul) {
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    struct cpu_product *tried[IMPLEMENTATIONS_MAX];
    struct operands operands;
    size_t scratch = 0;
    int count = library_implementations(names, products->library, shape);
    for (int i = 0; i < count; i++) {
        tried[i] = library_prepare(products->library, shape, names[i]);
        if (tried[i] && library_scratch_bytes(tried[i]) > scratch)
            scratch = library_scratch_bytes(tried[i]);
    }
    size_t bytes = (size_t)round_up((int64_t)lay_out(&operands, shape, scratch, NULL), PAGE_BYTES);
    void *memory = count > 1 ? aligned_alloc(PAGE_BYTES, bytes) : NULL;
    if (memory) {
        memset(memory, 0x3c, bytes);
        lay_out(&operands, shape, scratch, memory);
        int best = fastest(products->library, tried, count, &operands);
        algorithms_add(products->algorithms, matmul, names[best], true);
        algorithms_trial_ended(products->algorithms);
    }
    free(memory);
    for (int i = 0; i < count; i++) library_discard(tried[i]);
}

/* Returns the implementation with the most scratch memory. */
static struct cpu_product *largest(struct product_library *library,
                                   const struct product_shape *shape) {
    char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX];
    struct cpu_product *most = NULL;
    int count = library_implementations(names, library, shape);
    for (int i = 0; i < count; i++) {
        struct cpu_product *next = library_prepare(library, shape, names[i]);
        bool larger = next && (!most || library_scratch_bytes(next) > library_scratch_bytes(most));
        library_discard(larger ? most : next);
        if (larger) most = next;
    }
    return most;
}

/* ---- preparing */

static void print_shape(char text[ALGORITHM_LINE_MAX], const struct product_shape *s) {
    snprintf(text, ALGORITHM_LINE_MAX,
             "in=%s out=%s bias=%s m=%" PRId64 " n=%" PRId64 " k=%" PRId64
             " transpose=%d%d accumulate=%d",
             dtype_name((enum dtype)s->in), dtype_name((enum dtype)s->out),
             s->bias < 0 ? "none" : dtype_name((enum dtype)s->bias), s->m, s->n, s->k,
             s->transpose_a, s->transpose_b, s->accumulate);
}

/* Reports the implementation that the last library_prepare could not create, if there is one. */
static void note_failed(struct cpu_products *products) {
    const char *failed = library_failed(products->library);
    if (!failed) return;
    snprintf(products->fallback, sizeof products->fallback,
             "oneDNN cannot create its implementation %s, as when the system refuses memory for "
             "generated code; these matmuls use another, so results differ in the last bits",
             failed);
}

static struct cpu_product *prepare(struct cpu_products *products, const struct product_shape *shape,
                                   bool planning, bool only_size) {
    char matmul[ALGORITHM_LINE_MAX];
    const char *name = NULL;
    /* Without instructions for bf16 the library emulates it with AVX-512, at a third of the speed
     * of fp32; with slow ones, at half of it. */
    if (shape->in == DTYPE_BF16 && !library_has_fast_bf16(products->library)) return NULL;
    if (products->algorithms) {
        print_shape(matmul, shape);
        name = algorithms_find(products->algorithms, matmul, planning);
        if (!name && only_size) return largest(products->library, shape);
        if (!name && planning && algorithms_have_time(products->algorithms)) {
            tune(products, shape, matmul);
            name = algorithms_find(products->algorithms, matmul, planning);
        }
    }
    struct cpu_product *product = library_prepare(products->library, shape, name);
    note_failed(products);
    if (product || !name) return product;
    product = library_prepare(products->library, shape, NULL);
    note_failed(products);
    return product;
}

const char *cpu_products_fallback(const struct cpu_products *products, int index) {
    return index == 0 && products->fallback[0] ? products->fallback : NULL;
}

struct cpu_product *cpu_products_find(struct backend *be, struct product_shape shape,
                                      bool planning) {
    struct cpu_products *products = be->state;
    const bool only_size = planning && be->only_sizes && products->algorithms;
    ptrdiff_t at = hmgeti(products->prepared, shape);
    if (at >= 0 && (only_size || !products->prepared[at].only_size))
        return products->prepared[at].value;
    if (at >= 0) library_discard(products->prepared[at].value);
    struct product_entry entry = {shape, prepare(products, &shape, planning, only_size), only_size};
    hmputs(products->prepared, entry);
    return entry.value;
}

bool cpu_products_run(struct cpu_products *products, const struct cpu_product *product, void *out,
                      const void *a, const void *b, const void *bias, void *scratch) {
    return library_run(products->library, product, out, a, b, bias, scratch);
}

/* ---- opening and closing */

static int open_algorithms(struct backend *be, const struct cpu_level *level,
                           const struct backend_options *options, struct error *error) {
    const struct backend_description *device = &be->device;
    char title[ALGORITHM_LINE_MAX];
    snprintf(title, sizeof title, "mantissa implementations, format 1, %s, %s, %d threads, %s",
             device->library, level->full_name, device->threads, device->description);
    be->algorithms = algorithms_open(title, NULL, options, error);
    return be->algorithms ? 0 : -1;
}

int cpu_products_open(struct backend *be, const struct cpu_level *level, bool keep_to_level,
                      const struct backend_options *options, struct error *error) {
    struct backend_description *device = &be->device;
    struct cpu_products *products = calloc(1, sizeof *products);
    if (products) products->library = library_open(level, keep_to_level);
    if (!products || !products->library) {
        free(products);
        return fail(error, "oneDNN cannot be started on this processor");
    }
    library_describe(device->library, sizeof device->library);
    device->library_bytes = library_own_bytes(products->library, device->threads);
    struct product_shape probe = {64, 64, 64, DTYPE_BF16, DTYPE_BF16, -1, 0, 0, 0};
    be->state = products;
    device->native[DTYPE_BF16] = cpu_products_find(be, probe, false) != NULL;
    if (options->autotune == AUTOTUNE_ON && open_algorithms(be, level, options, error)) {
        cpu_products_close(products);
        return -1;
    }
    products->algorithms = be->algorithms;
    return 0;
}

void cpu_products_close(struct cpu_products *products) {
    for (ptrdiff_t i = 0; i < hmlen(products->prepared); i++)
        library_discard(products->prepared[i].value);
    hmfree(products->prepared);
    algorithms_close(products->algorithms);
    library_close(products->library);
    free(products);
}
