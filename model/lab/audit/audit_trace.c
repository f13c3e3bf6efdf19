#include "model/lab/audit/audit_trace.h"

#include <assert.h>

#include <stb/stb_ds.h>

static const struct {
    const char *name;
    bool layered;
    unsigned words;
} places[] = {
#define X(id, name, layered, dtype, words) [PLACE_##id] = {name, layered, words},
    FORWARD_PLACES(X) BACKWARD_PLACES(X)
#undef X
};

const char *place_name(enum place place) {
    return places[place].name;
}

bool place_is_gradient(enum place place) {
    return place >= PLACE_D_LOGITS;
}

bool place_is_layered(enum place place) {
    return places[place].layered;
}

unsigned place_words(enum place place) {
    return places[place].words;
}

enum dtype place_dtype(enum place place, const struct precision *precision) {
    switch (place) {
#define X(id, name, layered, dtype, words) \
    case PLACE_##id: return precision->dtype;
        FORWARD_PLACES(X)
        BACKWARD_PLACES(X)
#undef X
    case PLACE_PARAMETER: break;
    }
    return precision->gradients;
}

/* The products of one operation as they are found. */
struct finding {
    const struct gpt *gpt;
    struct product *products;
    int count;
};

static void add_part(struct finding *finding, enum place place, int layer,
                     const struct tensor *tensor, int64_t first, int64_t total) {
    assert(finding->count < PRODUCTS_MAX);
    finding->products[finding->count++] = (struct product){place, layer, -1, *tensor, first, total};
}

static void add(struct finding *finding, enum place place, int layer, const struct tensor *tensor) {
    add_part(finding, place, layer, tensor, 0, tensor_count(tensor));
}

/* The parameter that lies at this address of a flat array, or -1. */
static int parameter_at(const struct gpt *gpt, const struct tensor *flat, const void *data) {
    const char *begin = flat->data, *at = data;
    if (!begin || at < begin || at >= begin + tensor_bytes(flat)) return -1;
    int64_t offset = (int64_t)((size_t)(at - begin) / dtype_bytes(flat->dtype));
    int found = 0;
    for (int i = 0; i < (int)arrlen(gpt->list); i++)
        if (gpt->list[i].offset <= offset && gpt->list[i].offset >= gpt->list[found].offset)
            found = i;
    return found;
}

static int weight_at(const struct gpt *gpt, const void *data) {
    int lower = parameter_at(gpt, &gpt->lower, data);
    return lower >= 0 ? lower : parameter_at(gpt, &gpt->master, data);
}

/* "h.3.attn.c_attn.weight" is of layer 3. */
static int layer_of(const struct gpt *gpt, int parameter) {
    int layer = 0;
    if (sscanf(gpt->list[parameter].name, "h.%d.", &layer) != 1) return 0;
    return layer;
}

static void add_parameter(struct finding *finding, const struct tensor *gradient) {
    const struct gpt *gpt = finding->gpt;
    int parameter = parameter_at(gpt, &gpt->gradients, gradient->data);
    assert(parameter >= 0);
    add(finding, PLACE_PARAMETER, layer_of(gpt, parameter), gradient);
    finding->products[finding->count - 1].parameter = parameter;
}

/* The first row of a chunk of rows, by where it lies in what holds all of them. */
static int64_t row_of(const void *chunk, const struct tensor *whole, int64_t columns) {
    size_t row = (size_t)columns * dtype_bytes(whole->dtype);
    return (int64_t)((size_t)((const char *)chunk - (const char *)whole->data) / row);
}

static void trace_embedding_forward(struct finding *finding,
                                    const struct embedding_forward_args *args) {
    add(finding, PLACE_RESIDUAL, 0, args->out);
}

static void trace_embedding_backward(struct finding *finding,
                                     const struct embedding_backward_args *args) {
    add_parameter(finding, args->dtoken_table);
    add_parameter(finding, args->dposition_table);
}

/* Which norm it is, by its weights: the first or second one of a layer, or the last of all. */
enum norm { NORM_FIRST, NORM_SECOND, NORM_LAST };

static enum norm find_norm(const struct gpt *gpt, const struct tensor *weight, int *layer) {
    for (*layer = 0; *layer < gpt->shape.n_layer; ++*layer) {
        if (weight->data == gpt->weights.layers[*layer].ln1_weight.data) return NORM_FIRST;
        if (weight->data == gpt->weights.layers[*layer].ln2_weight.data) return NORM_SECOND;
    }
    *layer = 0;
    return NORM_LAST;
}

static void trace_layernorm_forward(struct finding *finding,
                                    const struct layernorm_forward_args *args) {
    static const enum place outs[] = {PLACE_LN1, PLACE_LN2, PLACE_LNF};
    static const enum place sums[] = {PLACE_RESIDUAL, PLACE_RESIDUAL_MID, PLACE_RESIDUAL_FINAL};
    int layer;
    enum norm norm = find_norm(finding->gpt, args->weight, &layer);
    if (args->sum) add(finding, sums[norm], layer, args->sum);
    add(finding, outs[norm], layer, args->out);
}

/* Beside the gradient of the residual stream: the one of the branch below, which is the same or a
 * rounded copy. Below the first norm of layer 0 there is none. */
