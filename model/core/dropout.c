#include "model/core/dropout.h"

#include "data/util/random.h"

struct dropout dropout_of(const struct config *config) {
    return (struct dropout){.residual = config->model.dropout,
                            .adapter = config->adapter.dropout,
                            .seed = (uint64_t)config->seed};
}

struct rounding_key dropout_key(const struct dropout *dropout, enum dropout_use use, int64_t layer,
                                int which) {
    enum { STREAM = 0x64726f70 }; /* distinguishes these bits from other uses of the seed */
    uint64_t counter = ((uint64_t)layer << 8) + (uint64_t)use + (uint64_t)which;
    uint64_t bits = random_bits(dropout->seed, STREAM, counter);
    return (struct rounding_key){(uint32_t)bits, (uint32_t)(bits >> 32)};
}
