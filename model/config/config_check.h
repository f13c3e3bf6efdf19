/* What a config means beyond its single values: the preset, the computed defaults, and what must
 * hold between values. */
#pragma once

#include "data/util/error.h"
#include "model/config/config_read.h"

/* Fills the keys that nobody gave and whose default depends on others. */
void config_resolve(struct config *config);

/* Sets train.steps from train.epochs, which is not 0, for so many training sequences; a last step
 * that is not full takes its rest from the next epoch. A warmup that is longer than the run is cut,
 * unless it was given by --set. Fails where the settings do not fit this number of steps. */
int config_resolve_epochs(struct config *config, uint64_t sequences, struct error *error);

/* Notes how many ranks train together, and works out grad_accum_steps from train.batch_tokens if
 * that is given. Fails where it does not come out even. */
int config_split_batch(struct config *config, int rank_count, struct error *error);

/* As if a config file named the preset: fills sizes and parts that no file gives. */
void config_apply_preset(struct config *config, enum config_preset preset);

/* A config while it is checked. */
struct config_check {
    const struct config *config;
    const struct config_origins *origins;
    struct error *error;
};

/* Fails with a message that begins with where the key got its value. */
int config_refuse(const struct config_check *check, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Checks what must hold between values; a message names where each of them comes from. */
int config_check(const struct config *config, const struct config_origins *origins,
                 struct error *error);

/* Writes settings that are valid and have no effect, or hardly can be meant, one a line, each line
 * ended by a line break, into text (of size bytes, cut there). Returns their number. */
int config_warnings(const struct config *config, char *text, size_t size);

/* The same for values of the file that config_resolve has replaced. */
int config_resolve_notes(const struct config *config, char *text, size_t size);

/* The same for dimensions that 16-bit matrix units handle badly: n_embd, head size and seq_len that
 * are not multiples of 8. (The vocabulary is padded inside, so it is not named.) */
int config_dimension_notes(const struct config *config, char *text, size_t size);

/* Number of parameters of the model, without padding. */
int64_t config_parameter_count(const struct config *config);
