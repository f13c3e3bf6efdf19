/* AdamW over all parameters, with the gradients' norm, the skipping of what is not finite, and the
 * loss scale. Where several ranks train together each updates its own part of every bucket
 * (model/core/shards.h), has the moments of that part only, and agrees with the others about the norm
 * and the skipping. */
#pragma once

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/core/exchange.h"
#include "model/core/gpt.h"

struct optimizer {
    struct gpt *gpt;
    const struct config *config;
    struct step_state *state; /* backend memory */
    struct exchange exchange; /* with other ranks; of one rank it holds the buckets */
    struct tensor moments[2]; /* [own_count] fp32 or bf16, of the own parts of all buckets; memory
                               * of the host if gpt->offload */
    void *memory;             /* of the moments; NULL until optimizer_allocate */
    size_t bytes;
};

/* Lays out the moments and adds them to the plan of gpt, an open model for training. Allocates the
 * state alone. */
int optimizer_open(struct optimizer *optimizer, struct gpt *gpt, const struct config *config,
                   struct error *error);
void optimizer_close(struct optimizer *optimizer);

/* Allocates the moments, which become zero. */
int optimizer_allocate(struct optimizer *optimizer, struct error *error);

/* Elements first .. first + count of the flat order, of moment 0 or 1, between steps: those that
 * are in own parts, the others are left alone. They are downloaded in their dtype, and uploaded
 * from fp32, rounded to nearest. */
void optimizer_download(const struct optimizer *optimizer, int moment, void *values, int64_t first,
                        int64_t count);
void optimizer_upload(const struct optimizer *optimizer, int moment, const float *values,
                      int64_t first, int64_t count);

/* Ends the accumulation of gradients: their norm and found_inf, then, unless that is set, the
 * update with the learning rate of that step (steps done before it), then the loss scale. */
void optimizer_step(struct optimizer *optimizer, int64_t step);
