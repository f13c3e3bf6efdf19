/* The file in which a backend keeps what autotune has chosen, beside a run: reading and writing it
 * whole. What is in it is the backend's own. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"

/* write prints the file. It is written beside the old one first, so that there is always a whole
 * one. Returns -1 with a message. */
int choices_write(const char *path, void (*write)(FILE *file, const void *from), const void *from,
                  struct error *error);

/* read returns the number of the first line that is wrong, or 0. A file that is not there is no
 * error. Returns -1 with a message likewise. */
int choices_read(const char *path, int (*read)(FILE *file, void *into), void *into,
                 struct error *error);
