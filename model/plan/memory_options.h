/* Options that reduce the memory of a run, in order of cost, and the search for the cheapest set
 * with which a run fits. */
#pragma once

#include "data/util/error.h"
#include "kernels/backend.h"
#include "model/config/config.h"
#include "model/core/memory_parts.h"

/* Effect of an option on the computed values. */
enum memory_bits {
    MEMORY_UNCHANGED, /* no option chosen */
    MEMORY_SAME_BITS,
    MEMORY_OTHER_ORDER, /* other summation order: rounds differently, equally exact */
    MEMORY_LESS_EXACT,  /* some values are stored or computed in fewer bits */
};

/* Options in order of cost. A 16-bit residual stream costs more than a smaller micro-batch: both
 * reduce activations, but the residual stream is rounded in each layer of each pass. 16-bit
 * gradients and moments cost less: they are rounded once per step or micro-batch, and no
 * micro-batch size reduces them. */
enum memory_option {
    MEMORY_SPLIT, /* bf16 weights are the upper halves of split master weights, not a copy */
    MEMORY_RECOMPUTE_GELU,
    MEMORY_RECOMPUTE_LAYER,
    MEMORY_GRADIENTS, /* in 16 bit */
    MEMORY_MOMENTS,   /* in 16 bit */
    MEMORY_CODES,     /* moments in 8 bits */
    MEMORY_CAST,      /* fp16 weights are cast in each pass instead of kept as a copy */
    MEMORY_SAVED,     /* saved activations in host memory */
    MEMORY_OFFLOAD,   /* optimizer state in host memory */
    MEMORY_STREAM,    /* weights of layers in host memory, copied in each pass */
    MEMORY_SENT,      /* gradients of layers in host memory */
    MEMORY_TEXTS,     /* fewer texts that are sampled at once */
    MEMORY_MICRO_BATCH,
    MEMORY_RESIDUAL,  /* in 16 bit */
    MEMORY_BASE,      /* frozen linear layers in 4 bits */
    MEMORY_PRECISION, /* bf16 instead of fp32, or fp16 on a device without bf16 */
    MEMORY_OPTIONS
};

/* Sets the option in config. MEMORY_MICRO_BATCH chooses the next smaller size that divides the
 * sequences of a step, so it can be applied repeatedly. Returns false, without a change, if the
 * option is already set, has no effect or has no valid value. */
bool memory_apply(struct config *config, enum memory_option option, const struct backend *be);

/* Writes "KEY=VALUE" for key `index` of the option, with its value in config. Returns false if the
 * option sets no key of that index, counted from 0. */
enum { MEMORY_SETTING_MAX = 64 };
bool memory_option_setting(char text[MEMORY_SETTING_MAX], enum memory_option option, int index,
                           const struct config *config);

/* Describes the cost of changing `from` to `to` by this option, in at most 35 columns. */
enum { MEMORY_COST_MAX = 64 };
void memory_option_cost(char text[MEMORY_COST_MAX], enum memory_option option,
                        const struct config *from, const struct config *to, struct backend *be);

struct memory_advice {
    struct config config; /* config with the chosen options */
    struct memory_plan plan;
    bool chosen[MEMORY_OPTIONS]; /* all false: config fits as it is */
    enum memory_bits bits;       /* combined effect of the chosen options */
};

/* Finds the cheapest set of options whose plan is at most `memory` bytes. Sets are compared by
 * their costliest option, then by the next costliest, and so on, like numbers by their digits.
 * Hence each chosen option could be replaced only by a costlier one. What a set keeps on the host
 * is at most `host` bytes; SIZE_MAX: any. Returns RESULT_NONE if no set fits, with the plan of the
 * smallest layout; -1 with a message. be: see memory_plan.h. */
int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, size_t host, struct error *error);
