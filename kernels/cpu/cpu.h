/* Shared by the CPU's operations: prototypes and blocks.
 *
 * Every file that includes this is compiled once for each CPU level (level.h). Code that allocates,
 * or calls oneDNN or the system, is elsewhere and compiled once.
 *
 * Threads take blocks of a size fixed by the shapes, never by the thread count, and partial sums
 * are added in block order, so that the thread count changes no bits (kernels/kernels.h). */
#pragma once

#include "kernels/backend.h"

enum {
    CPU_BLOCK = 512,      /* floats of a row held on the stack at a time: 2 KiB, stays in L1 */
    CPU_ROW_BLOCK = 32,   /* rows whose partial sums one thread computes */
    CPU_FLAT_BLOCK = 8192 /* elements of a flat pass that one thread takes at a time */
};

static inline int64_t block_length(int64_t first, int64_t count, int64_t block) {
    return count - first < block ? count - first : block;
}

/* data[offset..] += values, in the dtype of data; count at most CPU_BLOCK. */
void cpu_accumulate(const struct tensor *tensor, int64_t offset, const float *values,
                    int64_t count);

/* out += sums over blocks of partials [blocks, stride], in order, of the first columns that out
 * has. */
void cpu_add_partials(const struct tensor *out, const float *partials, int64_t blocks,
                      int64_t stride);

/* Returns the amax of `count` elements, starting at element `offset`. */
struct amax cpu_amax(const struct tensor *tensor, int64_t offset, int64_t count);

/* Returns *track_amax if `found`, else the tensor's amax, merged into *track_amax (optional). */
struct amax cpu_find_amax(const struct tensor *in, struct amax *track_amax, bool found);

/* Merges `other` into *track_amax; any thread may call it. */
void cpu_merge_amax(struct amax *track_amax, struct amax other);

/* Returns the largest of `count` elements, starting at element `offset`; a NaN is no maximum. */
float cpu_row_max(const struct tensor *tensor, int64_t offset, int64_t count);

/* Adds a tensor's amax to its record. */
void cpu_note_amax(struct quantize_record *record, const struct amax *all);

/* Merges the amax of `count` elements, just stored at element `offset`, into *track_amax. Does
 * nothing if track_amax is NULL. */
void cpu_track_amax(struct amax *track_amax, const struct tensor *tensor, int64_t offset,
                    int64_t count);

#define X(name) void cpu_##name(struct backend *be, const struct name##_args *args);
#define S(name) \
    X(name)     \
    size_t cpu_##name##_scratch(struct backend *be, const struct name##_args *args);
OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S

/* out (+)= a b (+ bias) in fp32, as described by shape; bias may be NULL. */
struct product_shape;
void cpu_plain_product(const struct product_shape *shape, float *out, const float *a,
                       const float *b, const float *bias);

/* sums [N] += column sums of in [rows, N]. */
void cpu_sum_columns(const struct tensor *sums, const struct tensor *in);
