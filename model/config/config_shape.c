#include "model/config/config_shape.h"

#include "kernels/arena.h"

struct gpt_shape config_shape(const struct config *config) {
    return (struct gpt_shape){
#define X(size) .size = config->model.size,
        MODEL_SIZES(X)
#undef X
            .padded_vocab = round_up(config->model.vocab_size, VOCAB_ALIGNMENT),
    };
}
