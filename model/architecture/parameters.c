#include "model/architecture/parameters.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/arena.h"

#define X(...) +1
enum { MODEL_KINDS = MODEL_PARAMETERS(X), LAYER_KINDS = LAYER_PARAMETERS(X) };
#undef X

enum { ADDED, MATMUL, FUSED_WITH_PREVIOUS };
#define NONE NULL

/* One row of the lists, with the names of both families. */
struct kind {
    struct parameter parameter;
    const char *names[2]; /* GPT-2's and Llama's */
    int gradient;
};

/* Lists each row once: those of the model, then those of a layer. */
static void list_kinds(struct kind kinds[MODEL_KINDS + LAYER_KINDS], const struct model_shape *s) {
#define KIND(owner, layer_, member, gpt2, llama, gguf_, extent_, site_, group_, init_, gradient_) \
    {.parameter = {.gguf = gguf_,                                                                 \
                   .layer = layer_,                                                               \
                   .field = offsetof(struct owner, member),                                       \
                   .extent = extent_,                                                             \
                   .group = GROUP_##group_,                                                       \
                   .site = site_,                                                                 \
                   .init = init_},                                                                \
     .names = {gpt2, llama},                                                                      \
     .gradient = gradient_},
#define X(...) KIND(parameters, -1, __VA_ARGS__)
#define Y(...) KIND(layer_parameters, 0, __VA_ARGS__)
    const struct kind all[] = {MODEL_PARAMETERS(X) LAYER_PARAMETERS(Y)};
#undef X
#undef Y
#undef KIND
    memcpy(kinds, all, sizeof all);
    for (int i = 0; i < MODEL_KINDS + LAYER_KINDS; i++) {
        struct parameter *p = &kinds[i].parameter;
        if (shape_has_adapters(s)) p->group = GROUP_FROZEN;
        p->kind = kinds[i].names[s->llama_names];
        p->fused_with_previous = kinds[i].gradient == FUSED_WITH_PREVIOUS;
        p->gradient_from_matmul = p->fused_with_previous
                                      ? kinds[i - 1].parameter.gradient_from_matmul
                                      : kinds[i].gradient == MATMUL;
    }
}

static bool is_present(const struct kind *kind) {
    return kind->parameter.kind && kind->parameter.extent.rows > 0;
}

static void append(struct parameter **list, const struct kind *kind, int layer,
                   const struct model_shape *s, int64_t *end) {
    struct parameter added = kind->parameter;
    const struct extent *extent = &added.extent;
    int64_t elements = extent->padded_rows * (extent->columns ? extent->columns : 1);
    added.layer = layer;
    if (layer < 0) snprintf(added.name, sizeof added.name, "%s", added.kind);
    else
        snprintf(added.name, sizeof added.name, s->llama_names ? "model.layers.%d.%s" : "h.%d.%s",
                 layer, added.kind);
    added.offset = *end;
    if (added.fused_with_previous) {
        struct parameter *before = &arrlast(*list);
        before->elements = parameter_count(before);
        added.offset = before->offset + before->elements;
    }
    *end = round_up(added.offset + elements, PARAMETER_ALIGNMENT);
    added.elements = *end - added.offset;
    arrput(*list, added);
}

/* Names of a target's A and B, by family. */
static const char *const adapter_names[ADAPTER_TARGET_COUNT][NAMINGS][2] = {
#define PAIR(layer) \
    { layer ".lora_A.weight", layer ".lora_B.weight" }
#define LAYERS(gpt2, llama, ungated, fused, granite4) \
    { PAIR(gpt2), PAIR(llama), PAIR(ungated), PAIR(fused), PAIR(granite4) }
#define X(NAME, layers, ...) [ADAPTER_##NAME] = layers,
    ADAPTER_TARGETS(X)
#undef X
#undef LAYERS
};

/* Returns A or B of a target whose weight is [out, in] or, in GPT-2, [in, out]. A starts with the
 * variance of PEFT's uniform distribution, 1 / (3 inputs), B at zero. */
static struct kind adapter_kind(const struct model_shape *s, const struct parameter *weight,
                                enum adapter_target target, bool b, bool fused) {
    const struct extent *extent = &weight->extent;
    const struct side rank = {s->adapter_rank, "adapter.rank"},
                      rows = {extent->rows, extent->rows_of},
                      columns = {extent->columns, extent->columns_of};
    const struct side inputs = s->weights_out_in ? columns : rows,
                      outputs = s->weights_out_in ? rows : columns;
    struct kind kind = {
        .parameter = {.kind = adapter_names[target][site_naming(s, weight->site)][b],
                      .site = weight->site,
                      .group = GROUP_DECAYED,
                      .gradient_from_matmul = true,
                      .fused_with_previous = fused && !b,
                      .adapter = true}};
    struct parameter *p = &kind.parameter;
    p->extent = b ? extent_of(outputs, rank) : extent_of(rank, inputs);
    p->init = b ? INIT_ZERO : 1 / sqrtf(3 * (float)inputs.size);
    p->field = b ? offsetof(struct layer_parameters, lora_b[target])
                 : offsetof(struct layer_parameters, lora_a[target]);
    return kind;
}

/* Appends the adapters of a layer: all A, those of a site adjacent, then all B. */
static void list_adapters(struct parameter **list, const struct model_shape *s,
                          const struct kind *kinds, int layer, int64_t *end) {
    static const size_t fields[] = {
#define X(NAME, layers, site, field, ...) offsetof(struct layer_parameters, field),
        ADAPTER_TARGETS(X)
#undef X
    };
    for (int b = 0; b < 2; b++) {
        enum autocast_site before = AUTOCAST_SITE_COUNT;
        for (enum adapter_target target = 0; target < ADAPTER_TARGET_COUNT; target++) {
            const struct kind *weight = &kinds[MODEL_KINDS];
            while (weight->parameter.field != fields[target]) weight++;
            if (!shape_has_target(s, target)) continue;
            const struct parameter *p = &weight->parameter;
            struct kind kind = adapter_kind(s, p, target, b, p->site == before);
            append(list, &kind, layer, s, end);
            before = p->site;
        }
    }
}

