/* Files of autotune's choices: one in the run's directory, which a resumed run repeats, and a store
 * that saves later runs their trials. The backend defines the content. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "kernels/ranks.h"

/* Replaces the file by what `write` prints, atomically: a complete file always exists. Returns -1
 * with a message. */
int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error);

/* Calls `read`, which returns the number of the first invalid line, or 0. A missing file is no
 * error. Returns -1 with a message. */
int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error);

/* Copies rank 0's choices to all ranks: rank 0 calls `write`, the others `read`. Returns -1 with a
 * message. */
int choices_share(const struct ranks *ranks, void (*write)(FILE *file, const void *from),
                  int (*read)(FILE *file, void *into), void *choices, struct error *error);

/* Returns the path of the store for `key`, a line of text, in a directory; freed by the caller.
 * NULL if the path is too long, or out of memory. */
char *choices_store_path(const char *directory, const char *key);

/* Replaces a store, and creates its directory. Runs may do so at the same time: the file is always
 * that of one of them. Returns -1 with a message. */
int choices_store(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error);
