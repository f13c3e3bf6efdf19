/* What the reader and the writer of safetensors files share. Internal to model/safetensors*.c. */
#ifndef MODEL_SAFETENSORS_FORMAT_H
#define MODEL_SAFETENSORS_FORMAT_H

#include <stdbool.h>

#include "model/safetensors.h"

/* JSON numbers pass through doubles: from 2^53 on neighbors fall together. */
#define SAFETENSORS_COUNT_LIMIT ((uint64_t)1 << 53)

#define SAFETENSORS_METADATA_KEY "__metadata__"

enum { SAFETENSORS_LENGTH_BYTES = 8 }; /* of the number that a file begins with */

/* Stores the size of the entry's data. Returns false when it overflows or ends inside a byte. */
bool safetensors_entry_bytes(uint64_t *bytes, const struct safetensors_entry *entry);

/* Returns a text that occurs twice, or NULL. Sorts the list. */
const char *safetensors_repeated(const char **texts, size_t count);

int safetensors_out_of_memory(char *error, const char *path);

#endif
