/* The least that has to change for a run to fit. */
#pragma once

#include "data/base/error.h"
#include "model/gpt.h"
#include "model/lab/memory/memory_options.h"

struct memory_advice {
    struct config config; /* with the options set */
    struct memory_plan plan;
    bool chosen[MEMORY_OPTIONS]; /* of what fits; none: config does as it is */
};

/* The set of options of least cost with which a plan is at most `memory` bytes. Of two sets the one
 * whose costliest option is cheaper costs less; if that is the same, the next one decides, and so
 * on: as with numbers whose first digit is the costliest option. So no chosen option could be left
 * out without a costlier one in its place. Returns RESULT_NONE if no set fits, with the smallest
 * plan there is as far as layouts tell; -1 with a message. be as in memory_plan.h. */
int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, struct error *error);

bool memory_advice_changes(const struct memory_advice *advice); /* anything was chosen */

/* What all that was chosen does to the numbers that are computed. */
enum memory_bits memory_advice_bits(const struct memory_advice *advice);
