/* Autocast, resolved once: the dtype in which every operation computes and every tensor is stored.
 *
 * The semantics are those of PyTorch's autocast for CUDA. Matmuls and attention run in low
 * precision with fp32 accumulation; layer norm, softmax and the loss run in fp32; GELU runs in the
 * dtype of its input. The residual stream is fp32, or low precision if the config selects that. A
 * tensor between two operations is stored in the narrower of its producer's and its consumer's
 * dtypes, so the casts that autocast would insert are part of the store. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/weight_format.h"
#include "model/architecture/activations.h"
#include "model/config/config.h"

/* Operands of the matmuls of a linear layer. */
enum linear_operand { LINEAR_INPUT, LINEAR_WEIGHT, LINEAR_GRADIENT, LINEAR_OPERANDS };

enum linear_matmul {
    MATMUL_FORWARD,         /* out = in W */
    MATMUL_INPUT_GRADIENT,  /* din = dout W' */
    MATMUL_WEIGHT_GRADIENT, /* dW = in' dout */
    LINEAR_MATMULS
};

/* How a precision quantizes: the format of each operand of each matmul, and the source of scales.
 * Each format assumes that the matmul sums along the operand's rows; it is unused where the matmul
 * does not read an operand of the kind. */
struct recipe {
    struct quantize_format format[LINEAR_OPERANDS][LINEAR_MATMULS];
    bool delayed;   /* scales come from the amax history */
    bool hadamard;  /* operands of the weight gradient are transformed first */
    bool in_blocks; /* formats are those of quantize_format_in_blocks */
    bool scaled;    /* matmuls multiply sums by scales */
};

/* Returns the recipe of the config for a precision that quantizes (config_precision_quantizes). */
struct recipe recipe_of(const struct config *config, enum config_precision precision);

/* True if the device multiplies all operands as they are stored; else it multiplies their values in
 * bf16, or on a CPU in fp32. */
bool recipe_is_native(const struct recipe *recipe, const struct backend *be);

/* Form of the master weights of matrices that are read in 16 bit: see model/core/masters.h. */
enum master_form { MASTERS_DIRECT, MASTERS_SPLIT, MASTERS_KEPT, MASTERS_CAST };

struct precision {
    enum dtype compute_dtype; /* of matmuls and attention, in 16 bit; DTYPE_F32: nothing is */
    enum dtype site[AUTOCAST_SITE_COUNT];     /* dtype of each operation's inputs and output */
    bool quantized_site[AUTOCAST_SITE_COUNT]; /* linear layers whose operands are quantized */
    int64_t quantized_begin, quantized_end;   /* blocks in which they are: begin <= block < end */
    int64_t n_layer;                          /* blocks of the model */
    bool quantizes;                           /* true if any operand is quantized */
    bool backward_only;                       /* they are not in the forward pass */
    bool quantized_in_all;            /* quantized_site holds in all blocks and both passes */
    enum config_precision quantized;  /* precision of quantized operands; valid only then */
    struct recipe recipe;             /* formats of quantized operands; valid only then */
    enum dtype residual;              /* dtype of the residual stream and its gradient */
    enum dtype gradients;             /* dtype of weight gradients */
    enum dtype moments;               /* dtype of the optimizer's moments: fp32 or bf16 */
    enum master_form masters;         /* DIRECT if nothing runs in 16 bit */
    enum dtype frozen;                /* stored dtype of frozen matrices: fp32, fp16, bf16 */
    enum weight_format frozen_format; /* format of frozen linear layers */
    bool scale_loss;                  /* fp16 only */
    enum dtype activation[ACTIVATIONS_AND_STATISTICS]; /* and of its gradient */
};

/* Resolves config->precision ("auto" by the device's abilities) and the autocast block. Fails if
 * the device cannot compute in the dtype, or Gated DeltaNets; a CPU supports all. notes (note.h)
 * gets the reason of an automatic choice. */
int precision_resolve(struct precision *precision, FILE *notes, const struct config *config,
                      const struct backend *be, struct error *error);

/* True if the operands of a linear layer are quantized; _forward: also in the forward pass. */
static inline bool precision_quantizes(const struct precision *precision, enum autocast_site site,
                                       int64_t layer) {
    return precision->quantized_site[site] && layer >= precision->quantized_begin &&
           layer < precision->quantized_end;
}
static inline bool precision_quantizes_forward(const struct precision *precision,
                                               enum autocast_site site, int64_t layer) {
    return !precision->backward_only && precision_quantizes(precision, site, layer);
}

/* Returns the number of blocks of autocast.lower16_first or lower16_last, at most n_layer: `given`,
 * or, below 1, that part of all blocks rounded up. */
int64_t precision_blocks(double given, int64_t n_layer);

/* True if a list, such as config->autocast.float32, has the site's name. */
bool precision_lists_site(const struct config_words *list, enum autocast_site site);

/* Returns config->precision, or for "auto" the effective precision. */
enum config_precision precision_setting(const struct precision *precision,
                                        const struct config *config);

/* Return the effective precision, never "auto", and its name, such as "bf16" or "fp8". */
enum config_precision precision_effective(const struct precision *precision);
const char *precision_name(const struct precision *precision);

/* True if the gradients of branches and of the residual stream have the same dtype, so that one
 * tensor can hold both. */
bool precision_branch_is_residual(const struct precision *precision);

/* Prints the operations of each dtype for the banner, after a label of 12 columns. Lines have at
 * most 79 columns; the last one has no line break. */
void precision_print(FILE *out, const struct precision *precision);
