#include "kernels/cpu/autotune.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/arena.h"

enum { ROUNDS = 5, FORMAT = 1, LINE_BYTES = 512 };

static const char MAGIC[] = "mantissa implementations, format ";

/* ---- timing */

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

const char *autotune_fastest(char names[IMPLEMENTATIONS_MAX][IMPLEMENTATION_NAME_MAX],
                             struct product_library *library, const struct product_shape *shape) {
    struct cpu_product *products[IMPLEMENTATIONS_MAX];
    struct operands operands;
    int count = library_implementations(names, library, shape), best = -1;
    size_t scratch = 0;
    for (int i = 0; i < count; i++) {
        products[i] = library_prepare(library, shape, names[i]);
        if (products[i] && library_scratch_bytes(products[i]) > scratch)
            scratch = library_scratch_bytes(products[i]);
    }
    size_t bytes = (size_t)round_up((int64_t)lay_out(&operands, shape, scratch, NULL), 4096);
    void *memory = count > 1 ? aligned_alloc(4096, bytes) : NULL;
    if (memory) {
        /* 0x3c3c is 0.01 in bf16 and fp32, and 1.06 in fp16, so timings are those of ordinary
         * numbers. */
        memset(memory, 0x3c, bytes);
        lay_out(&operands, shape, scratch, memory);
        best = fastest(library, products, count, &operands);
    }
    free(memory);
    for (int i = 0; i < count; i++) library_discard(products[i]);
    return best < 0 ? NULL : names[best];
}

/* ---- the file */

static const char *bias_name(const struct product_shape *shape) {
    return shape->bias < 0 ? "none" : dtype_name((enum dtype)shape->bias);
}

void autotune_write(FILE *file, const char *machine, const struct autotune_choice *choices,
                    int count) {
    fprintf(file, "%s%d, %s\n", MAGIC, FORMAT, machine);
    for (int i = 0; i < count; i++) {
        const struct product_shape *s = &choices[i].shape;
        fprintf(file,
                "in=%s out=%s bias=%s m=%" PRId64 " n=%" PRId64 " k=%" PRId64
                " transpose=%d%d accumulate=%d %s\n",
                dtype_name((enum dtype)s->in), dtype_name((enum dtype)s->out), bias_name(s), s->m,
                s->n, s->k, s->transpose_a, s->transpose_b, s->accumulate,
                choices[i].implementation);
    }
}

static bool read_choice(const char *line, struct autotune_choice *choice) {
    char in[8], out[8], bias[8];
    struct product_shape *s = &choice->shape;
    int end = -1;
    memset(choice, 0, sizeof *choice);
    int fields = sscanf(line,
                        "in=%7s out=%7s bias=%7s m=%" SCNd64 " n=%" SCNd64 " k=%" SCNd64
                        " transpose=%1d%1d accumulate=%1d %39s%n",
                        in, out, bias, &s->m, &s->n, &s->k, &s->transpose_a, &s->transpose_b,
                        &s->accumulate, choice->implementation, &end);
    if (fields != 10 || end < 0 || strcmp(line + end, "\n") != 0) return false;
    s->in = dtype_named(in);
    s->out = dtype_named(out);
    s->bias = dtype_named(bias); /* -1 for "none" too */
    return s->in >= 0 && s->out >= 0 && (s->bias >= 0 || strcmp(bias, "none") == 0);
}

int autotune_read(struct autotune_choice **choices, const char *machine, FILE *file) {
    char line[LINE_BYTES], header[LINE_BYTES];
    struct autotune_choice choice;
    if (!fgets(line, sizeof line, file) || strncmp(line, MAGIC, strlen(MAGIC))) return 1;
    snprintf(header, sizeof header, "%s%d, %s\n", MAGIC, FORMAT, machine);
    if (strcmp(line, header)) return 0;
    for (int number = 2; fgets(line, sizeof line, file); number++) {
        if (!read_choice(line, &choice)) return number;
        arrput(*choices, choice);
    }
    return 0;
}
