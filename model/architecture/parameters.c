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

enum { ADDED, PRODUCT };

/* Each parameter of the lists once: those of the model, then those of a layer. */
static void list_kinds(struct parameter kinds[MODEL_KINDS + LAYER_KINDS],
                       const struct gpt_shape *s) {
#define KIND(owner, layer_, member, name, extent_, site_, decay_, init_, gradient) \
    {.kind = name,                                                                 \
     .layer = layer_,                                                              \
     .field = offsetof(struct owner, member),                                      \
     .extent = extent_,                                                            \
     .decay = decay_,                                                              \
     .site = SITE_##site_,                                                         \
     .init = init_,                                                                \
     .from_product = gradient},
#define X(...) KIND(parameters, -1, __VA_ARGS__)
#define Y(...) KIND(layer_parameters, 0, __VA_ARGS__)
    const struct parameter all[] = {MODEL_PARAMETERS(X) LAYER_PARAMETERS(Y)};
#undef X
#undef Y
#undef KIND
    memcpy(kinds, all, sizeof all);
}

static void append(struct parameter **list, const struct parameter *kind, int layer,
                   int64_t *offset) {
    struct parameter added = *kind;
    added.layer = layer;
    added.offset = *offset;
    if (layer < 0) snprintf(added.name, sizeof added.name, "%s", kind->kind);
    else snprintf(added.name, sizeof added.name, "h.%d.%s", layer, kind->kind);
    *offset += parameter_elements(&added);
    arrput(*list, added);
}

/* Appends the parameters of one decay group and moves *offset past them. */
static void list_group(struct parameter **list, const struct gpt_shape *s, bool group,
                       int64_t *offset) {
    struct parameter kinds[MODEL_KINDS + LAYER_KINDS];
    list_kinds(kinds, s);
    for (int i = 0; i < MODEL_KINDS; i++)
        if (kinds[i].decay == group) append(list, &kinds[i], -1, offset);
    for (int layer = 0; layer < s->n_layer; layer++)
        for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
            if (kinds[i].decay == group) append(list, &kinds[i], layer, offset);
}

struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count) {
    struct parameter *list = NULL;
    *count = 0;
    list_group(&list, shape, true, count);
    list_group(&list, shape, false, count);
    return list;
}

const struct parameter *parameter_read_by(const struct parameter *list, enum autocast_site site) {
    while (list->site != site) list++;
    return list;
}

int64_t parameter_elements(const struct parameter *parameter) {
    const struct extent *extent = &parameter->extent;
    return round_up(extent->padded_rows * (extent->columns ? extent->columns : 1),
                    PARAMETER_ALIGNMENT);
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
    struct parameter kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t model = 0, layer = 0;
    list_kinds(kinds, shape);
    for (int i = 0; i < MODEL_KINDS; i++) model += parameter_count(&kinds[i]);
    for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
        layer += parameter_count(&kinds[i]);
    return model + shape->n_layer * layer;
}

int64_t shape_layer_products(const struct gpt_shape *shape, enum autocast_site site) {
    struct parameter kinds[MODEL_KINDS + LAYER_KINDS];
    int64_t total = 0;
    list_kinds(kinds, shape);
    for (int i = MODEL_KINDS; i < MODEL_KINDS + LAYER_KINDS; i++)
        if (kinds[i].from_product && (site == AUTOCAST_SITE_COUNT || kinds[i].site == site))
            total += parameter_count(&kinds[i]);
    return total;
}
