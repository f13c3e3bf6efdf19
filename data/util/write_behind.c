#include "data/util/write_behind.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/min_max.h"
#include "data/util/signals.h"

/* Alignment of memory, size and offset that all file systems accept with O_DIRECT. */
enum { DIRECT_ALIGNMENT = 4096 };

int write_fully(int fd, const void *bytes, size_t size, int64_t offset) {
    const uint8_t *from = bytes;
    while (size > 0) {
        const ssize_t written =
            offset < 0 ? write(fd, from, size) : pwrite(fd, from, size, (off_t)offset);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) return errno;
        if (written == 0) return EIO;
        from += written;
        size -= (size_t)written;
        if (offset >= 0) offset += written;
    }
    return 0;
}

static bool set_direct(struct write_behind *behind, bool direct) {
    int flags = fcntl(behind->fd, F_GETFL);
    if (flags < 0) return false;
    flags = direct ? flags | O_DIRECT : flags & ~O_DIRECT;
    return fcntl(behind->fd, F_SETFL, flags) == 0;
}

/* Some file systems accept O_DIRECT but then refuse to write. And after a partial write the rest of
 * a piece may not be aligned any more. */
static int write_piece(struct write_behind *behind, const uint8_t *piece, size_t size) {
    off_t begin = lseek(behind->fd, 0, SEEK_CUR);
    int number = write_fully(behind->fd, piece, size, -1);
    if (number != EINVAL || !behind->direct) return number;
    behind->direct = false;
    size_t done = (size_t)(lseek(behind->fd, 0, SEEK_CUR) - begin);
    if (begin < 0 || done > size || !set_direct(behind, false)) return number;
    return write_fully(behind->fd, piece + done, size - done, -1);
}

static void *write_pieces(void *argument) {
    struct write_behind *behind = argument;
    pthread_mutex_lock(&behind->mutex);
    for (;;) {
        while (behind->pending == 0 && !behind->closing)
            pthread_cond_wait(&behind->changed, &behind->mutex);
        if (behind->pending == 0) break;
        const uint8_t *piece = behind->pieces[1 - behind->filling];
        size_t size = behind->pending;
        pthread_mutex_unlock(&behind->mutex);
        int number = write_piece(behind, piece, size);
        pthread_mutex_lock(&behind->mutex);
        if (behind->number == 0) behind->number = number;
        behind->pending = 0;
        pthread_cond_broadcast(&behind->changed);
    }
    pthread_mutex_unlock(&behind->mutex);
    return NULL;
}

int write_behind_open(struct write_behind *behind, int fd) {
    *behind = (struct write_behind){.fd = fd};
    behind->pieces[0] = aligned_alloc(DIRECT_ALIGNMENT, WRITE_BEHIND_BYTES);
    return behind->pieces[0] ? 0 : ENOMEM;
}

/* Starts the thread, when the first piece is full. */
static void start_thread(struct write_behind *behind) {
    behind->pieces[1] = aligned_alloc(DIRECT_ALIGNMENT, WRITE_BEHIND_BYTES);
    if (!behind->pieces[1]) return;
    behind->direct = set_direct(behind, true);
    pthread_mutex_init(&behind->mutex, NULL);
    pthread_cond_init(&behind->changed, NULL);
    behind->threaded = signals_start_thread(&behind->thread, write_pieces, behind) == 0;
}

/* Waits until the thread is idle. */
static int wait_idle(struct write_behind *behind) {
    if (!behind->threaded) return behind->number;
    pthread_mutex_lock(&behind->mutex);
    while (behind->pending > 0) pthread_cond_wait(&behind->changed, &behind->mutex);
    int number = behind->number;
    pthread_mutex_unlock(&behind->mutex);
    return number;
}

static int hand_over(struct write_behind *behind) {
    if (!behind->pieces[1]) start_thread(behind);
    if (!behind->threaded) {
        int number = write_piece(behind, behind->pieces[behind->filling], behind->filled);
        behind->filled = 0;
        return behind->number ? behind->number : (behind->number = number);
    }
    int number = wait_idle(behind);
    pthread_mutex_lock(&behind->mutex);
    behind->filling = 1 - behind->filling;
    behind->pending = number ? 0 : behind->filled;
    behind->filled = 0;
    pthread_cond_broadcast(&behind->changed);
    pthread_mutex_unlock(&behind->mutex);
    return number;
}

int write_behind_put(struct write_behind *behind, const void *bytes, size_t size) {
    const uint8_t *from = bytes;
    while (size > 0) {
        size_t room = WRITE_BEHIND_BYTES - behind->filled, part = MIN(size, room);
        memcpy(behind->pieces[behind->filling] + behind->filled, from, part);
        behind->filled += part, from += part, size -= part;
        int number = behind->filled == WRITE_BEHIND_BYTES ? hand_over(behind) : 0;
        if (number) return number;
    }
    return 0;
}

int write_behind_flush(struct write_behind *behind) {
    int number = wait_idle(behind);
    if (number) return number;
    if (behind->direct && !set_direct(behind, false)) return errno;
    behind->direct = false; /* the rest is not aligned */
    number = write_fully(behind->fd, behind->pieces[behind->filling], behind->filled, -1);
    behind->filled = 0;
    return number;
}

void write_behind_close(struct write_behind *behind) {
    if (behind->threaded) {
        pthread_mutex_lock(&behind->mutex);
        behind->closing = true;
        pthread_cond_broadcast(&behind->changed);
        pthread_mutex_unlock(&behind->mutex);
        pthread_join(behind->thread, NULL);
        pthread_mutex_destroy(&behind->mutex);
        pthread_cond_destroy(&behind->changed);
    }
    free(behind->pieces[0]);
    free(behind->pieces[1]);
    *behind = (struct write_behind){.fd = -1};
}
