/* From JSON text and --set texts to the fields of struct config, each value checked by its row of
 * the table. What must hold between values is in config_check.h. */
#pragma once

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/config/config_keys.h"

/* Where each row got its value, for messages. Points to the caller's path and --set texts. */
struct config_origins {
    const char *path;                       /* of the config file, or NULL */
    size_t lines[CONFIG_OPTION_LIMIT];      /* in the file; 0: not there */
    const char *flags[CONFIG_OPTION_LIMIT]; /* text of the --set that gave the value, or NULL */
};

enum { CONFIG_WHERE_MAX = FILE_SHOWN_MAX };

/* "FILE:LINE", "--set TEXT", or "FILE" for a default of the row; shortened to fit. */
const char *config_where(char where[CONFIG_WHERE_MAX], const struct config_origins *origins,
                         int row);
/* Sets the keys that the JSON text[0..length), which a NUL follows, of the file origins->path has;
 * the others stay. */
int config_read_text(struct config *config, struct config_origins *origins, const char *text,
                     size_t length, struct error *error);

/* Sets the key of one "key.path=value". */
int config_read_flag(struct config *config, struct config_origins *origins, const char *flag,
                     struct error *error);
