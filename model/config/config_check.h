/* Rules that involve several keys: the preset, the computed defaults, and checks of values against
 * each other. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "model/config/config_read.h"

/* Fills the keys that were not given and whose default depends on other keys. */
void config_resolve(struct config *config);

/* Sets train.steps from train.epochs, which is not 0, for this number of training sequences. A run
 * begins with step 0 and sample 0; one that resumes gives its own, since earlier steps may have had
 * another batch size. The last step is rounded up: it continues into the next epoch. A warmup
 * longer than the run is cut, unless it was given by --set. Fails if the settings do not fit this
 * number of steps. */
int config_resolve_epochs(struct config *config, uint64_t sequences, int64_t step,
                          int64_t next_sample, struct error *error);

/* Stores the number of ranks, and computes grad_accum_steps from train.batch_tokens if that is
 * given. Fails if the batch does not divide evenly. */
int config_split_batch(struct config *config, int rank_count, struct error *error);

/* Applies a preset as if a config file named it: fills sizes and parts that no file gives. */
void config_apply_preset(struct config *config, enum config_preset preset);

/* A config while it is checked. */
struct config_check {
    const struct config *config;
    const struct config_origins *origins;
    struct error *error;
};

/* Fails with a message that begins with the origin of the key's value. */
int config_refuse(const struct config_check *check, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks values against each other. Messages name the origin of each value. */
int config_check(const struct config *config, const struct config_origins *origins,
                 struct error *error);

/* Warns of valid settings that are probably mistakes. out: see note.h. */
void config_warnings(const struct config *config, FILE *out);

/* Notes values of the file that config_resolve replaced or reading skipped. */
void config_resolve_notes(const struct config *config, FILE *out);

/* Notes dimensions that are slow on 16-bit matrix units: n_embd, head size and seq_len that are not
 * multiples of 8. The vocabulary is padded in memory, so it is never named. */
void config_dimension_notes(const struct config *config, FILE *out);

/* Number of parameters of the model, without padding. */
int64_t config_parameter_count(const struct config *config);
