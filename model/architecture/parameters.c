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
static void list_kinds(struct kind kinds[MODEL_KINDS + LAYER_KINDS], const struct gpt_shape *s) {
#define KIND(owner, layer_, member, gpt2, llama, extent_, site_, group_, init_, gradient_) \
    {.parameter = {.layer = layer_,                                                        \
                   .field = offsetof(struct owner, member),                                \
                   .extent = extent_,                                                      \
                   .group = GROUP_##group_,                                                \
                   .site = site_,                                                          \
                   .init = init_},                                                         \
     .names = {gpt2, llama},                                                               \
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
        p->kind = kinds[i].names[s->weights_out_in];
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
                   const struct gpt_shape *s, int64_t *end) {
    struct parameter added = kind->parameter;
    const struct extent *extent = &added.extent;
    int64_t elements = extent->padded_rows * (extent->columns ? extent->columns : 1);
    added.layer = layer;
    if (layer < 0) snprintf(added.name, sizeof added.name, "%s", added.kind);
    else
        snprintf(added.name, sizeof added.name,
                 s->weights_out_in ? "model.layers.%d.%s" : "h.%d.%s", layer, added.kind);
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

/* Appends the parameters of one group and moves *end past them. */
static void list_group(struct parameter **list, const struct gpt_shape *s,
                       enum parameter_group group, int64_t *end) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    list_kinds(kinds, s);
    for (int i = 0; i < MODEL_KINDS; i++)
        if (kinds[i].parameter.group == group && is_present(&kinds[i]))
            append(list, &kinds[i], -1, s, end);
    for (int layer = 0; layer < s->n_layer; layer++)
        for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
            if (kinds[i].parameter.group == group && is_present(&kinds[i]))
                append(list, &kinds[i], layer, s, end);
}

static const struct {
    bool gated;
    enum gate_function gate;
} mlps[] = {
#define X(NAME, name, ...) [MLP_##NAME] = {__VA_ARGS__},
    MLPS(X)
#undef X
};

bool mlp_is_gated(enum model_mlp mlp) {
    return mlps[mlp].gated;
}

enum gate_function mlp_gate(enum model_mlp mlp) {
    return mlps[mlp].gate;
}

bool shape_is_gpt2(const struct gpt_shape *s) {
    return s->norm == NORM_LAYERNORM && s->positions == POSITIONS_LEARNED && s->mlp == MLP_GELU &&
           s->bias == BIAS_ALL && s->tied_head && s->n_kv_head == s->n_head &&
           shape_q(s) == s->n_embd && !s->qk_norm;
}

bool shape_is_llama(const struct gpt_shape *s) {
    return s->norm == NORM_RMSNORM && s->positions == POSITIONS_ROPE && s->mlp == MLP_SWIGLU &&
           (!s->qk_norm || s->bias == BIAS_NONE) && (!s->window || s->bias != BIAS_ALL);
}

struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count) {
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

int64_t shape_parameter_count(const struct gpt_shape *shape) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t model = 0, layer = 0;
    list_kinds(kinds, shape);
    for (int i = 0; i < MODEL_KINDS + LAYER_KINDS; i++)
        if (is_present(&kinds[i]))
            *(i < MODEL_KINDS ? &model : &layer) += parameter_count(&kinds[i].parameter);
    return model + shape->n_layer * layer;
}

int64_t shape_layer_multiply_adds(const struct gpt_shape *shape, enum autocast_site site) {
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
