/* Stochastic gradient descent with momentum, as torch.optim.SGD. */
#include "model/core/update_rule.h"

static void sgd_update(const struct update_args *a) {
    OP(a->be, momentum, .rule = MOMENTUM_SGD, .master = a->master, .remainder = a->remainder,
       .copy = a->copy, .moment = &a->moments[0], .gradients = a->gradients, .state = a->state,
       .inputs = a->inputs, .first = a->first, .beta1 = a->config->optimizer.momentum,
       .nesterov = a->config->optimizer.nesterov, .weight_decay = a->weight_decay,
       .lr_factor = a->lr_factor);
}

const struct update_rule sgd_rule = {
    .moments = 1,
    .moment_names = {"momentum_buffer."},
    .update = sgd_update,
};
