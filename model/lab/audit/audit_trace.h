/* What an observed operation has produced: a name for every tensor that a step computes, in any
 * precision, so that the same one can be looked at in each.
 *
 * A place is a tensor of the model as people speak of it, whatever memory it lies in; "d(x)" is the
 * gradient of x. Gradients of parameters are places of their own, by their number in gpt->list. */
#ifndef MODEL_LAB_AUDIT_AUDIT_TRACE_H
#define MODEL_LAB_AUDIT_AUDIT_TRACE_H

#include "kernels/observer.h"
#include "model/gpt.h"

#define WORD(id) (1u << OPERATION_##id)

/* X(id, name, of each layer, struct precision's dtype for it, words of autocast.float32 that keep
 * it in fp32, all of them together). Tensors of the residual stream have no word: autocast.residual
 * decides. In the order of the forward pass, and of the backward pass; the GELU's gradient never
 * exists, as its product multiplies at once. */
#define FORWARD_PLACES(X)                                                                        \
    X(RESIDUAL, "residual", true, residual, 0)                                                   \
    X(LN1, "ln1", true, ln1_out, WORD(QKV))                                                      \
    X(QKV, "qkv", true, qkv, WORD(QKV) | WORD(ATTENTION))                                        \
    X(ATTENTION, "attention", true, attention_out, WORD(ATTENTION) | WORD(ATTENTION_PROJECTION)) \
    X(ATTENTION_PROJECTION, "attention_projection", true, attention_projection,                  \
      WORD(ATTENTION_PROJECTION))                                                                \
    X(RESIDUAL_MID, "residual_mid", true, residual, 0)                                           \
    X(LN2, "ln2", true, ln2_out, WORD(MLP_FC))                                                   \
    X(MLP_FC, "mlp_fc", true, mlp_fc, WORD(MLP_FC))                                              \
    X(GELU, "gelu", true, mlp_gelu, WORD(GELU) | WORD(MLP_PROJECTION))                           \
    X(MLP_PROJECTION, "mlp_projection", true, mlp_projection, WORD(MLP_PROJECTION))              \
    X(RESIDUAL_FINAL, "residual_final", false, residual, 0)                                      \
    X(LNF, "ln_f", false, lnf_out, WORD(LM_HEAD))                                                \
    X(LOGITS, "lm_head", false, logits, WORD(LM_HEAD))

#define BACKWARD_PLACES(X)                                                               \
    X(D_LOGITS, "d(lm_head)", false, logits, WORD(LM_HEAD))                              \
    X(D_LNF, "d(ln_f)", false, lnf_out, WORD(LM_HEAD))                                   \
    X(D_RESIDUAL_FINAL, "d(residual_final)", false, residual, 0)                         \
    X(D_MLP_PROJECTION, "d(mlp_projection)", true, mlp_projection, WORD(MLP_PROJECTION)) \
    X(D_MLP_FC, "d(mlp_fc)", true, mlp_fc, WORD(MLP_FC))                                 \
    X(D_LN2, "d(ln2)", true, ln2_out, WORD(MLP_FC))                                      \
    X(D_RESIDUAL_MID, "d(residual_mid)", true, residual, 0)                              \
    X(D_ATTENTION_PROJECTION, "d(attention_projection)", true, attention_projection,     \
      WORD(ATTENTION_PROJECTION))                                                        \
    X(D_ATTENTION, "d(attention)", true, attention_out,                                  \
      WORD(ATTENTION) | WORD(ATTENTION_PROJECTION))                                      \
    X(D_QKV, "d(qkv)", true, qkv, WORD(QKV) | WORD(ATTENTION))                           \
    X(D_LN1, "d(ln1)", true, ln1_out, WORD(QKV))                                         \
    X(D_RESIDUAL, "d(residual)", true, residual, 0)

enum place {
#define X(id, name, layered, dtype, words) PLACE_##id,
    FORWARD_PLACES(X) BACKWARD_PLACES(X)
#undef X
        PLACES,
    PLACE_PARAMETER = PLACES, /* the gradient of one */
};

const char *place_name(enum place place);
bool place_is_gradient(enum place place); /* scaled by the loss scale */
bool place_is_layered(enum place place);
unsigned place_words(enum place place); /* bits by enum autocast_operation */
enum dtype place_dtype(enum place place, const struct precision *precision);
void place_label(char *label, size_t size, enum place place, int layer); /* "layer 3 mlp_fc" */

/* A tensor, or some rows of one, as an operation left it. */
struct product {
    enum place place;
    int layer;            /* 0 for places of the whole model */
    int parameter;        /* of PLACE_PARAMETER: index in gpt->list */
    struct tensor tensor; /* backend memory */
    int64_t first, total; /* elements: where it begins in the whole tensor, and how many that has */
};

enum { PRODUCTS_MAX = 4 };

/* Fills products with what operation id produced for these arguments, and returns how many: all
 * tensors that a training step writes but statistics of layer norms, log-sums and losses. What is
 * no part of forward and backward pass produces nothing, nor does a gradient that nobody reads.
 * Only for models that share no activations (train.recompute "none"). */
int trace_products(struct product products[PRODUCTS_MAX], const struct gpt *gpt,
                   enum operation_id id, const void *args);

#endif
