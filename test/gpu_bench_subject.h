/* Subject of a measurement: an operation with its operands.
 *
 * It is called many times in a row between two marks on the device, so that launch and host time
 * do not count. */
#pragma once

#include "test/gpu_bench.h"
#include "test/gpu_clock.h"

enum { BLOCKS_MAX = 32 };

/* Bodies run once while the backend plans, before they are measured. */
struct subject {
    struct bench *bench;
    struct backend *be;
    void (*body)(const struct subject *s);
    struct tensor t[MATMUL_TENSORS];
    int tensor_count; /* of those that take_tensor made */
    int32_t *tokens;
    struct step_state *state;
    struct step_inputs *inputs;
    float *a, *b;
    void *scratch;
    int64_t heads, kv_heads;
    void *blocks[BLOCKS_MAX];
    int block_count;
};

/* Device memory, which measure() releases; NULL after a failure. */
void *take(struct subject *s, size_t bytes);

/* Tensor i of the subject: rows x columns, or a vector if columns is 0; scale 0: zeros. */
void make(struct subject *s, int i, enum dtype dtype, int64_t rows, int64_t columns, double scale);
float *make_vector(struct subject *s, int64_t count);              /* zeros */
void make_tokens(struct subject *s, int64_t count, int64_t limit); /* below limit */
/* Fills tokens with struct decode_keys: the last row of each sequence. */
void make_decode_keys(struct subject *s, int64_t sequences, int64_t length);
void make_state(struct subject *s); /* with inputs */

/* Returns the seconds of one call, the median of some rounds; 0 after a failure. Releases the
 * operands. */
double measure(struct subject *s, const char *what);
