#include "model/core/update_rule.h"

const struct update_rule *update_rule_of(const struct config *config,
                                         const struct parameter *parameter) {
    static const struct update_rule *const rules[] = {
#define X(NAME, name) [CONFIG_OPTIMIZER_##NAME] = &name##_rule,
        OPTIMIZERS(X)
#undef X
    };
    const struct update_rule *rule = rules[config->optimizer.name];
    bool matrix = parameter->layer >= 0 && parameter->extent.columns > 0;
    return !rule->update && !matrix ? &adamw_rule : rule;
}
