#include "model/architecture/adapters.h"

#include <string.h>

#include "model/architecture/parameters.h"

enum { IN_FULL = 1, IN_DELTA = 2 };
static const struct {
    const char *layers[NAMINGS];
    enum autocast_site site;
    unsigned in; /* kinds of layers */
} table[] = {
#define LAYERS(...) \
    { __VA_ARGS__ }
#define X(NAME, layers, site, field, in) [ADAPTER_##NAME] = {layers, site, in},
    ADAPTER_TARGETS(X)
#undef X
#undef LAYERS
};

/* True if a model of the shape has this linear layer. */
static bool has_target(const struct model_shape *shape, enum adapter_target target) {
    if (target == ADAPTER_UP && !mlp_is_gated(shape->mlp)) return false;
    if (table[target].in == IN_DELTA && shape->full_attention_interval == 0) return false;
    return adapter_target_layer(shape, target)[0] != '\0';
}

const char *adapter_target_layer(const struct model_shape *shape, enum adapter_target target) {
    return table[target].layers[site_naming(shape, table[target].site)];
}

static const char *short_name(const struct model_shape *shape, enum adapter_target target) {
    return strchr(adapter_target_layer(shape, target), '.') + 1;
}

const char *adapter_target_name(const struct model_shape *shape, enum adapter_target target) {
    const char *name = short_name(shape, target);
    bool selects_others = adapter_targets_named(shape, name) & ~shape->adapter_targets;
    return selects_others ? adapter_target_layer(shape, target) : name;
}

unsigned adapter_targets_named(const struct model_shape *shape, const char *name) {
    unsigned targets = 0;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (has_target(shape, i) &&
            (strcmp(name, "all-linear") == 0 || strcmp(name, short_name(shape, i)) == 0 ||
             strcmp(name, adapter_target_layer(shape, i)) == 0))
            targets |= 1u << i;
    return targets;
}

int64_t adapter_rank_max(const struct model_shape *s, enum adapter_target target) {
    enum autocast_site site = table[target].site;
    struct model_shape own = *s;
    own.is_delta = table[target].in == IN_DELTA;
    int64_t inputs = site_inputs(&own, site), outputs = site_outputs(&own, site);
    /* b and a have a column for each head, fewer than ranks that the other layers need. */
    if (target == ADAPTER_DELTA_B || target == ADAPTER_DELTA_A) return inputs;
    if (target == ADAPTER_DELTA_QKV) outputs = shape_convolved(s);
    if (target == ADAPTER_DELTA_Z) outputs = shape_values(s);
    if (s->llama_names && s->fused != FUSED_ALL && site == SITE_QKV && !own.is_delta)
        outputs = target == ADAPTER_Q ? shape_q_gate(s) : shape_kv(s);
    if (site == SITE_MLP_FC && !s->fused) outputs = s->n_inner; /* of gate and up each */
    return inputs < outputs ? inputs : outputs;
}

bool shape_has_target(const struct model_shape *shape, enum adapter_target target) {
    return shape->adapter_targets >> target & 1 &&
           table[target].in & (shape->is_delta ? IN_DELTA : IN_FULL);
}

int adapter_targets_of(enum adapter_target targets[ADAPTER_FUSED_MAX],
                       const struct model_shape *shape, enum autocast_site site) {
    int count = 0;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++)
        if (table[i].site == site && shape_has_target(shape, i)) targets[count++] = i;
    return count;
}
