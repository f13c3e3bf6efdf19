#include "model/core/dropout.h"

#include "data/util/random.h"

struct dropout dropout_of(const struct config *config) {
    return (struct dropout){.residual = config_drops(config) ? config->model.dropout : 0,
                            .adapter = config_drops(config) ? config->adapter.dropout : 0,
                            .seed = (uint64_t)config->seed};
}

struct rounding_key dropout_key(const struct dropout *dropout, enum dropout_use use,
                                int64_t layer) {
    enum { STREAM = 0x64726f70 }; /* distinguishes these bits from other uses of the seed */
    _Static_assert(DROPOUT_USES <= 1 << 8, "a counter holds the layer and the use");
    uint64_t bits = random_bits(dropout->seed, STREAM, ((uint64_t)layer << 8) + (uint64_t)use);
    return (struct rounding_key){(uint32_t)bits, (uint32_t)(bits >> 32)};
}
