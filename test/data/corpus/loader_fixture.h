/* Shared by the tests of the loader. */
#pragma once

#include <criterion/criterion.h>

#include "data/corpus/loader.h"

/* Reads tokens and targets, and compares the number of targets with that of loader_target_count. */
static inline int fetch(const struct loader *loader, int32_t *tokens, int32_t *targets,
                        uint64_t first_sample, int count, struct error *error) {
    struct loader_arrays arrays = {.tokens = tokens, .targets = targets};
    if (loader_batch(loader, &arrays, first_sample, count, error)) return -1;
    cr_expect_eq(arrays.counted, loader_target_count(loader, first_sample, (uint64_t)count));
    return 0;
}
