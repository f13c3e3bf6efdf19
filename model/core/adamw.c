#include "model/core/update_rule.h"

static void adamw_update(const struct update_args *a) {
    const struct config *config = a->config;
    OP(a->be, adamw, .master = a->master, .remainder = a->remainder, .moment1 = &a->moments[0],
       .moment2 = &a->moments[1], .copy = a->copy, .gradients = a->gradients, .state = a->state,
       .inputs = a->inputs, .first = a->first, .beta1 = config->optimizer.beta1,
       .beta2 = config->optimizer.beta2, .epsilon = config->optimizer.eps,
       .weight_decay = a->weight_decay, .lr_factor = a->lr_factor);
}

const struct update_rule adamw_rule = {
    .moments = 2,
    .moment_names = {"exp_avg.", "exp_avg_sq."},
    .update = adamw_update,
};
