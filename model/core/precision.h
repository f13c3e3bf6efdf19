/* Autocast, resolved once: the dtype in which every operation computes and every tensor is kept.
 *
 * The meaning is that of PyTorch's autocast for CUDA. Matrix products and attention run in the
 * lower dtype with fp32 accumulation; layer norm, softmax and the loss run in fp32; GELU runs in
 * whatever its input has; the residual stream is fp32 (or lower, if the config says so). A tensor
 * between two operations is kept in the narrower of what its producer gives and its consumer
 * reads, so that the casts autocast would insert are part of the store. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/architecture/activations.h"
#include "model/config/config.h"

/* How masters of matrices that are read in 16 bit are kept: see model/core/masters.h. */
enum master_form { MASTERS_FLOAT32, MASTERS_SPLIT, MASTERS_KEPT, MASTERS_CAST };

struct precision {
    enum dtype lower;                     /* DTYPE_F32: nothing runs in 16 bit */
    enum dtype site[AUTOCAST_SITE_COUNT]; /* what each computes from and gives */
    bool fp8_site[AUTOCAST_SITE_COUNT];   /* linear layers whose operands are rounded to 8 bits */
    bool fp8;                             /* whether there are any */
    enum dtype residual;                  /* the residual stream and its gradient */
    enum dtype gradients;                 /* of parameters */
    enum dtype moments;                   /* of the optimizer: fp32 or bf16 */
    enum master_form masters;             /* FLOAT32 if nothing runs in 16 bit */
    bool scale_loss;                      /* fp16 only */
    enum dtype activation[ACTIVATIONS_AND_STATISTICS]; /* and of its gradient */
};

/* Resolves config->precision ("auto" by what the device can do) and the autocast block. Fails if
 * the device cannot compute in the dtype; a CPU can in all. A choice made for the user is explained
 * in note, which is "" otherwise. */
enum { PRECISION_NOTE_MAX = 256 };
int precision_resolve(struct precision *precision, char *note, const struct config *config,
                      const struct backend *be, struct error *error);

/* The setting that names what was resolved: for "auto" what it came to. */
enum config_precision precision_setting(const struct precision *precision,
                                        const struct config *config);

/* Effective precision, never "auto"; and its name: "fp32", "fp16", "bf16" or "fp8". */
enum config_precision precision_effective(const struct precision *precision);
const char *precision_name(const struct precision *precision);

/* Writes settings of the user that have no effect in this precision, one a line, each line ended by
 * a line break, into text (of size bytes, cut there). */
void precision_warnings(const struct precision *precision, const struct config *config, char *text,
                        size_t size);

/* True if the branches' gradients have the dtype of the residual stream's, so that one tensor can
 * serve as both. */
bool precision_branch_is_residual(const struct precision *precision);

/* For the banner, behind a label of 12 columns: which operations run in which dtype. Lines of at
 * most 79 columns, the last one not ended. */
void precision_print(FILE *out, const struct precision *precision);
