/* make bench-passes: the operations of Llama's family that are one pass over memory, on the CPU,
 * each beside a copy of as many bytes in the same run.
 *
 *   build/fast/bench_passes [--rows 8192] [--rounds 9]
 *
 * SmolLM2 135M's shape; medians. GB/s of all bytes that must be read or written once. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/statistics.h"
#include "kernels/backend_open.h"

enum { ROUNDS_MAX = 99, WIDTH = 576, HIDDEN = 1536, HEADS = 9, KV_HEADS = 3, SIZE = 64, T = 256 };
enum { QK = (HEADS + KV_HEADS) * SIZE, QKV = QK + KV_HEADS * SIZE };

struct bench {
    struct backend be;
    int64_t rows;
    char *memory; /* [bytes] that all tensors lie in, one after the other */
    size_t bytes, used;
    enum dtype lower;
};

static void die(const char *error) {
    fprintf(stderr, "bench_passes: %s\n", error);
    exit(1);
}

static struct tensor take(struct bench *b, enum dtype dtype, int64_t rows, int64_t columns) {
    struct tensor tensor = {b->memory + b->used, dtype, columns ? 2 : 1, {rows, columns}};
    b->used += (tensor_bytes(&tensor) + 255) / 256 * 256;
    if (b->used > b->bytes) die("the tensors are larger than what was planned for them");
    return tensor;
}

static struct tensor lower_rows(struct bench *b, int64_t columns) {
    return take(b, b->lower, b->rows, columns);
}

/* Each returns the bytes it moves. */
static size_t rmsnorm_forward(struct bench *b) {
    struct tensor in = lower_rows(b, WIDTH), out = lower_rows(b, WIDTH);
    struct tensor sum = take(b, DTYPE_F32, b->rows, WIDTH), weight = take(b, DTYPE_F32, WIDTH, 0);
    struct tensor rstd = take(b, DTYPE_F32, b->rows, 0);
    OP(&b->be, layernorm_forward, .out = &out, .sum = &sum, .rstd = rstd.data, .in = &in,
       .residual = &sum, .weight = &weight, .epsilon = 1e-5f);
    return tensor_bytes(&in) + tensor_bytes(&out) + 2 * tensor_bytes(&sum);
}

static size_t rmsnorm_backward(struct bench *b) {
    struct tensor dout = lower_rows(b, WIDTH), lower = lower_rows(b, WIDTH);
    struct tensor din = take(b, DTYPE_F32, b->rows, WIDTH), in = take(b, DTYPE_F32, b->rows, WIDTH);
    struct tensor weight = take(b, DTYPE_F32, WIDTH, 0), dweight = take(b, DTYPE_F32, WIDTH, 0);
    struct tensor rstd = take(b, DTYPE_F32, b->rows, 0);
    bool has_lower = b->lower != DTYPE_F32;
    OP(&b->be, layernorm_backward, .din = &din, .din_lower = has_lower ? &lower : NULL,
       .dweight = &dweight, .dout = &dout, .in = &in, .rstd = rstd.data, .weight = &weight,
       .dresidual = &din);
    return tensor_bytes(&dout) + (has_lower ? tensor_bytes(&lower) : 0) + 3 * tensor_bytes(&in);
}

static size_t rope(struct bench *b) {
    struct tensor qkv = lower_rows(b, QKV), angles = take(b, DTYPE_F32, T, SIZE);
    OP(&b->be, rope, .inout = &qkv, .angles = &angles, .sequence_length = T,
       .heads = HEADS + KV_HEADS);
    return 2 * tensor_bytes(&qkv) / QKV * QK;
}

static size_t qk_norm_forward(struct bench *b) {
    struct tensor qkv = lower_rows(b, QKV), raw = lower_rows(b, QK);
    struct tensor angles = take(b, DTYPE_F32, T, SIZE), weight = take(b, DTYPE_F32, SIZE, 0);
    OP(&b->be, qk_norm_forward, .inout = &qkv, .raw = &raw, .q_weight = &weight,
       .k_weight = &weight, .angles = &angles, .sequence_length = T, .heads = HEADS,
       .kv_heads = KV_HEADS, .epsilon = 1e-6f);
    return 3 * tensor_bytes(&raw);
}

static size_t qk_norm_backward(struct bench *b) {
    struct tensor dqkv = lower_rows(b, QKV), raw = lower_rows(b, QK);
    struct tensor angles = take(b, DTYPE_F32, T, SIZE), weight = take(b, DTYPE_F32, SIZE, 0);
    struct tensor dq = take(b, DTYPE_F32, SIZE, 0), dk = take(b, DTYPE_F32, SIZE, 0);
    OP(&b->be, qk_norm_backward, .dinout = &dqkv, .dq_weight = &dq, .dk_weight = &dk, .raw = &raw,
       .q_weight = &weight, .k_weight = &weight, .angles = &angles, .sequence_length = T,
       .heads = HEADS, .kv_heads = KV_HEADS, .epsilon = 1e-6f);
    return 3 * tensor_bytes(&raw);
}

