/* File of autotune's choices, in the run's directory. The backend defines its content. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

/* Replaces the file by what `write` prints, atomically: a complete file always exists. Returns -1
 * with a message. */
int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error);

/* Calls `read`, which returns the number of the first invalid line, or 0. A missing file is no
 * error. Returns -1 with a message. */
int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error);
