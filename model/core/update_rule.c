#include "model/core/update_rule.h"

#include "kernels/moment_code.h"

static const struct update_rule rules[] = {
    [CONFIG_OPTIMIZER_ADAMW] = {CONFIG_OPTIMIZER_ADAMW,
                                UPDATE_ADAMW,
                                2,
                                {"exp_avg.", "exp_avg_sq."}},
    [CONFIG_OPTIMIZER_MUON] = {CONFIG_OPTIMIZER_MUON, UPDATE_DIRECTION, 1, {"momentum_buffer."}},
    /* Chen et al. 2023, arXiv 2302.06675. */
    [CONFIG_OPTIMIZER_LION] = {CONFIG_OPTIMIZER_LION, UPDATE_LION, 1, {"exp_avg."}},
    /* With momentum, as torch.optim.SGD. */
    [CONFIG_OPTIMIZER_SGD] = {CONFIG_OPTIMIZER_SGD, UPDATE_SGD, 1, {"momentum_buffer."}},
};

const struct update_rule *update_rule_of(const struct config *config,
                                         const struct parameter *parameter) {
    enum config_optimizer name = config->optimizer.name;
    bool matrix =
        parameter->layer >= 0 && parameter->extent.columns > 0 && !parameter->extent.convolution;
    return &rules[name == CONFIG_OPTIMIZER_MUON && !matrix ? CONFIG_OPTIMIZER_ADAMW : name];
}

void update_rule_set(struct update_args *args, const struct update_rule *rule,
                     const struct config *config) {
    const bool has_momentum = rule->kind == UPDATE_SGD || rule->kind == UPDATE_DIRECTION;
    args->kind = rule->kind;
    args->beta1 = has_momentum ? config->optimizer.momentum : config->optimizer.beta1;
    args->beta2 = config->optimizer.beta2;
    args->epsilon = config->optimizer.eps;
    args->nesterov = has_momentum && config->optimizer.nesterov;
}

static bool is_embedding(const struct parameter *p) {
    return p->layer < 0 && (p->field == offsetof(struct parameters, wte) ||
                            p->field == offsetof(struct parameters, wpe));
}

bool update_rule_in_8bit(const struct config *config, const struct parameter *parameter) {
    const int64_t count = parameter_count(parameter);
    if (config->optimizer.moments != CONFIG_MOMENTS_INT8) return false;
    if (parameter->extent.columns == 0 || count < config->optimizer.min_8bit_size) return false;
    if (is_embedding(parameter) && !config->optimizer.embeddings_8bit) return false;
    return count % MOMENT_BLOCK == 0 && parameter->elements % MOMENT_BLOCK == 0;
}
