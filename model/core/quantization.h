/* fp8: quantizes the operands of linear layers to 8 bits before each matmul.
 *
 * A linear layer of a block has the same bf16 operands as in bf16, and quantizes them (the
 * operation quantize in kernels/kernels.h). Three matmuls read them:
 *
 *     forward         out = in W          in by row, W by output
 *     input gradient  din = dout W'       dout by row, W by input
 *     weight gradient dW  = in' dout      in by input column, dout by output column
 *
 * "by" is the granularity of scales in the recipe "row": each matmul has scales along the dimension
 * that it does not reduce over. The other recipes have one scale per tensor: from its own amax
 * ("tensor"), or from the largest amax of previous steps ("delayed"; the tensor's own until there
 * is one). Norms and the MLP's activation function track the amax of the tensors that they write,
 * in both passes. The amax of weights and of tensors written by attention is computed when they are
 * first quantized in a pass. Bias gradients are sums of unquantized values. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "data/util/error.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "model/architecture/autocast_sites.h"
#include "model/architecture/parameters.h"
#include "model/config/config.h"

struct precision;

enum quantized { QUANTIZED_INPUT, QUANTIZED_WEIGHT, QUANTIZED_GRADIENT, QUANTIZED_KINDS };

/* Operand of a matmul: 8 bits with scales, or unquantized without scales. */
struct operand {
    struct tensor values;
    const float *scales;
    struct tensor transposed; /* rank 0, or the operand of a matmul that reduces over rows */
};

/* Dimension of the stored operand that a matmul reduces over; OVER_BOTH: two matmuls, one over
 * each. */
enum quantized_over { OVER_COLUMNS, OVER_ROWS, OVER_BOTH };

struct quantization {
    struct backend *be; /* NULL: nothing is quantized */
    enum config_recipe recipe;
    bool power_of_two, fast_accumulation;
    float margin;                      /* 2^fp8.margin */
    int64_t history_length;            /* 0: no history */
    enum dtype dtype[QUANTIZED_KINDS]; /* DTYPE_E4M3 or DTYPE_E5M2 */
    int64_t layers;
    bool fp8_site[AUTOCAST_SITE_COUNT];
    bool gated;        /* the MLP is gated */
    bool tensor_cores; /* the device multiplies 8-bit operands, reducing over columns only */

    bool keeps[LINEAR_COUNT]; /* inputs saved in 8 bits for the backward pass */
    struct operand *kept;     /* [layers, LINEAR_COUNT] saved inputs: [N, inputs] or transposed */
    void *values[QUANTIZED_KINDS];   /* the current operand of each kind */
    void *transposed;                /* transpose of a gradient, if both layouts are used */
    float *scales[QUANTIZED_KINDS];  /* scales of the current operand of each kind */
    struct amax *tracked;            /* [count] amax of this pass; NULL in the recipe "row" */
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
    enum quantized_over over; /* not OVER_BOTH in the recipe "row" */
    bool repeated;            /* the tensor was quantized before: no record is made */
};

/* Reads the recipe. Nothing is quantized unless precision->fp8. keeps: linear layers whose
 * quantized input is saved for the backward pass. */
int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], struct error *error);
void quantization_close(struct quantization *quantization);

/* Lays out the memory for a batch of this shape; called once to measure and once to assign
 * addresses. */
void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct gpt_shape *shape);

/* Clears the records and the amax history. */
void quantization_clear(const struct quantization *quantization);

/* Quantizes an operand into a buffer that the next operand of its kind reuses. For tensor cores, an
 * operand that a matmul reduces over rows is also transposed. */
struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand);

/* Return the quantized input of a linear layer for the matmul of the forward pass, and for that of
 * the weight gradient. An input that is saved is quantized for both in the forward pass. */
struct operand quantization_input(const struct quantization *quantization, enum autocast_site site,
                                  int64_t layer, const struct tensor *in, bool repeated);
struct operand quantization_input_backward(const struct quantization *quantization,
                                           enum autocast_site site, int64_t layer,
                                           const struct tensor *in);

/* True if the input of this layer is saved in 8 bits, so that the activation itself need not be
 * saved. */
bool quantization_keeps(const struct quantization *quantization, enum autocast_site site);

/* Returns the amax for the operation that writes an operand's tensor to track, or NULL. */
struct amax *quantization_amax(const struct quantization *quantization, enum quantized kind,
                               enum autocast_site site, int64_t layer);

/* Operand for a matmul that reduces over rows. */
static inline const struct tensor *operand_over_rows(const struct operand *operand) {
    return operand->transposed.rank ? &operand->transposed : &operand->values;
}
static inline bool operand_is_transposed(const struct operand *operand) {
    return operand->transposed.rank > 0;
}

/* True for per-row scaling: a scale for each row of A and each column of B. */
static inline bool quantization_by_vector(const struct quantization *quantization) {
    return quantization->recipe == CONFIG_RECIPE_ROW;
}

/* Returns the number of records of all ranks. */
int64_t quantization_records(const struct quantization *quantization);

/* Return the number of tensors with records, and the index of a tensor's record. */
int64_t quantization_count(const struct quantization *quantization);
int64_t quantization_place(const struct quantization *quantization, enum quantized kind,
                           enum autocast_site site, int64_t layer);

/* Clears the tracked amax; called before each forward pass. */
void quantization_begin_pass(const struct quantization *quantization);

/* Clear the records before the first micro-batch of a step; after the last one, merge the records
 * of all ranks into the state and the history. */
void quantization_begin_step(const struct quantization *quantization);
void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           int64_t step);
