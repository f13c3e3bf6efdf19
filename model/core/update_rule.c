#include "model/core/update_rule.h"

const struct update_rule *update_rule(const struct config *config) {
    static const struct update_rule *const rules[] = {
#define X(NAME, name) [CONFIG_OPTIMIZER_##NAME] = &name##_rule,
        OPTIMIZERS(X)
#undef X
    };
    return rules[config->optimizer.name];
}
