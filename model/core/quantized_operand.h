/* Operands of linear layers' matmuls while they are quantized: the state, and its parts by kind,
 * site and layer. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parameters.h"
#include "model/config/config.h"
#include "model/core/precision.h"

/* Returns the tensor, or NULL if its rank is 0, as for a bias that the model lacks. */
static inline const struct tensor *optional_tensor(const struct tensor *tensor) {
    return tensor->rank ? tensor : NULL;
}

struct scaled_tensor {
    struct tensor values;
    struct tensor scales; /* rank 0 if values are not quantized */
};

/* Operand of a matmul. */
struct operand {
    struct scaled_tensor stored;
    struct matmul_blocks blocks;     /* blocks of stored codes; else scales.rank is 0 */
    struct scaled_tensor transposed; /* rank 0, or the operand of a matmul that reduces over rows;
                                        stored may then have rank 0 */
};

/* Addresses of an operand's codes or values, of its scales, and of the scales of its blocks. */
struct operand_memory {
    void *values, *scales, *block_scales;
};

struct quantization {
    struct backend *be; /* NULL: nothing is quantized */
    struct precision precision;
    uint64_t seed;          /* seeds stochastic rounding and the signs of Hadamard transforms */
    bool fast_accumulation; /* in the forward pass */
    enum matmul_sums sums;
    float margin;           /* 2^fp8.margin */
    int64_t history_length; /* 0: no history */
    int64_t layers;
    bool weights_out_in;    /* as in struct gpt_shape */
    bool gated;             /* the MLP is gated */
    bool tensor_cores;      /* the device multiplies 8-bit operands, reducing over columns only */
    bool multiplies_blocks; /* the device multiplies codes in blocks */

    bool keeps[LINEAR_COUNT];   /* inputs saved in 8 or 4 bits for the backward pass */
    struct scaled_tensor *kept; /* [layers, LINEAR_COUNT] saved inputs, or their transposes */
    float *kept_scales; /* [layers, LINEAR_COUNT] scales of their tensors, in formats with them */
    struct operand_memory *weights; /* [layers, LINEAR_COUNT, 2] kept weights as their matmuls read
                                       them; NULL unless weights.keep_quantized */
    bool weights_rounded; /* a further micro-batch of a step: kept weights are those of the first */
    void *values[QUANTIZED_KINDS];       /* the current operand of each kind */
    void *block_scales[QUANTIZED_KINDS]; /* scales of its blocks; if codes are multiplied */
    void *transform_values;        /* the current Hadamard transform, in bf16; NULL: in place */
    void *transposed;              /* transpose of a gradient, if both layouts are used */
    void *scales[QUANTIZED_KINDS]; /* scales of the current operand of each kind */
    struct amax *tracked;          /* [count] amax of this pass; NULL unless tensors have a scale */
    struct amax *transformed;      /* amax of the current Hadamard transform; with `tracked` only */
    struct quantize_record *records; /* [ranks, padded count], of this step */
    float *amax;    /* [count] largest amax of previous steps; with a history only */
    float *history; /* [history_length, count] */
};

/* Request to quantize: the tensor, its layer, and the matmul that reads it. */
struct quantized_operand {
    enum quantized kind;
    enum autocast_site site;
    int64_t layer;
    const struct tensor *in;
    enum linear_matmul matmul;
    const struct step_inputs *inputs; /* read by stochastic rounding */
    bool repeated; /* the tensor was quantized before, unless the forward pass does not */
};

/* Matmuls that read an operand of each kind, in the order of a step. */
extern const enum linear_matmul quantization_readers[QUANTIZED_KINDS][2];

/* Returns the format in which an operand is quantized as stored. */
struct quantize_format quantization_format_of(const struct quantization *q, enum quantized kind,
                                              enum linear_matmul matmul);

/* Returns the operand's record for this step, or NULL. */
struct quantize_record *quantization_record_of(const struct quantization *q,
                                               const struct quantized_operand *operand);

/* Returns the operand's tracked amax, or NULL. */
struct amax *quantization_tracked_amax(const struct quantization *q,
                                       const struct quantized_operand *operand);

/* True if *quantization_tracked_amax holds the amax, from the operation that wrote the tensor or
 * from an earlier rounding of it. A tensor that is transformed first has another amax then. */
bool quantization_amax_is_found(const struct quantization *q,
                                const struct quantized_operand *operand);

/* Returns where an operand is rounded to: memory that the next operand of its kind reuses, or that
 * of a kept weight. */
struct operand_memory quantization_memory_of(const struct quantization *q,
                                             const struct quantized_operand *operand);

/* True if both matmuls of a kept weight read the same memory: with equal formats, unless tensor
 * cores read another layout. */
bool quantization_shares_weights(const struct quantization *q);

/* True if the memory of a kept weight holds it: from the first micro-batch of this step, or from
 * the same matmul or its other one in this micro-batch. */
bool quantization_is_rounded(const struct quantization *q, const struct quantized_operand *operand);

/* True if the two matmuls that read an operand of this kind read the same values and scales. */
bool quantization_serves_both(const struct quantization *q, enum quantized kind);

static inline int64_t quantization_kept_index(enum autocast_site site, int64_t layer) {
    return layer * LINEAR_COUNT + linear_index(site);
}
static inline const struct scaled_tensor *
quantization_kept_input(const struct quantization *q, enum autocast_site site, int64_t layer) {
    return &q->kept[quantization_kept_index(site, layer)];
}

/* True if the matmul reduces over the rows of the operand as stored. */
bool quantization_is_over_rows(const struct quantization *q, enum quantized kind,
                               enum linear_matmul matmul);

/* True if operands of the kind have a scale of the tensor in both of their matmuls, so that its
 * amax can be tracked. */
bool quantization_has_tensor_scale(const struct quantization *q, enum quantized kind);

int64_t quantization_ranks_of(const struct quantization *quantization);

/* Number of records of a rank, padded to the alignment of collectives. */
int64_t quantization_records_each(const struct quantization *quantization);

struct quantize_record *quantization_own_records(const struct quantization *quantization);

/* True if the operation that writes the tensor tracks its amax. A GELU and its gradient are part of
 * a matmul, which does so if its operands have 8 bits. */
bool quantization_writer_tracks_amax(const struct quantization *q, enum quantized kind,
                                     enum autocast_site site);

/* True if the input of this layer is saved in 8 or 4 bits, so that the activation itself need not
 * be saved. */
bool quantization_keeps(const struct quantization *quantization, enum autocast_site site);

/* Returns the number of records of all ranks. */
int64_t quantization_records(const struct quantization *quantization);

/* Return the number of tensors with records, and the index of a tensor's record. */
int64_t quantization_count(const struct quantization *quantization);
int64_t quantization_place(const struct quantization *quantization, enum quantized kind,
                           enum autocast_site site, int64_t layer);
