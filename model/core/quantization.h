/* Quantizes the operands of linear layers to 8 or 4 bits before each matmul.
 *
 * A linear layer of a block has the same bf16 operands as in bf16, and quantizes them (the
 * operations quantize and fake_quantize in kernels/kernels.h). The recipe (struct recipe) has a
 * format for each operand of each matmul. Each tensor is an operand of two matmuls of a step:
 *
 *     input       forward, then weight gradient
 *     weight      forward, then input gradient
 *     gradient    weight gradient, then input gradient
 *
 * The state is a table with a slot for each (kind, linear layer, block): the memory that each of
 * the two matmuls reads, and which of it is quantized already. Most tensors are quantized for each
 * matmul into a buffer that the next tensor of the kind reuses. Inputs can be saved quantized for
 * the backward pass instead, and weights be kept for a whole step.
 *
 * With scales per row, a scale belongs to the elements that one result of the matmul sums over, so
 * a tensor has other scales in each of its matmuls and is quantized twice. Other fp8 recipes have
 * one scale per tensor: from its own amax ("tensor"), or from the largest amax of previous steps
 * ("delayed"; the tensor's own until there is one). Blocks have a scale each; their matmuls read
 * codes and scales on devices that multiply them, else the values in bf16, which represents them
 * exactly. In nvfp4 gradients are rounded stochastically, and operands of weight gradients pass a
 * Hadamard transform first.
 *
 * The operations that write a linear layer's input or its output's gradient track their amax
 * (LINEAR_LAYERS in architecture.h says which). The amax of weights, and of tensors that another
 * operation also writes, is computed when they are first quantized in a pass. Bias gradients are
 * sums of unquantized values. */
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

/* Addresses of an operand's codes or values, of its scales, and of the scales of its blocks. */
struct operand_memory {
    void *values, *scales, *block_scales;
};

/* A tensor of one kind, linear layer and block. Index 0 is for the first matmul of a step that
 * reads it, 1 for the second. The flags are those of the current pass. */
struct quantized_slot {
    struct operand_memory memory[2];
    bool done[2];  /* the memory holds the quantized tensor until its last use */
    bool recorded; /* the tensor was quantized in this pass, so its record is complete */
    bool measured; /* its tracked amax is that of the tensor as it is, not transformed */
};

struct quantization {
    struct backend *be; /* NULL: nothing is quantized */
    struct precision precision;
    uint64_t seed;            /* seeds stochastic rounding and the signs of Hadamard transforms */
    bool fast_accumulation;   /* in the forward pass */
    float margin;             /* 2^fp8.margin */
    int64_t history_length;   /* 0: no history */
    struct model_shape shape; /* without a batch */
    bool prepared;            /* shape_prepares_heads: attention does not write the last of dqkv */
    bool tensor_cores;        /* the device multiplies 8-bit operands, reducing over columns only */
    bool multiplies_blocks;   /* the device multiplies codes in blocks */

    bool attends_to_cache;    /* attention_decode writes the last of this pass's attention_out */
    bool keeps[LINEAR_COUNT]; /* inputs saved in 8 or 4 bits for the backward pass */
    bool keeps_weights;       /* quantized weights are kept for all micro-batches of a step */
    struct quantized_slot *slots;                  /* [layers, LINEAR_COUNT, LINEAR_OPERANDS] */
    struct operand_memory shared[LINEAR_OPERANDS]; /* buffers that slots without their own share */
    void *transform_values;   /* the current Hadamard transform, in bf16; NULL: in place */
    struct amax *tracked;     /* [count] amax of this pass; NULL unless tensors have a scale */
    struct amax *transformed; /* amax of the current Hadamard transform; with `tracked` only */
    struct quantize_record *records; /* [ranks, padded count], of this step */
    float *amax;    /* [count] largest amax of previous steps; with a history only */
    float *history; /* [history_length, count] */
};

/* Nothing is quantized unless precision->quantizes. keeps: linear layers whose quantized input is
 * saved for the backward pass; keeps_weights: quantized weights are kept for all micro-batches of a
 * step.
 */
int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], bool keeps_weights, struct error *error);
void quantization_close(struct quantization *quantization);

/* Lays out the memory for a batch of this shape; called once to measure and once to assign
 * addresses. */
void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct model_shape *shape);

/* Clears the records and the amax history. */
void quantization_clear(const struct quantization *quantization);

/* A tensor to be quantized, and the matmul that reads it. */
struct quantized_operand {
    enum linear_operand kind;
    enum autocast_site site;
    int64_t layer;
    enum linear_matmul matmul;
    const struct tensor *in;
    const struct step_inputs *inputs; /* read by stochastic rounding */
};

/* An operand as its matmul reads it. */
struct operand {
    struct tensor values;        /* [rows, columns] of the tensor; [columns, rows] if transposed */
    struct tensor scales;        /* rank 0: none */
    struct matmul_blocks blocks; /* with codes only; else scales.rank is 0 */
    bool transposed;             /* the tensor's rows are columns, over which tensor cores reduce */
};

/* Returns the operand, quantized now unless its memory holds it. An input that is saved is
 * quantized for both matmuls when the forward pass reads it. */
struct operand quantization_operand(struct quantization *quantization,
                                    const struct quantized_operand *operand);

/* Returns the amax for the operation that writes an operand's tensor to track, or NULL. */
struct amax *quantization_amax(const struct quantization *quantization, enum linear_operand kind,
                               enum autocast_site site, int64_t layer);

/* True if the input of this layer is saved in 8 or 4 bits, so that the activation itself need not
 * be saved. */
bool quantization_keeps(const struct quantization *quantization, enum autocast_site site);

/* True if one quantization of such a tensor serves both of its matmuls. linear: see linear_index.
 */
bool quantization_serves_both(const struct quantization *quantization, enum linear_operand kind,
                              int linear);

/* Begins a forward pass: all tensors are new, but in a further micro-batch of a step for weights
 * that are kept. attends_to_cache: attention_decode writes rows of attention_out. */
void quantization_begin_pass(struct quantization *quantization, bool further_micro_batch,
                             bool attends_to_cache);

/* Clears the records before the first micro-batch of a step. */
void quantization_begin_step(const struct quantization *quantization);

/* Merges the records of all ranks into the state and the history, after the last micro-batch. */
void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           const struct step_inputs *inputs);

/* Returns the number of slots, which is that of the records of a rank without padding. */
int64_t quantization_count(const struct quantization *quantization);