static size_t gated_forward(struct bench *b) {
    struct tensor gate_up = lower_rows(b, 2 * HIDDEN), out = lower_rows(b, HIDDEN);
    OP(&b->be, gated_forward, .out = &out, .gate_up = &gate_up);
    return tensor_bytes(&gate_up) + tensor_bytes(&out);
}

static size_t gated_backward(struct bench *b) {
    struct tensor gate_up = lower_rows(b, 2 * HIDDEN), dgate_up = lower_rows(b, 2 * HIDDEN);
    struct tensor dout = lower_rows(b, HIDDEN);
    OP(&b->be, gated_backward, .dgate_up = &dgate_up, .dout = &dout, .gate_up = &gate_up);
    return tensor_bytes(&gate_up) + tensor_bytes(&dgate_up) + tensor_bytes(&dout);
}

static const struct pass {
    const char *name;
    size_t (*run)(struct bench *b);
} passes[] = {
    {"RMS norm with residual", rmsnorm_forward},
    {"its gradient", rmsnorm_backward},
    {"rope", rope},
    {"norm of heads with rope", qk_norm_forward},
    {"its gradient", qk_norm_backward},
    {"gated SiLU", gated_forward},
    {"its gradient", gated_backward},
};
enum { PASSES = sizeof passes / sizeof *passes };

/* Half of the bytes read, half written, by the threads that run the operations. */
static double copy_s(struct bench *b, size_t bytes) {
    size_t half = bytes / 2, share = half / (size_t)b->be.device.threads;
    double begin = omp_get_wtime();
#pragma omp parallel num_threads(b->be.device.threads)
    {
        size_t at = (size_t)omp_get_thread_num() * share;
        memcpy(b->memory + at, b->memory + half + at, share);
    }
    return omp_get_wtime() - begin;
}

static void measure(struct bench *b, const struct pass *pass, int rounds) {
    double times[ROUNDS_MAX], copies[ROUNDS_MAX];
    size_t bytes = 0;
    for (int round = -1; round < rounds; round++) {
        int at = round < 0 ? 0 : round;
        b->used = 0;
        double begin = omp_get_wtime();
        bytes = pass->run(b);
        times[at] = omp_get_wtime() - begin;
        copies[at] = copy_s(b, bytes);
        memset(b->memory, 0, b->bytes); /* numbers stay small */
    }
    double s = median_of(times, rounds), copy = median_of(copies, rounds);
    printf("%-4s %-24s %8.2f %8.1f %8.1f %9.2f\n", dtype_name(b->lower), pass->name, 1e3 * s,
           1e-9 * (double)bytes / s, 1e-9 * (double)bytes / copy, copy / s);
}

/* Reserves what the operations want of scratch. */
static void plan(struct bench *b) {
    struct error error = {0};
    backend_plan_begin(&b->be);
    for (b->lower = DTYPE_F32; b->lower <= DTYPE_BF16; b->lower++)
        for (int i = 0; i < PASSES; i++, b->used = 0) passes[i].run(b);
    if (backend_plan_end(&b->be, &error)) die(error.text);
}

static int64_t number_of(const char *text) {
    char *end;
    long long value = text ? strtoll(text, &end, 10) : 0;
    if (value < 1 || *end) die("usage: bench_passes [--rows N] [--rounds N]");
    return value;
}

int main(int argc, char **argv) {
    struct bench b = {.rows = 8192};
    int64_t rounds = 9;
    for (int i = 1; i < argc; i += 2) {
        int64_t value = number_of(argv[i + 1]);
        if (strcmp(argv[i], "--rows") == 0) b.rows = value;
        else if (strcmp(argv[i], "--rounds") == 0 && value <= ROUNDS_MAX) rounds = value;
        else die("usage: bench_passes [--rows N] [--rounds N]");
    }
    struct error error = {0};
    if (backend_open(&b.be, &(const struct backend_options){DEVICE_CPU, .threads = 0}, &error))
        die(error.text);
    b.bytes = (size_t)b.rows * (5 * HIDDEN + 64) * sizeof(float) + (1 << 20);
    b.memory = backend_allocate(&b.be, b.bytes);
    if (!b.memory) die("out of memory");
    OP(&b.be, clear, .data = b.memory, .bytes = b.bytes); /* by the threads that will use it */
    plan(&b);
    printf("%lld rows on %s, %d threads, medians of %d\n", (long long)b.rows,
           b.be.device.description, b.be.device.threads, (int)rounds);
    printf("%-29s %8s %8s %8s %9s\n", "", "ms", "GB/s", "copy", "of a copy");
    for (b.lower = DTYPE_F32; b.lower <= DTYPE_BF16; b.lower++)
        for (int i = 0; i < PASSES; i++) measure(&b, &passes[i], (int)rounds);
    return 0;
}
