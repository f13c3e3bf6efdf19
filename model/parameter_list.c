#include "model/parameter_list.h"

#include <math.h>

#include <stb/stb_ds.h>

#include "kernels/arena.h"

struct gpt_shape parameter_shape(const struct config *config) {
    return (struct gpt_shape){
        .n_layer = config->model.n_layer,
        .n_head = config->model.n_head,
        .n_embd = config->model.n_embd,
        .n_positions = config->model.n_positions,
        .vocab_size = config->model.vocab_size,
        .padded_vocab = round_up(config->model.vocab_size, VOCAB_ALIGNMENT),
    };
}

int64_t parameter_elements(int64_t rows, int64_t columns) {
    return round_up(rows * (columns ? columns : 1), PARAMETER_ALIGNMENT);
}

static struct parameter describe(const char *name, int layer, int64_t rows, int64_t columns,
                                 enum autocast_operation operation, bool decay, float init) {
    struct parameter parameter = {"", rows, columns, 0, decay, operation, init};
    if (layer < 0) snprintf(parameter.name, sizeof parameter.name, "%s", name);
    else snprintf(parameter.name, sizeof parameter.name, "h.%d.%s", layer, name);
    return parameter;
}

/* Appends the parameters of one decay group and moves *offset past them. */
static void list_group(struct parameter **list, const struct gpt_shape *s, bool group,
                       int64_t *offset) {
#define ADD(layer, name, rows, columns, operation, decay, init)                       \
    if ((decay) == group) {                                                           \
        struct parameter added =                                                      \
            describe(name, layer, rows, columns, OPERATION_##operation, decay, init); \
        added.offset = *offset;                                                       \
        *offset += parameter_elements(rows, columns);                                 \
        arrput(*list, added);                                                         \
    }
#define X(field, name, rows, columns, operation, decay, init) \
    ADD(-1, name, rows, columns, operation, decay, init)
    MODEL_PARAMETERS(X)
#undef X
#define X(field, name, rows, columns, operation, decay, init) \
    ADD(layer, name, rows, columns, operation, decay, init)
    for (int layer = 0; layer < s->n_layer; layer++) {
        LAYER_PARAMETERS(X)
    }
#undef X
#undef ADD
}

struct parameter *parameter_list(const struct gpt_shape *shape, int64_t *count, int64_t *decayed) {
    struct parameter *list = NULL;
    *decayed = 0;
    list_group(&list, shape, true, decayed);
    *count = *decayed;
    list_group(&list, shape, false, count);
    for (ptrdiff_t i = 0; i < arrlen(list); i++) /* in files there is no padding */
        if (list[i].operation == OPERATION_LM_HEAD) list[i].rows = shape->vocab_size;
    return list;
}
