/* A file that any number of threads can read at any offset.
 *
 * It is not memory-mapped: if a mapped file is truncated, or its disk fails, a signal ends the
 * program. Here that is an error that names the file. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "data/util/error.h"

struct file_reader {
    char *path; /* NULL if not open */
    int fd;
    uint64_t bytes; /* size of the file when it was opened */
};

/* Opens a file of any kind with flags of open(2), and reads its status. It does not block on a
 * named pipe or a device, and raises the limit of open files to the maximum of the process when
 * needed. Returns the descriptor, or -1 with errno. */
int file_open_status(struct stat *status, const char *path, int flags);

/* Opens a regular file. Fails if it cannot be opened; returns RESULT_NONE, with a message, if it is
 * not a regular file. Then there is nothing to close, though closing is harmless. */
int file_reader_open(struct file_reader *reader, const char *path, struct error *error);

/* Reads bytes at .. at + size - 1, which must be inside the file. Fails if the file has been
 * truncated since it was opened, or on a disk error. */
int file_reader_get(const struct file_reader *reader, void *to, uint64_t at, size_t size,
                    struct error *error);

/* Closes the file. Harmless on a zero-initialized struct or one that is already closed. */
void file_reader_close(struct file_reader *reader);
