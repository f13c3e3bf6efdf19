/* Lion (Chen et al. 2023, arXiv 2302.06675). */
#include "model/core/update_rule.h"

static void lion_update(const struct update_args *a) {
    OP(a->be, momentum, .rule = MOMENTUM_LION, .master = a->master, .remainder = a->remainder,
       .copy = a->copy, .moment = &a->moments[0], .gradients = a->gradients, .state = a->state,
       .inputs = a->inputs, .first = a->first, .beta1 = a->config->optimizer.beta1,
       .beta2 = a->config->optimizer.beta2, .weight_decay = a->weight_decay,
       .lr_factor = a->lr_factor);
}

const struct update_rule lion_rule = {
    .moments = 1,
    .moment_names = {"exp_avg."},
    .update = lion_update,
};
