/* The table behind model/config/config.h: one row per key. For the config_*.c files and their test.
 */
#ifndef MODEL_CONFIG_CONFIG_TABLE_H
#define MODEL_CONFIG_CONFIG_TABLE_H

#include "model/config/config.h"

enum config_type {
    CONFIG_STRING,  /* char[CONFIG_STRING_MAX]; minimum is the least length in bytes */
    CONFIG_ENUM,    /* a C enum whose values number the words */
    CONFIG_INTEGER, /* int64_t, within 2^53 so that JSON readers agree on it */
    CONFIG_NUMBER,  /* double */
    CONFIG_BOOLEAN, /* bool */
    CONFIG_LIST,    /* struct config_words, each of the words at most once; empty by default */
};

struct config_option {
    const char *key; /* "block.name", or "name" for a key of the top level */
    enum config_type type;
    size_t offset;           /* of the field in struct config */
    double initial;          /* default; for an enum the number of the word */
    const char *text;        /* default of a string */
    const char *computed;    /* rule of a default that depends on other keys, or NULL */
    double minimum, maximum; /* inclusive, but for the two flags */
    bool above_minimum;      /* the minimum itself is not allowed */
    bool below_maximum;
    const char *const *words; /* of an enum or list, ended by NULL */
    const char *help;
};

struct config_block {
    const char *name;
    const char *help;
};

/* Rows of one block stand together; those of the top level come first. Blocks have that order. */
extern const struct config_option config_options[];
extern const int config_option_count;
extern const struct config_block config_blocks[];
extern const int config_block_count;

/* Number of the row or block whose name is name[0..length), or -1. */
int config_option_index(const char *name, size_t length);
int config_block_index(const char *name, size_t length);

/* The block of a row as a number, -1 for the top level; its name without the block. */
int config_option_block(const struct config_option *option);
const char *config_option_name(const struct config_option *option);

/* How many words an enum or a list has. */
int config_word_count(const struct config_option *option);

/* What the row allows, such as "a whole number from 1 to 1024" or "true or false". */
void config_describe_allowed(const struct config_option *option, char *text, size_t size);

/* The shortest decimal text that reads back as the same double. */
enum { CONFIG_NUMBER_MAX = 32 };
const char *config_format_number(char text[CONFIG_NUMBER_MAX], double value);

#endif
