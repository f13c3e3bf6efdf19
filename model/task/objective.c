#include "model/task/objective.h"

#include "model/pass/forward.h"

const struct objective objective_language = {0};

const struct objective *objective_of(const struct config *config) {
#define X(NAME, name, ...) &objective_##name,
    static const struct objective *const rows[] = {OBJECTIVES(X)};
#undef X
    return config->distill_top > 0 ? &objective_distillation : rows[config->train.objective];
}

void objective_loss(const struct pass *pass) {
    if (pass->objective && pass->objective->loss) pass->objective->loss(pass);
    else
        model_head(pass, &(struct head_args){.has_gradients = pass->kind == PASS_TRAIN,
                                             .losses = pass->model->activations.losses.data});
}

double objective_value(const struct objective_figure *figure, const struct step_sums *sums,
                       float factor) {
    const float *values = sums->values;
    double value = (double)(factor * values[figure->sum] / values[figure->count]);
    if (figure->less_count > 0)
        value -= (double)(factor * values[figure->less_sum] / values[figure->less_count]);
    return value;
}
