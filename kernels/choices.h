/* File in which a backend stores the choices of autotune, beside a run: reads and writes it as a
 * whole. The backend defines its content. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

/* write prints the file. It is written beside the old one first, so that a complete one always
 * exists. Returns -1 with a message. */
int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error);

/* read returns the number of the first invalid line, or 0. A missing file is no error. Returns -1
 * with a message. */
int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error);
