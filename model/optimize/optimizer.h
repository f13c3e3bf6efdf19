/* The optimizer: update rules (model/core/update_rule.h) applied to all parameters, with gradient
 * clipping, skipping of steps with non-finite gradients, and the loss scale. With several ranks
 * each one updates its own part of every bucket (model/core/shards.h) and has the moments of that
 * part only. All ranks use the same norm and skip the same steps. */
#pragma once

#include "data/util/error.h"
#include "model/config/config.h"
#include "model/core/exchange.h"
#include "model/core/model.h"
#include "model/core/update_rule.h"
#include "model/optimize/muon.h"

struct optimizer {
    struct model *model;
    const struct config *config;
    struct step_state *state; /* backend memory */
    struct exchange exchange; /* with other ranks; with one rank it only holds the buckets */
    struct tensor moments[MOMENTS_MAX]; /* [moment_count] fp32 or bf16, for this rank's parts of all
                                         * buckets; in host memory if model->offload_optimizer */
    struct tensor codes[MOMENTS_MAX];   /* [coded_count] those of buckets in 8 bits, DYNAMIC8 */
    struct tensor scales[MOMENTS_MAX];  /* [coded_count / MOMENT_BLOCK] fp32, of these */
    void *memory;                       /* holds the moments; NULL until optimizer_allocate */
    size_t bytes;
    struct muon muon;                 /* scratch of rules for matrices, in the backend's memory */
    const struct step_inputs *inputs; /* of the last step, backend memory */
};

/* Lays out the moments and adds them to the plan of model, an open model for training. Allocates
 * only the state. */
int optimizer_open(struct optimizer *optimizer, struct model *model, const struct config *config,
                   struct error *error);
void optimizer_close(struct optimizer *optimizer);

/* Allocates the moments and sets them to zero. */
int optimizer_allocate(struct optimizer *optimizer, struct error *error);

/* Arrays that store a moment: the values, or codes and scales in 8 bits. */
enum moment_array { MOMENT_VALUES, MOMENT_CODES, MOMENT_SCALES };

/* Returns the bytes that `count` elements have in an array: whole blocks, if it is in 8 bits. */
size_t optimizer_moment_bytes(const struct optimizer *optimizer, enum moment_array array,
                              int64_t count);

/* Returns the address of element `first` of the flat order, in this rank's part of a bucket. */
char *optimizer_moment_at(const struct optimizer *optimizer, const struct bucket *bucket,
                          int moment, enum moment_array array, int64_t first);

/* Copy elements first .. first + count of the flat order of a moment, between steps. Elements
 * outside this rank's parts are skipped. Downloads keep the dtype of the moments; uploads are fp32
 * values, rounded to nearest. Moments in 8 bits are fp32 here, and come in whole blocks. */
void optimizer_download(const struct optimizer *optimizer, int moment, void *values, int64_t first,
                        int64_t count);
void optimizer_upload(const struct optimizer *optimizer, int moment, const float *values,
                      int64_t first, int64_t count);

/* The same for codes and scales of whole blocks, of parameters whose moments are in 8 bits. */
void optimizer_upload_codes(const struct optimizer *optimizer, int moment, const uint8_t *codes,
                            const float *scales, int64_t first, int64_t count);

/* Returns what the update of a step needs from the host, without the loss weight and the first row.
 * `step` is the number of steps done before. */
struct step_inputs optimizer_inputs(const struct config *config, int64_t step);

/* Ends a step: computes the gradient norm and found_inf, updates the weights unless found_inf is
 * set, then updates the loss scale. inputs: those that came with the batch, in backend memory. */
void optimizer_step(struct optimizer *optimizer, const struct step_inputs *inputs);
