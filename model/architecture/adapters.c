#include "model/architecture/adapters.h"

#include <string.h>

#include "model/architecture/parameters.h"

static const struct {
    const char *layers[2]; /* GPT-2's and Llama's */
    enum autocast_site site;
} table[] = {
#define X(NAME, gpt2, llama, site, ...) [ADAPTER_##NAME] = {{gpt2, llama}, site},
    ADAPTER_TARGETS(X)
#undef X
};

/* True if a model of the shape has this linear layer. */
static bool has_target(const struct gpt_shape *shape, enum adapter_target target) {
    if (target == ADAPTER_UP && !mlp_is_gated(shape->mlp)) return false;
    return table[target].layers[shape->weights_out_in][0] != '\0';
}

const char *adapter_target_layer(const struct gpt_shape *shape, enum adapter_target target) {
    return table[target].layers[shape->weights_out_in];
}

static const char *short_name(const struct gpt_shape *shape, enum adapter_target target) {
    return strchr(adapter_target_layer(shape, target), '.') + 1;
}

const char *adapter_target_name(const struct gpt_shape *shape, enum adapter_target target) {
    const char *name = short_name(shape, target);
    bool selects_others = adapter_targets_named(shape, name) & ~shape->adapter_targets;
    return selects_others ? adapter_target_layer(shape, target) : name;
}

unsigned adapter_targets_named(const struct gpt_shape *shape, const char *name) {
    unsigned targets = 0;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (has_target(shape, i) &&
            (strcmp(name, "all-linear") == 0 || strcmp(name, short_name(shape, i)) == 0 ||
             strcmp(name, adapter_target_layer(shape, i)) == 0))
            targets |= 1u << i;
    return targets;
}

int64_t adapter_rank_max(const struct gpt_shape *s, enum adapter_target target) {
    enum autocast_site site = table[target].site;
    int64_t inputs = site_inputs(s, site), outputs = site_outputs(s, site);
    if (s->weights_out_in && site == SITE_QKV)
        outputs = target == ADAPTER_Q ? shape_q(s) : shape_kv(s);
    if (site == SITE_MLP_FC) outputs = s->n_inner; /* of gate and up each */
    return inputs < outputs ? inputs : outputs;
}

int adapter_targets_of(enum adapter_target targets[ADAPTER_FUSED_MAX],
                       const struct gpt_shape *shape, enum autocast_site site) {
    int count = 0;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (table[i].site == site && shape->adapter_targets >> i & 1) targets[count++] = i;
    return count;
}
