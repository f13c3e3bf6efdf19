#include "model/architecture/activations.h"

#define BETWEEN(WRITER, READER) .writer = SITE_##WRITER, .reader = SITE_##READER
#define RESIDUAL_STREAM         .residual = true
#define OWN(level)              .shared = level
#define IN(scratch, level)      .memory = SCRATCH_##scratch, .shared = level
#define GRADIENT_IN(scratch)    .gradient = SCRATCH_##scratch
#define GRADIENT_IN_PLACE       .gradient_in_place = true
#define NO_GRADIENT             .gradient = SCRATCH_NONE

const struct activation activation_table[ACTIVATION_COUNT] = {
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
};

struct extent activation_extent(enum activation_id id, const struct gpt_shape *shape) {
    const struct gpt_shape *s = shape;
    switch (id) {
#define X(field, name, dtype, rows, columns, ...) \
    case ACTIVATION_##field: return MATRIX(rows, columns);
        LAYER_ACTIVATIONS(X)
        MODEL_ACTIVATIONS(X)
#undef X
    case ACTIVATION_COUNT: break;
    }
    return (struct extent){0};
}

const struct statistic statistic_table[STATISTIC_COUNT] = {
#define X(member, elements, level) {true, level, offsetof(struct layer_activations, member)},
    LAYER_STATISTICS(X)
#undef X
#define X(member, elements, level) {false, level, offsetof(struct activations, member)},
        MODEL_STATISTICS(X)
#undef X
};

int64_t statistic_elements(int statistic, const struct gpt_shape *shape) {
    const struct gpt_shape *s = shape;
#define X(field, elements, level) elements,
    const int64_t all[] = {LAYER_STATISTICS(X) MODEL_STATISTICS(X)};
#undef X
    return all[statistic];
}
