/* Appends to a file in large pieces. A thread writes one piece while the caller fills the next, so
 * computing and hashing overlap with the disk.
 *
 * A file of more than one piece bypasses the page cache (O_DIRECT), if the file system supports it.
 * Copying into the cache takes longer than some disks take to write, and evicts pages that are in
 * use. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WRITE_BEHIND_BYTES = 4 << 20 /* size of a piece */ };

struct write_behind {
    int fd;
    uint8_t *pieces[2]; /* [WRITE_BEHIND_BYTES]; the second is allocated when the first is full */
    int filling;        /* index of the piece being filled */
    size_t filled;      /* bytes in that piece */
    bool direct;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* signals a change of one of the next three members */
    size_t pending;         /* bytes of the other piece that are not written yet */
    bool closing;
    int number; /* errno of the first failed write, or 0 */
};

/* The functions return 0 or an errno value. The caller keeps ownership of fd. If write_behind_open
 * fails there is nothing to close. */
int write_behind_open(struct write_behind *behind, int fd);
int write_behind_put(struct write_behind *behind, const void *bytes, size_t size);

/* Waits until all bytes have been passed to the system. */
int write_behind_flush(struct write_behind *behind);

/* Closes the writer. Bytes that were not flushed may be lost. */
void write_behind_close(struct write_behind *behind);

/* Writes all bytes, at `offset` if that is not -1. */
int write_fully(int fd, const void *bytes, size_t size, int64_t offset);
