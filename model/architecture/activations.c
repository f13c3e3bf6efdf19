#include "model/architecture/activations.h"

#define BETWEEN(WRITER, READER) .writer = SITE_##WRITER, .reader = SITE_##READER
#define RESIDUAL_STREAM         .residual = true
#define OWN(level)              .recomputed = level
#define READ_ONCE(level)        .recomputed = level, .read_once = true
#define IN(scratch, level)      .memory = SCRATCH_##scratch, .recomputed = level
#define GRADIENT_IN(scratch)    .gradient = SCRATCH_##scratch
#define GRADIENT_IN_PLACE       .gradient_in_place = true
#define NO_GRADIENT             .gradient = SCRATCH_NONE

const struct activation activation_table[] = {
#define X(member, title, dtype, rows, columns, memory_, gradient_) \
    {.name = title,                                                \
     .layered = true,                                              \
     dtype,                                                        \
     memory_,                                                      \
     gradient_,                                                    \
     .field = offsetof(struct layer_activations, member),          \
     .gradient_field = offsetof(struct activation_gradients, member)},
    LAYER_ACTIVATIONS(X)
#undef X
#define X(member, title, dtype, rows, columns, memory_, gradient_) \
    {.name = title,                                                \
     dtype,                                                        \
     memory_,                                                      \
     gradient_,                                                    \
     .field = offsetof(struct activations, member),                \
     .gradient_field = offsetof(struct activation_gradients, member)},
        MODEL_ACTIVATIONS(X)
#undef X
#define X(member, elements, level) \
    {.layered = true,              \
     .statistic = true,            \
     .recomputed = level,          \
     .field = offsetof(struct layer_activations, member)},
            LAYER_STATISTICS(X)
#undef X
#define X(member, elements, level) \
    {.statistic = true, .recomputed = level, .field = offsetof(struct activations, member)},
                MODEL_STATISTICS(X)
#undef X
};

struct tensor *activation_tensor(struct activations *all, enum activation_id id, int64_t layer) {
    const struct activation *a = &activation_table[id];
    char *owner = a->layered ? (char *)&all->layers[layer] : (char *)all;
    return (struct tensor *)(owner + a->field);
}

struct tensor *activation_gradient(struct activations *all, enum activation_id id) {
    return (struct tensor *)((char *)&all->gradients + activation_table[id].gradient_field);
}

struct extent activation_extent(enum activation_id id, const struct model_shape *shape,
                                int64_t layer) {
    const struct model_shape own = shape_of_layer(shape, layer), *s = &own;
    const struct extent extents[] = {
#define X(field, name, dtype, rows_, columns_, ...) \
    {.rows = rows_, .columns = columns_, .padded_rows = rows_},
        LAYER_ACTIVATIONS(X) MODEL_ACTIVATIONS(X)
#undef X
#define X(field, elements, level) {.rows = elements, .padded_rows = elements},
            LAYER_STATISTICS(X) MODEL_STATISTICS(X)
#undef X
    };
    return extents[id];
}
