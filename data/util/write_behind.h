/* Appending to a file in large pieces: while a thread writes one, the next is filled, so that
 * whoever computes or hashes what it writes does not wait for the disk.
 *
 * A file of more than a piece goes around the system's cache (O_DIRECT), where the file system can
 * do that: the copy into the cache takes the processor longer than some disks take to write, and
 * the pages would push out others that are in use. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { WRITE_BEHIND_BYTES = 4 << 20 /* a piece */ };

struct write_behind {
    int fd;
    uint8_t *pieces[2]; /* [WRITE_BEHIND_BYTES]; the second one once the first is full */
    int filling;        /* which of them */
    size_t filled;      /* bytes of it */
    bool direct;
    bool threaded;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* one of the next three */
    size_t pending;         /* bytes of the other piece that are not written yet */
    bool ends;
    int number; /* errno of the first write that failed, or 0 */
};

/* All return 0 or an errno value. fd stays the caller's. After a failure of _open there is nothing
 * to close. */
int write_behind_open(struct write_behind *behind, int fd);
int write_behind_put(struct write_behind *behind, const void *bytes, size_t size);

/* Waits until the system has all that was put. */
int write_behind_flush(struct write_behind *behind);

/* Closes; bytes that were not flushed may be lost. */
void write_behind_close(struct write_behind *behind);

/* write, or with an offset that is not -1 pwrite, of all the bytes. */
int write_fully(int fd, const void *bytes, size_t size, int64_t offset);
