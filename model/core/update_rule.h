/* Update rules: what turns gradients into new weights, one per value of optimizer.name.
 *
 * A rule is data for the optimizer, the checkpoints and the memory plan, which loop over its
 * moments: tensors with one element per trainable element, such as Adam's moments or a momentum
 * buffer. To add a rule, name it in OPTIMIZERS (model/config/config.h), add its row in
 * update_rule.c, and its formula in the operation `update` (kernels/update_args.h). Muon updates
 * the matrices of the transformer blocks, as wholes, and AdamW all other parameters. */
#pragma once

#include "kernels/update_args.h"
#include "model/architecture/parameters.h"
#include "model/config/config.h"

enum { MOMENTS_MAX = 2 };

struct update_rule {
    enum config_optimizer name;
    enum update_kind kind; /* DIRECTION: whole matrices, by a direction that muon.h changes */
    int moments;
    const char *moment_names[MOMENTS_MAX]; /* in checkpoints, before the names of weights: those
                                              of PyTorch's optimizer state */
};

/* Returns the rule that updates a parameter. */
const struct update_rule *update_rule_of(const struct config *config,
                                         const struct parameter *parameter);

/* Sets the settings of the rule in the arguments of its update. */
void update_rule_set(struct update_args *args, const struct update_rule *rule,
                     const struct config *config);

/* True if the moments of a parameter are in 8 bits (kernels/moment_code.h), in blocks that begin
 * with the parameter. Like in bitsandbytes, vectors, embeddings and small tensors are in fp32. */
bool update_rule_in_8bit(const struct config *config, const struct parameter *parameter);
