/* A file that is read at any place, by any number of threads.
 *
 * It is not mapped: when a mapped file is cut short by somebody, or its disk cannot read it, the
 * system ends the program by a signal. Here that is an error that names the file. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"

struct file_reader {
    char *path; /* NULL: not open */
    int fd;
    uint64_t bytes; /* when it was opened */
};

/* Opens a regular file. Fails when it cannot be opened; returns RESULT_NONE, with a message, for
 * what is no regular file. Then there is nothing to close, though closing is harmless. As many may
 * be open as the system lets a process have at most. */
int file_reader_open(struct file_reader *reader, const char *path, struct error *error);

/* Reads bytes at .. at + size - 1, which lie in the file. Fails when it has been cut short since it
 * was opened, or its disk cannot read it. */
int file_reader_get(const struct file_reader *reader, void *to, uint64_t at, size_t size,
                    struct error *error);

/* Also takes a struct filled with zeros or one closed before. */
void file_reader_close(struct file_reader *reader);
