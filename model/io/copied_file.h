/* Files of a model folder, which may be untrusted, that are copied unchanged to an export. */
#pragma once

#include <stddef.h>

#include "data/util/error.h"

/* Reads DIRECTORY/NAME. Returns RESULT_NONE if there is none. A link that leads out of the
 * directory is an error, since it could copy a file of the user that was never meant for others;
 * links of the cache of Hugging Face, to blobs beside its snapshots, may leave it. A file NAME.json
 * must hold one JSON object. The caller frees *bytes. */
int copied_file_read(char **bytes, size_t *size, const char *directory, const char *name,
                     struct error *error);
