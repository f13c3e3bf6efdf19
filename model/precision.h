/* Autocast, resolved once: the dtype in which every operation computes and every tensor is kept.
 *
 * The meaning is that of PyTorch's autocast for CUDA. Matrix products and attention run in the
 * lower dtype with fp32 accumulation; layer norm, softmax and the loss run in fp32; GELU runs in
 * whatever its input has; the residual stream is fp32 (or lower, if the config says so). A tensor
 * between two operations is kept in the narrower of what its producer gives and its consumer
 * reads, so that the casts autocast would insert are part of the store. */
#ifndef MODEL_PRECISION_H
#define MODEL_PRECISION_H

#include <stdbool.h>
#include <stdio.h>

#include "kernels/backend.h"
#include "model/config/config.h"

/* Operations by the names of autocast.float32, with their policy. */
#define AUTOCAST_OPERATIONS(X)                                    \
    X(EMBEDDING, "embedding", POLICY_FLOAT32)                     \
    X(LAYERNORM, "layernorm", POLICY_FLOAT32)                     \
    X(QKV, "qkv", POLICY_LOWER)                                   \
    X(ATTENTION, "attention", POLICY_LOWER)                       \
    X(ATTENTION_PROJECTION, "attention_projection", POLICY_LOWER) \
    X(MLP_FC, "mlp_fc", POLICY_LOWER)                             \
    X(GELU, "gelu", POLICY_INPUT)                                 \
    X(MLP_PROJECTION, "mlp_projection", POLICY_LOWER)             \
    X(LM_HEAD, "lm_head", POLICY_LOWER)                           \
    X(CROSS_ENTROPY, "cross_entropy", POLICY_FLOAT32)

enum autocast_operation {
#define X(id, name, policy) OPERATION_##id,
    AUTOCAST_OPERATIONS(X)
#undef X
        AUTOCAST_OPERATION_COUNT
};

/* The name, and whether autocast.float32 takes it: what is fp32 in any case is no choice. */
const char *precision_operation_name(enum autocast_operation operation);
bool precision_operation_is_choice(enum autocast_operation operation);

struct precision {
    enum dtype lower;                               /* DTYPE_F32: nothing runs in 16 bit */
    enum dtype operation[AUTOCAST_OPERATION_COUNT]; /* what each computes from and gives */
    enum dtype residual;                            /* the residual stream and its gradient */
    enum dtype gradients;                           /* of parameters */
    bool scale_loss;                                /* fp16 only */

    /* Activations, and their gradients, by the operations they stand between. */
    enum dtype ln1_out, qkv, attention_out, attention_projection;
    enum dtype ln2_out, mlp_fc, mlp_gelu, mlp_projection;
    enum dtype lnf_out, logits;
};

/* Resolves config->precision ("auto" by what the device can do) and the autocast block. Fails if
 * the device cannot compute in the dtype; a CPU can in all. A choice made for the user is explained
 * in note (ERROR_MAX bytes), which is "" otherwise. */
int precision_resolve(struct precision *precision, char *note, const struct config *config,
                      const struct backend *be, char *error);

/* The setting that names what was resolved: for "auto" what it came to. */
enum config_precision precision_setting(const struct precision *precision,
                                        const struct config *config);

/* Writes settings of the user that have no effect in this precision, one a line, each line ended by
 * a line break, into text (of size bytes, cut there). */
void precision_warnings(const struct precision *precision, const struct config *config, char *text,
                        size_t size);

/* Whether the branches' gradients have the dtype of the residual stream's, so that one tensor can
 * serve as both. */
bool precision_branch_is_residual(const struct precision *precision);

/* For the banner, behind a label of 12 columns: which operations run in which dtype. Lines of at
 * most 79 columns, the last one not ended. */
void precision_print(FILE *out, const struct precision *precision);

#endif
