/* The table of options behind model/config/config.h, one row per key, and lookups in it: defaults,
 * origins, sizes and names. */
#pragma once

#include "model/architecture/parameters.h"
#include "model/config/config.h"

enum config_type {
    CONFIG_STRING,  /* char[CONFIG_STRING_MAX]; minimum is the least length in bytes */
    CONFIG_ENUM,    /* a C enum whose values are indices of the names */
    CONFIG_INTEGER, /* int64_t, within 2^53 so that JSON readers agree on it */
    CONFIG_NUMBER,  /* double */
    CONFIG_BOOLEAN, /* bool */
    CONFIG_LIST,    /* struct config_words, each name at most once; empty by default */
};

/* Conditions under which keys have an effect: USED_IF_ALWAYS, ... */
enum config_condition {
#define X(NAME, ...) USED_IF_##NAME,
#include "model/config/config_conditions.inc"
#undef X
    CONFIG_CONDITION_COUNT
};

/* Consequences of another value when a run resumes. All but NOTHING and MODEL are notes. */
enum config_changes {
    CHANGES_NOTHING,        /* the numbers of the run stay the same */
    CHANGES_TRAINING = 1,   /* only of the following steps */
    CHANGES_SAMPLES = 2,    /* another order of samples, or other samples */
    CHANGES_VALIDATION = 4, /* losses of validations are not comparable */
    CHANGES_DATA = 6,       /* samples and validations */
    CHANGES_PAIRS = 8,      /* the same, if they are pairs of answers */
    CHANGES_MODEL = 16,     /* the weights would compute something else, so it is refused */
};

struct config_option {
    const char *key; /* "block.name", or "name" for a key of the top level */
    enum config_type type;
    enum config_condition used_if;
    enum config_changes changes;
    size_t offset;            /* offset of the field in struct config */
    double initial;           /* default; for an enum the index of the name */
    const char *text;         /* default of a string */
    const char *computed;     /* rule of a default that depends on other keys, or NULL */
    double minimum, maximum;  /* inclusive */
    bool below_maximum;       /* the maximum itself is not allowed */
    const char *const *names; /* names of an enum or list, ended by NULL */
    const char *help;
};

struct config_block {
    const char *name;
    const char *help;
};

/* Rows of one block are adjacent; those of the top level come first. Blocks have the same order. */
extern const struct config_option config_options[];
extern const int config_option_count;
extern const struct config_block config_blocks[];
extern const int config_block_count;

/* Returns the row of a key, which must exist. */
const struct config_option *config_option_of(const char *key);

/* Index of the row or block whose name is name[0..length), or -1. */
int config_option_index(const char *name, size_t length);
int config_block_index(const char *name, size_t length);

/* Index of a row's block, -1 for the top level; name of a row without the block. */
int config_option_block(const struct config_option *option);
const char *config_option_name(const struct config_option *option);

/* Number of names of an enum or a list. */
int config_name_count(const struct config_option *option);

/* True for an enum with the names "on" and "off", for which true and false are allowed too. */
bool config_has_switch(const struct config_option *option);

/* Value of a number, a boolean (0 or 1) or an enum (the index of the name). */
double config_number(const struct config *config, const struct config_option *option);

/* Returns the shortest decimal text that parses to the same double. */
enum { CONFIG_NUMBER_MAX = 32 };
const char *config_format_number(char text[CONFIG_NUMBER_MAX], double value);

/* Sets the field of a row: to a number, to the name of that index, or to true unless 0. Strings and
 * lists become their defaults. */
void config_set(struct config *config, const struct config_option *option, double value);

/* Fills config with the defaults. Its name is "", which config_load() would replace. */
void config_defaults(struct config *config);

/* True if the file or a --set gave a value to a key ("model.n_layer") or to any key of a block
 * ("loss_scale"). Asserts that the table has the name. */
bool config_given(const struct config *config, const char *name);

/* True if a --set, or a flag that stands for one, gave the key's value. */
bool config_given_by_flag(const struct config *config, const char *key);

/* Returns the sizes in config->model, without a batch. */
struct model_shape config_shape(const struct config *config);

/* Returns the name of an enum key's value in a config file. */
const char *config_name_of(const char *key, unsigned value);
const char *config_preset_name(enum config_preset preset);
const char *config_precision_name(enum config_precision precision);
