#include "kernels/collectives.h"

static uint64_t alone_reduce_scatter(const struct collectives *c, void *data, enum dtype dtype,
                                     int64_t count) {
    (void)c, (void)data, (void)dtype, (void)count;
    return 0;
}

static uint64_t alone_all_gather(const struct collectives *c, void *data, size_t element_bytes,
                                 int64_t count) {
    (void)c, (void)data, (void)element_bytes, (void)count;
    return 0;
}

static void alone_wait(const struct collectives *c, uint64_t ticket) {
    (void)c, (void)ticket;
}

static void alone_close(const struct collectives *c) {
    (void)c;
}

static const struct collective_functions alone_functions = {alone_reduce_scatter, alone_all_gather,
                                                            alone_wait, alone_close, NULL};
const struct collectives collectives_alone = {&ranks_alone, &alone_functions, NULL, ""};
