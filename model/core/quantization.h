/* fp8: the operands of linear layers, rounded to 8 bits on their way into the product.
 *
 * A linear layer of a block takes the bf16 operands that it would take in bf16, and rounds them
 * once more (the operation quantize in kernels/kernels.h). Three products read them:
 *
 *     forward         out = in W          in by row, W by output
 *     input gradient  din = dout W'       dout by row, W by input
 *     weight gradient dW  = in' dout      in by input column, dout by output column
 *
 * "by": in the recipe "row", where each product has scales along what it does not sum over. In the
 * others there is one scale for a tensor: of its own largest magnitude ("tensor"), or of the
 * largest in the steps before ("delayed"), which is the tensor's own as long as there is none. That
 * is found where the tensor is written, by norms and by the MLP's non-linear function in both
 * directions; of what attention writes, and of weights, when it is rounded for the first time in a
 * pass. Bias gradients are sums of what was not rounded. */
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

/* An operand of matmul: 8 bits with scales, or as it was, without. */
struct operand {
    struct tensor values;
    const float *scales;
    struct tensor transposed; /* rank 0, or what a product over rows reads */
};

/* Dimension of the stored operand that a matmul reduces over; OVER_BOTH: two matmuls, one over
 * each. */
enum quantized_over { OVER_COLUMNS, OVER_ROWS, OVER_BOTH };

struct quantization {
    struct backend *be; /* NULL: nothing is rounded to 8 bits */
    enum config_recipe recipe;
    bool power_of_two, fast_accumulation;
    float margin;                      /* 2^fp8.margin */
    int64_t history_length;            /* 0: no history */
    enum dtype dtype[QUANTIZED_KINDS]; /* DTYPE_E4M3 or DTYPE_E5M2 */
    int64_t layers;
    bool fp8_site[AUTOCAST_SITE_COUNT];
    bool gated;        /* the MLP */
    bool tensor_cores; /* multiply 8 bits, and want to sum over columns only */

    bool keeps[LINEAR_COUNT];        /* whether inputs are kept for the backward pass */
    struct operand *kept;            /* [layers, LINEAR_COUNT]: those; [N, inputs] or transposed */
    void *values[QUANTIZED_KINDS];   /* the operand in use of each kind */
    void *transposed;                /* a gradient's transpose, if both are in use */
    float *scales[QUANTIZED_KINDS];  /* the operand's scales */
    struct amax *tracked;            /* [count]: of this pass; not in the recipe "row" */
    struct quantize_record *records; /* [ranks, count filled up]: of this step, see place */
    float *amax;                     /* [count], of the steps before; with a history */
    float *history;                  /* [history_length, count] */
};

/* Request to quantize: the tensor, its layer, and the matmul that reads it. */
struct quantized_operand {
    enum quantized kind;
    enum autocast_site site;
    int64_t layer;
    const struct tensor *in;
    enum quantized_over over; /* not both in the recipe "row" */
    bool repeated;            /* it was looked at before: no record is made */
};

/* Reads the recipe; nothing is rounded unless the precision says so. keeps: the linear layers whose
 * input the backward pass finds in 8 bits. */
int quantization_open(struct quantization *quantization, const struct config *config,
                      const struct precision *precision, struct backend *be,
                      const bool keeps[LINEAR_COUNT], struct error *error);
void quantization_close(struct quantization *quantization);

/* The layout, for a batch of these rows: once on an arena to measure, and once to carve. */
void quantization_layout(struct quantization *quantization, struct arena *arena,
                         const struct gpt_shape *shape);

/* Forgets all steps. */
void quantization_clear(const struct quantization *quantization);

/* Rounds it, into memory that the next operand of its kind takes. Where tensor cores multiply, what
 * is summed over rows is transposed on the way. */
struct operand quantization_round(const struct quantization *quantization,
                                  const struct quantized_operand *operand);

/* The input of a linear layer, as the product of the forward pass reads it, and of the weight
 * gradient. What is kept is rounded in the forward pass for both. */
struct operand quantization_input(const struct quantization *quantization, enum autocast_site site,
                                  int64_t layer, const struct tensor *in, bool repeated);
struct operand quantization_input_backward(const struct quantization *quantization,
                                           enum autocast_site site, int64_t layer,
                                           const struct tensor *in);

/* True if the input of this layer is saved in 8 bits, so that the activation itself need not be
 * saved. */
bool quantization_keeps(const struct quantization *quantization, enum autocast_site site);

/* Returns the magnitude that the operation which writes an operand's tensor has to track, or
 * NULL. */
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

/* Records of all ranks. */
int64_t quantization_records(const struct quantization *quantization);

/* How many tensors have records, and where that of a tensor is among them. */
int64_t quantization_count(const struct quantization *quantization);
int64_t quantization_place(const struct quantization *quantization, enum quantized kind,
                           enum autocast_site site, int64_t layer);

/* Before each forward pass. */
void quantization_begin_pass(const struct quantization *quantization);

/* Before the first micro-batch of a step, and after the last: what the records of all ranks say
 * goes into the state and into the history. */
void quantization_begin_step(const struct quantization *quantization);
void quantization_end_step(const struct quantization *quantization, struct step_state *state,
                           int64_t step);
