/* Parses JSON text and --set texts into the fields of struct config, and checks each value by its
 * row of the table. config_check.h checks values against each other. */
#pragma once

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/config/config_keys.h"

/* Origin of each row's value, for messages. Points to the caller's path and --set texts. */
struct config_origins {
    const char *path; /* path of the config file, or NULL */
    bool saved;       /* the text was saved by a run, perhaps of a version with more keys */
    size_t lines[CONFIG_OPTION_LIMIT];      /* line in the file; 0: not given there */
    const char *flags[CONFIG_OPTION_LIMIT]; /* text of the --set that gave the value, or NULL */
};

enum { CONFIG_WHERE_MAX = FILE_SHOWN_MAX };

/* Returns the origin of a row's value: "FILE:LINE", "--set TEXT", or "FILE" for a default;
 * truncated to fit. */
const char *config_where(char where[CONFIG_WHERE_MAX], const struct config_origins *origins,
                         int row);
/* Sets the keys of the JSON text[0..length), which is followed by a NUL, from the file
 * origins->path. Other keys keep their values. Removed keys are skipped in saved text, and refused
 * in a user's file unless they have their old defaults. */
int config_read_text(struct config *config, struct config_origins *origins, const char *text,
                     size_t length, struct error *error);

/* Sets the key of one override: "key.path=value", or "--flag key.path=value" if a flag other than
 * --set stands for the key; messages name it. */
int config_read_flag(struct config *config, struct config_origins *origins, const char *flag,
                     struct error *error);
