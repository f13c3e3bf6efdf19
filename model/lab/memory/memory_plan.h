/* Memory plans of variants of a run: what each would take, what fits, what to change. Memory is
 * that of the device; on a CPU all of the run's, but for the program itself and the text that it
 * reads (some 20 MiB). Nothing of the models' memory is taken. `be` is an open backend between two
 * runs of operations; products that a plan walks through are prepared and stay so until it is
 * closed. */
#pragma once

#include "data/base/error.h"
#include "model/gpt.h"

/* The plan of a training run of config: that of trainer_open. Fails with a message where be cannot
 * compute in config's precision. */
int memory_plan_of(struct memory_plan *plan, const struct config *config, struct backend *be,
                   struct error *error);

/* The largest micro-batch, whatever config's, with which the plan is at most `memory` bytes and
 * that a config may have; 0 if that of one sequence is more, MEMORY_NO_STATE if weights,
 * gradients and moments alone are. There is no room for one sequence more; because logits are made
 * in chunks of equal size, there may be for several more. */
enum { MEMORY_NO_STATE = -1 };
int memory_largest_batch(int64_t *batch, const struct config *config, struct backend *be,
                         size_t memory, struct error *error);

/* Whether a run of config may have micro-batches of that size at all. */
bool memory_batch_allowed(const struct config *config, int64_t batch);

/* What a change does to the numbers that are computed. */
enum memory_bits {
    MEMORY_SAME_BITS,
    MEMORY_OTHER_ORDER, /* of the same sums: other rounding, no less exact */
    MEMORY_LESS_EXACT,  /* something is stored or computed in fewer bits */
};

/* Ways to need less memory. */
enum memory_option {
    MEMORY_RECOMPUTE_GELU,
    MEMORY_RECOMPUTE_LAYER,
    MEMORY_MICRO_BATCH, /* divided by its smallest prime factor; more of them per step */
    MEMORY_GRADIENTS,   /* in 16 bit */
    MEMORY_RESIDUAL,    /* in 16 bit */
    MEMORY_OPTIONS
};

/* Sets the option in config. Returns false where it would change nothing or cannot be: `lower` says
 * whether the run computes in 16 bit. */
bool memory_apply(struct config *config, enum memory_option option, bool lower);

/* Multiply-adds that train.recompute of config does once more, as a part of all of a step that
 * keeps everything. Products and attention are counted, as the model's shape has them. */
double memory_recomputed_part(const struct config *config, const struct backend *be);

/* The smallest change with which a plan fits. */
struct memory_advice {
    struct config config;
    struct memory_plan plan;
    enum memory_bits bits;
    char flags[256]; /* "--set KEY=VALUE --set ...", to be appended to the command */
};

/* Tries recomputing first, then smaller micro-batches with it (of which a step has more, so that
 * it sees the same sequences), and what is less exact last. Returns RESULT_NONE if nothing of it
 * fits into `memory` bytes, with the smallest plan that was tried; -1 with a message. */
int memory_advise(struct memory_advice *advice, const struct config *config, struct backend *be,
                  size_t memory, struct error *error);

/* Models of well-known sizes. */
enum { MEMORY_SIZES = 8 };
struct memory_size {
    const char *name;
    int64_t n_layer, n_head, n_embd;
};
extern const struct memory_size memory_sizes[MEMORY_SIZES];

enum { MEMORY_SIZES_VOCABULARY = 50257 }; /* GPT-2's */

/* A run of that model with defaults, one sequence of config's seq_len at a time. */
void memory_size_config(struct config *out, const struct memory_size *size,
                        const struct config *config);
