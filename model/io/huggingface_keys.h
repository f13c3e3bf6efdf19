/* The keys of the config classes of huggingface/transformers 5 whose models can be read: those that
 * set one key of the config, and those of which only some values can be computed. Keys of which
 * more is to be said (rope, windows, biases, tokens) have code in huggingface_*.c. Other keys
 * are ignored; none of them is known to change logits. Internal to model/io/huggingface_*.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/architecture/families.h"

struct huggingface_key {
    const char *key;
    int families; /* set of those whose files this row is for, IN_... */
    /* Key of the config that it sets, or NULL; and the values that an absent key and a null stand
     * for, NAN for none. */
    const char *path;
    double absent, null;
    /* Spellings that win over `key`, and that count if both are absent; or NULL. */
    const char *first, *last;
    /* Allowed values as JSON without spaces, separated by spaces; NULL: any. An absent key is
     * always allowed. `remedy` ends the message; NULL: the allowed values. */
    const char *allowed, *remedy;
};

extern const struct huggingface_key huggingface_keys[];
extern const size_t huggingface_key_count;

/* A setting in the object rope_scaling or rope_parameters. */
struct huggingface_rope {
    const char *key;
    unsigned kinds;   /* bits 1 << enum rope_scaling: the kinds that have it */
    const char *path; /* key of the config, or NULL */
    /* Values for an absent key and for null, NAN for none. A file need not have the first. */
    double absent, null;
};
extern const struct huggingface_rope huggingface_ropes[]; /* ended by a NULL key */

/* Keys of the config in the config.json of a model whose parts no class has: model_type "mantissa",
 * and these keys of the block "model" ("model.n_layer"). Ended by NULL. */
extern const char *const huggingface_own_keys[];
