/* A pair of answers in a batch: the loader writes it, and preference losses read it
 * (kernels/preference_args.h). */
#pragma once

#include <stdint.h>

enum { PREFERENCE_CHOSEN, PREFERENCE_REJECTED, PREFERENCE_SIDES };

/* Rows of the batch with the documents of a pair: [begin, end) of each, of which the targets from
 * row `answer` on are the answer's. */
struct preference_pair {
    int32_t begin[PREFERENCE_SIDES], answer[PREFERENCE_SIDES], end[PREFERENCE_SIDES];
    float reference[PREFERENCE_SIDES]; /* log-probability of each answer by the reference model, or
                                        * 0 if it is not known */
    int32_t undesirable;               /* KTO: 1 if the answer is undesirable */
    uint32_t piece; /* index of the chosen document (data/corpus/packing.h); not read by losses */
};
