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
        if (shape_has_adapters(s)) p->group = GROUP_FROZEN;
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

/* Names of a target's A and B, by family. */
static const char *const adapter_names[ADAPTER_TARGET_COUNT][2][2] = {
#define X(NAME, gpt2, llama, ...)                                       \
    [ADAPTER_##NAME] = {{gpt2 ".lora_A.weight", gpt2 ".lora_B.weight"}, \
                        {llama ".lora_A.weight", llama ".lora_B.weight"}},
    ADAPTER_TARGETS(X)
#undef X
};

/* Returns A or B of a target whose weight is [out, in] or, in GPT-2, [in, out]. A starts with the
 * variance of PEFT's uniform distribution, 1 / (3 inputs), B at zero. */
static struct kind adapter_kind(const struct gpt_shape *s, const struct parameter *weight,
                                enum adapter_target target, bool b, bool fused) {
    int64_t inputs = s->weights_out_in ? weight->extent.columns : weight->extent.rows;
    int64_t outputs = s->weights_out_in ? weight->extent.rows : weight->extent.columns;
    struct kind kind = {.parameter = {.kind = adapter_names[target][s->weights_out_in][b],
                                      .site = weight->site,
                                      .group = GROUP_DECAYED,
                                      .gradient_from_matmul = true,
                                      .fused_with_previous = fused && !b,
                                      .adapter = true}};
    struct parameter *p = &kind.parameter;
    p->extent = b ? ROWS(outputs, s->adapter_rank) : ROWS(s->adapter_rank, inputs);
    p->extent.rows_of = b ? "model.n_embd" : "adapter.rank";
    p->init = b ? INIT_ZERO : 1 / sqrtf(3 * (float)inputs);
    p->field = b ? offsetof(struct layer_parameters, lora_b[target])
                 : offsetof(struct layer_parameters, lora_a[target]);
    return kind;
}

/* Appends the adapters of a layer: all A, those of a site adjacent, then all B. */
static void list_adapters(struct parameter **list, const struct gpt_shape *s,
                          const struct kind *kinds, int layer, int64_t *end) {
    static const size_t fields[] = {
#define X(NAME, gpt2, llama, site, field) offsetof(struct layer_parameters, field),
        ADAPTER_TARGETS(X)
#undef X
    };
    for (int b = 0; b < 2; b++) {
        enum autocast_site before = AUTOCAST_SITE_COUNT;
        for (enum adapter_target target = 0; target < ADAPTER_TARGET_COUNT; target++) {
            const struct kind *weight = &kinds[MODEL_KINDS];
            while (weight->parameter.field != fields[target]) weight++;
            if (!(s->adapter_targets >> target & 1)) continue;
            const struct parameter *p = &weight->parameter;
            struct kind kind = adapter_kind(s, p, target, b, p->site == before);
            append(list, &kind, layer, s, end);
            before = p->site;
        }
    }
}

/* Appends the parameters of one group and moves *end past them. */
static void list_group(struct parameter **list, const struct gpt_shape *s,
                       enum parameter_group group, int64_t *end) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    list_kinds(kinds, s);
    for (int layer = 0; group == GROUP_DECAYED && shape_has_adapters(s) && layer < s->n_layer;
         layer++)
        list_adapters(list, s, kinds, layer, end);
    for (int i = 0; i < MODEL_KINDS; i++)
        if (kinds[i].parameter.group == group && is_present(&kinds[i]))
            append(list, &kinds[i], -1, s, end);
    for (int layer = 0; layer < s->n_layer; layer++)
        for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
            if (kinds[i].parameter.group == group && is_present(&kinds[i]))
                append(list, &kinds[i], layer, s, end);
}

bool mlp_is_gated(enum model_mlp mlp) {
    static const bool gated[] = {
#define X(NAME, name, is_gated) [MLP_##NAME] = is_gated,
        MLPS(X)
#undef X
    };
    return gated[mlp];
}

/* True if a model has parts that neither GPT-2 nor Llama has. */
static bool has_other_parts(const struct gpt_shape *s) {
    return s->norm_zero_centered || s->post_norm || s->scale_embedding ||
           s->rope_theta_window > 0 || s->query_pre_attn_scalar > 0 || s->attention_softcap > 0 ||
           s->logit_softcap > 0;
}

bool shape_is_gpt2(const struct gpt_shape *s) {
    return s->norm == NORM_LAYERNORM && s->positions == POSITIONS_LEARNED && s->mlp == MLP_GELU &&
           s->bias == BIAS_ALL && s->tied_head && s->n_kv_head == s->n_head &&
           shape_q(s) == s->n_embd && !s->qk_norm && !has_other_parts(s);
}

int64_t shape_window_layers(const struct gpt_shape *s) {
    int64_t count = 0;
    for (int64_t l = 0; l < s->n_layer; l++) count += shape_window(s, l) > 0;
    return count;
}

/* Only Qwens may have windows in some layers. */
bool shape_is_llama(const struct gpt_shape *s) {
    const int64_t windows = shape_window_layers(s);
    return s->norm == NORM_RMSNORM && s->positions == POSITIONS_ROPE && s->mlp == MLP_SWIGLU &&
           (!s->qk_norm || s->bias == BIAS_NONE) && (!windows || s->bias != BIAS_ALL) &&
           (!windows || windows == s->n_layer || s->qk_norm || s->bias == BIAS_QKV) &&
           !has_other_parts(s);
}

/* Gemma 2 has soft caps, and Gemma 3 norms of q and k. */
bool shape_is_gemma(const struct gpt_shape *s) {
    return s->norm == NORM_RMSNORM && s->norm_zero_centered && s->post_norm &&
           s->positions == POSITIONS_ROPE && s->mlp == MLP_GEGLU && s->bias == BIAS_NONE &&
           s->scale_embedding &&
           (s->qk_norm ? s->attention_softcap == 0 : s->rope_theta_window == 0);
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

int64_t shape_parameter_count(const struct gpt_shape *shape) {
    struct kind kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t model = 0, layer = 0;
    list_kinds(kinds, shape);
    for (int i = 0; i < MODEL_KINDS + LAYER_KINDS; i++)
        if (is_present(&kinds[i]))
            *(i < MODEL_KINDS ? &model : &layer) += parameter_count(&kinds[i].parameter);
    return model + shape->n_layer * layer;
}

int64_t site_inputs(const struct gpt_shape *s, enum autocast_site site) {
    if (site == SITE_ATTENTION_PROJECTION) return shape_q(s);
    return site == SITE_MLP_PROJECTION ? s->n_inner : s->n_embd;
}

int64_t site_outputs(const struct gpt_shape *s, enum autocast_site site) {
    if (site == SITE_QKV) return shape_qkv(s);
    return site == SITE_MLP_FC ? shape_hidden(s) : s->n_embd;
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
