/* Ways to need less memory, from the cheapest to the costliest, and the least that has to change
 * for a run to fit. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/core/memory_parts.h"

/* What an option does to the numbers that are computed. */
enum memory_bits {
    MEMORY_UNCHANGED, /* no option was chosen */
    MEMORY_SAME_BITS,
    MEMORY_OTHER_ORDER, /* of the same sums: other rounding, no less exact */
    MEMORY_LESS_EXACT,  /* something is stored or computed in fewer bits */
};

/* In order of cost. The residual stream in 16 bit comes after the micro-batch: it is rounded in
 * each layer of each pass, and what it saves, activations, all options before it save too without
 * touching a value. Gradients and moments are rounded where they are stored, once a step or
 * micro-batch, and no micro-batch makes them smaller. */
enum memory_option {
    MEMORY_SPLIT, /* a copy of bf16 weights that is kept becomes the upper half of the masters */
    MEMORY_RECOMPUTE_GELU,
    MEMORY_RECOMPUTE_LAYER,
    MEMORY_GRADIENTS, /* in 16 bit */
    MEMORY_MOMENTS,   /* in 16 bit */
    MEMORY_CAST,      /* a copy of fp16 weights that is kept is made when needed */
    MEMORY_OFFLOAD,   /* the optimizer's state is kept on the host */
    MEMORY_MICRO_BATCH,
    MEMORY_RESIDUAL,  /* in 16 bit */
    MEMORY_PRECISION, /* fp32 becomes bf16, or fp16 where there is no bf16 */
    MEMORY_OPTIONS
};

/* Sets the option in config; the micro-batch becomes the next smaller one with which a step sees
 * the same sequences, so that it can be asked for again. Returns false, and changes nothing, where
 * the option is set already, or would have no effect or no valid value. */
bool memory_apply(struct config *config, enum memory_option option, const struct backend *be);

/* The keys that it sets, with their values in config: "KEY=VALUE". Returns false if there is no
 * key `index`, counted from 0. */
enum { MEMORY_SETTING_MAX = 64 };
bool memory_option_setting(char text[MEMORY_SETTING_MAX], enum memory_option option, int index,
                           const struct config *config);

/* What it costs to go from one config to another by this option, in at most 35 columns. */
enum { MEMORY_COST_MAX = 64 };
void memory_option_cost(char text[MEMORY_COST_MAX], enum memory_option option,
                        const struct config *from, const struct config *to, struct backend *be);

/* How long what config offloads takes to come and go, both at once, over be->device.link: what a
 * step takes at least, and about what it takes longer. */
double memory_offload_seconds(const struct config *config, struct backend *be);

/* Multiply-adds that train.recompute of config does once more, as a part of all of a step that
 * keeps everything. Products and attention are counted, as the model's shape has them. */
double memory_recomputed_part(const struct config *config, const struct backend *be);

struct memory_advice {
    struct config config; /* with the options set */
    struct memory_plan plan;
    bool chosen[MEMORY_OPTIONS]; /* of what fits; none: config does as it is */
    enum memory_bits bits;       /* what all that was chosen does to them */
};

/* The set of options of least cost with which a plan is at most `memory` bytes. Of two sets the one
 * whose costliest option is cheaper costs less; if that is the same, the next one decides, and so
 * on: as with numbers whose first digit is the costliest option. So no chosen option could be left
 * out without a costlier one in its place. Returns RESULT_NONE if no set fits, with the smallest
 * plan there is as far as layouts tell; -1 with a message. be as in memory_plan.h. */
int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, struct error *error);
