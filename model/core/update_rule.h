/* Update rules: what turns gradients into new weights, one per value of optimizer.name.
 *
 * A rule is data for the optimizer, the checkpoints and the memory plan, which loop over its
 * moments: tensors with one element per trainable element, such as Adam's moments or a momentum
 * buffer. To add a rule, write its update in a file of its own, and name it in OPTIMIZERS
 * (model/config/config.h). A rule for matrices updates those of the transformer blocks, as wholes,
 * and AdamW all other parameters. */
#pragma once

#include <stdint.h>

#include "kernels/backend.h"
#include "model/architecture/parameters.h"
#include "model/config/config.h"

enum { MOMENTS_MAX = 2 };

/* One update of a range of parameters. All tensors have the same number of elements. */
struct update_args {
    struct backend *be;
    const struct tensor *master;      /* fp32; bf16: upper halves of split master weights */
    int16_t *remainder;               /* NULL unless master weights are split */
    const struct tensor *copy;        /* optional, 16 bit: a copy of the new weights */
    struct tensor *moments;           /* [rule's moments] fp32, or bf16 with stochastic rounding */
    const struct tensor *gradients;   /* scaled by the loss scale */
    const struct step_state *state;   /* backend memory; nothing changes if found_inf */
    const struct step_inputs *inputs; /* backend memory; lr and key are read */
    int64_t first;                    /* index of element 0 in the flat order */
    double weight_decay;              /* for this group */
    double lr_factor;                 /* factor of the learning rate */
    const struct config *config;
};

struct update_rule {
    int moments;
    const char *moment_names[MOMENTS_MAX]; /* in checkpoints, before the names of weights: those
                                              of PyTorch's optimizer state */
    /* Updates any range of elements. Without it, Muon updates matrices as wholes (muon.h). */
    void (*update)(const struct update_args *args);
};

#define X(NAME, name) extern const struct update_rule name##_rule;
OPTIMIZERS(X)
#undef X

/* Returns the rule that updates a parameter. */
const struct update_rule *update_rule_of(const struct config *config,
                                         const struct parameter *parameter);