static void trace_layernorm_backward(struct finding *finding,
                                     const struct layernorm_backward_args *args) {
    static const enum place residuals[] = {PLACE_D_RESIDUAL, PLACE_D_RESIDUAL_MID,
                                           PLACE_D_RESIDUAL_FINAL};
    static const enum place branches[] = {PLACE_D_MLP_PROJECTION, PLACE_D_ATTENTION_PROJECTION,
                                          PLACE_D_MLP_PROJECTION};
    int layer, below;
    enum norm norm = find_norm(finding->gpt, args->weight, &layer);
    below = norm == NORM_FIRST  ? layer - 1
            : norm == NORM_LAST ? (int)finding->gpt->shape.n_layer - 1
                                : layer;
    add(finding, residuals[norm], layer, args->din);
    if (below >= 0)
        add(finding, branches[norm], below, args->din_lower ? args->din_lower : args->din);
    add_parameter(finding, args->dweight);
    add_parameter(finding, args->dbias);
}

/* The head works on chunks of rows. */
static void trace_head(struct finding *finding, const struct matmul_args *args) {
    const struct gpt *gpt = finding->gpt;
    const struct tensor *norm = &gpt->activations.lnf_out;
    int64_t columns = tensor_columns(args->out), all = gpt->shape.rows * columns;
    if (args->transpose_b) {
        int64_t row = row_of(args->a->data, norm, tensor_columns(norm));
        add_part(finding, PLACE_LOGITS, 0, args->out, row * columns, all);
    } else {
        struct tensor dnorm = tensor_as(&gpt->activations.dnorm, args->out->dtype);
        int64_t row = row_of(args->out->data, &dnorm, columns);
        add_part(finding, PLACE_D_LNF, 0, args->out, row * columns, all);
    }
}

static enum place linear_place(enum autocast_operation operation, bool backward) {
    switch (operation) {
    case OPERATION_QKV: return backward ? PLACE_D_LN1 : PLACE_QKV;
    case OPERATION_ATTENTION_PROJECTION:
        return backward ? PLACE_D_ATTENTION : PLACE_ATTENTION_PROJECTION;
    case OPERATION_MLP_FC: return backward ? PLACE_D_LN2 : PLACE_GELU;
    case OPERATION_MLP_PROJECTION: return backward ? PLACE_D_MLP_FC : PLACE_MLP_PROJECTION;
    default: return PLACES;
    }
}

static void trace_matmul(struct finding *finding, const struct matmul_args *args) {
    const struct gpt *gpt = finding->gpt;
    if (args->transpose_a) {
        add_parameter(finding, args->out);
        if (args->dbias) add_parameter(finding, args->dbias);
        return;
    }
    int weight = weight_at(gpt, args->b->data);
    assert(weight >= 0);
    if (gpt->list[weight].operation == OPERATION_LM_HEAD) {
        trace_head(finding, args);
        return;
    }
    int layer = layer_of(gpt, weight);
    if (args->gelu_in) add(finding, PLACE_MLP_FC, layer, args->gelu_in);
    add(finding, linear_place(gpt->list[weight].operation, args->transpose_b), layer, args->out);
}

static int attention_layer(const struct gpt *gpt, const struct tensor *qkv) {
    int layer = 0;
    while (layer < gpt->shape.n_layer && gpt->activations.layers[layer].qkv.data != qkv->data)
        layer++;
    assert(layer < gpt->shape.n_layer);
    return layer;
}

static void trace_attention_forward(struct finding *finding,
                                    const struct attention_forward_args *args) {
    add(finding, PLACE_ATTENTION, attention_layer(finding->gpt, args->qkv), args->out);
}

static void trace_attention_backward(struct finding *finding,
                                     const struct attention_backward_args *args) {
    add(finding, PLACE_D_QKV, attention_layer(finding->gpt, args->qkv), args->dqkv);
}

static void trace_cross_entropy(struct finding *finding, const struct cross_entropy_args *args) {
    const struct gpt *gpt = finding->gpt;
    if (!args->loss_scale) return;
    int64_t row = row_of(args->losses, &gpt->activations.losses, 1);
    int64_t columns = tensor_columns(args->logits);
    add_part(finding, PLACE_D_LOGITS, 0, args->logits, row * columns, gpt->shape.rows * columns);
}

int trace_products(struct product products[PRODUCTS_MAX], const struct gpt *gpt,
                   enum operation_id id, const void *args) {
    struct finding finding = {gpt, products, 0};
    assert(gpt->sharing == SHARE_NOTHING);
    switch (id) {
    case ID_embedding_forward: trace_embedding_forward(&finding, args); break;
    case ID_embedding_backward: trace_embedding_backward(&finding, args); break;
    case ID_layernorm_forward: trace_layernorm_forward(&finding, args); break;
    case ID_layernorm_backward: trace_layernorm_backward(&finding, args); break;
    case ID_matmul: trace_matmul(&finding, args); break;
    case ID_attention_forward: trace_attention_forward(&finding, args); break;
    case ID_attention_backward: trace_attention_backward(&finding, args); break;
    case ID_cross_entropy: trace_cross_entropy(&finding, args); break;
    default: break;
    }
    return finding.count;
}

void place_label(char *label, size_t size, enum place place, int layer) {
    if (place_is_layered(place)) snprintf(label, size, "layer %d %s", layer, place_name(place));
    else snprintf(label, size, "%s", place_name(place));
}