/* Appends the parameters of one group and moves *end past them. */
static void list_group(struct parameter **list, const struct model_shape *s,
                       enum parameter_group group, int64_t *end) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    for (int layer = 0; group == GROUP_DECAYED && shape_has_adapters(s) && layer < s->n_layer;
         layer++) {
        const struct model_shape own = shape_of_layer(s, layer);
        list_kinds(kinds, &own);
        list_adapters(list, &own, kinds, layer, end);
    }
    list_kinds(kinds, s);
    for (int i = 0; i < MODEL_KINDS; i++)
        if (kinds[i].parameter.group == group && is_present(&kinds[i]))
            append(list, &kinds[i], -1, s, end);
    for (int layer = 0; layer < s->n_layer; layer++) {
        const struct model_shape own = shape_of_layer(s, layer);
        list_kinds(kinds, &own);
        for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
            if (kinds[i].parameter.group == group && is_present(&kinds[i]))
                append(list, &kinds[i], layer, s, end);
    }
}

enum naming site_naming(const struct model_shape *s, enum autocast_site site) {
    const bool mlp = site == SITE_MLP_FC || site == SITE_MLP_PROJECTION;
    if (!s->llama_names) return NAMES_GPT2;
    if (mlp && is_granite4(s)) return NAMES_GRANITE4;
    if ((s->fused && mlp) || (s->fused == FUSED_ALL && site == SITE_QKV)) return NAMES_FUSED;
    return mlp && s->mlp == MLP_RELU2 ? NAMES_UNGATED : NAMES_LLAMA;
}

bool mlp_is_gated(enum model_mlp mlp) {
    static const bool gated[] = {
#define X(NAME, name, is_gated) [MLP_##NAME] = is_gated,
        MLPS(X)
#undef X
    };
    return gated[mlp];
}

int64_t shape_window_layers(const struct model_shape *s) {
    int64_t count = 0;
    for (int64_t l = 0; l < s->n_layer; l++) count += shape_window(s, l) > 0;
    return count;
}

struct parameter *parameter_list(const struct model_shape *shape, int64_t *count) {
    struct parameter *list = NULL;
    *count = 0;
    for (enum parameter_group group = 0; group < PARAMETER_GROUPS; group++)
        list_group(&list, shape, group, count);
    return list;
}

ptrdiff_t parameter_trained_count(const struct parameter *list) {
    ptrdiff_t count = 0;
    while (count < arrlen(list) && list[count].group != GROUP_FROZEN) count++;
    return count;
}

ptrdiff_t parameter_adapter_count(const struct parameter *list) {
    ptrdiff_t count = 0;
    while (count < arrlen(list) && list[count].adapter) count++;
    return count;
}

static const struct parameter *find_field(const struct parameter *list, size_t field) {
    for (ptrdiff_t i = 0; i < arrlen(list); i++)
        if (list[i].layer < 0 && list[i].field == field) return &list[i];
    return NULL;
}

const struct parameter *parameter_wte(const struct parameter *list) {
    return find_field(list, offsetof(struct parameters, wte));
}

const struct parameter *parameter_head(const struct parameter *list) {
    const struct parameter *head = find_field(list, offsetof(struct parameters, lm_head));
    return head ? head : parameter_wte(list);
}

int64_t parameter_count(const struct parameter *parameter) {
    const struct extent *extent = &parameter->extent;
    return extent->rows * (extent->columns ? extent->columns : 1);
}

struct tensor *parameter_tensor(struct parameters *parameters, const struct parameter *parameter) {
    char *owner =
        parameter->layer < 0 ? (char *)parameters : (char *)&parameters->layers[parameter->layer];
    return (struct tensor *)(owner + parameter->field);
}

int64_t shape_parameter_count(const struct model_shape *shape) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t count = 0;
    for (int64_t layer = -1; layer < shape->n_layer; layer++) {
        const struct model_shape own = shape_of_layer(shape, layer);
        const int first = layer < 0 ? 0 : MODEL_KINDS;
        list_kinds(kinds, &own);
        for (int i = first; i < first + (layer < 0 ? (int)MODEL_KINDS : (int)LAYER_KINDS); i++)
            if (is_present(&kinds[i])) count += parameter_count(&kinds[i].parameter);
    }
    return count;
}

int64_t site_inputs(const struct model_shape *s, enum autocast_site site) {
#define X(SITE, inputs, ...) \
    if (site == SITE_##SITE) return inputs;
    LINEAR_LAYERS(X)
#undef X
    return 0;
}

int64_t site_outputs(const struct model_shape *s, enum autocast_site site) {
#define X(SITE, inputs, outputs, ...) \
    if (site == SITE_##SITE) return outputs;
    LINEAR_LAYERS(X)
#undef X
    return 0;
}

int64_t shape_layer_multiply_adds(const struct model_shape *shape, enum autocast_site site) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t total = 0;
    list_kinds(kinds, shape);
    for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++) {
        const struct parameter *p = &kinds[i].parameter;
        if (is_present(&kinds[i]) && p->gradient_from_matmul &&
            (site == AUTOCAST_SITE_COUNT || p->site == site))
            total += parameter_count(p);
    }
    return total;
}
