/* What the CPU kernels share: their plan functions, blocks, and the products of oneDNN.
 *
 * Threads take blocks of a size fixed by the shapes, never by the thread count, and partial sums
 * are added in block order: the same bits for any number of threads. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/backend.h"

enum {
    CPU_BLOCK = 512,      /* floats of a row held on the stack at a time: 2 KiB, stays in L1 */
    CPU_ROW_BLOCK = 32,   /* rows whose partial sums one thread makes */
    CPU_FLAT_BLOCK = 8192 /* elements of a flat pass that one thread takes at a time */
};

static inline int64_t blocks_of(int64_t count, int64_t block) {
    return (count + block - 1) / block;
}

static inline int64_t block_length(int64_t first, int64_t count, int64_t block) {
    return count - first < block ? count - first : block;
}

/* data[offset..] += values, in the dtype of data; count at most CPU_BLOCK. */
void cpu_accumulate(const struct tensor *tensor, int64_t offset, const float *values,
                    int64_t count);

void cpu_embedding_backward_plan(struct backend *be, const struct embedding_backward_args *args);
void cpu_layernorm_backward_plan(struct backend *be, const struct layernorm_backward_args *args);
void cpu_matmul_plan(struct backend *be, const struct matmul_args *args);
void cpu_attention_forward_plan(struct backend *be, const struct attention_forward_args *args);
void cpu_attention_decode_plan(struct backend *be, const struct attention_decode_args *args);
void cpu_attention_backward_plan(struct backend *be, const struct attention_backward_args *args);
void cpu_gradient_norm_plan(struct backend *be, const struct gradient_norm_args *args);

/* += column sums of b over its rows (bias gradient); b [rows, N], dbias [N]. */
void cpu_column_sums(const struct tensor *dbias, const struct tensor *b);

/* The table of prepared products, one per distinct shape and dtypes. */
struct cpu_products;
struct cpu_products *cpu_products_open(char *error);
void cpu_products_close(struct cpu_products *products);
void cpu_products_describe(char *text, size_t size); /* the library behind them */
bool cpu_products_native_bf16(const struct cpu_products *products);

int cpu_backend_open(struct backend *be, int threads, char *error);

#endif
