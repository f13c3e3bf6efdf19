/* Ranks in one process: a fake MPI module, and a thread for each rank over the real engine
 * (kernels/comm/mpi.c).
 *
 * Each pair of ranks has a mailbox; its k-th receive takes its k-th send. As with MPI, data is
 * read any time between send and done: immediately or when the receive is posted, at random. A
 * message completes only after a random number of polls. The process dies on misuse: sizes that
 * differ, a request polled after completion, or messages left at the end. */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/random.h"
#include "kernels/comm/mpi.h"

enum { WORLD_RANKS_MAX = 8 };

struct letter {
    const void *data;
    void *into, *copy; /* copy: data read at the send */
    size_t bytes;
    int polls_left[2]; /* remaining polls before send and receive complete */
    bool sent, awaited, delivered, through[2];
    struct letter *next;
};

/* Messages of one pair of ranks that one side has not posted yet, in order. */
struct mailbox {
    struct letter *first, *last;
};

static struct ranks_world {
    pthread_mutex_t mutex;
    int size, opened, closed;
    bool delays;     /* messages complete after random delays */
    int letters;     /* messages not complete on both sides */
    int sent;        /* messages of all ranks */
    uint64_t chance; /* random numbers drawn so far */
    struct mailbox boxes[WORLD_RANKS_MAX][WORLD_RANKS_MAX];
} world = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int rank_here;

static inline void world_requires(bool condition, const char *rule) {
    if (condition) return;
    fprintf(stderr, "ranks_world: %s\n", rule);
    abort();
}

static inline int world_chance(int below) {
    return (int)(random_bits(7, 0, world.chance++) % (uint64_t)below);
}

static inline int world_open(struct mpi_world *seen, char *reason, size_t size) {
    (void)reason;
    (void)size;
    pthread_mutex_lock(&world.mutex);
    rank_here = world.opened++;
    *seen = (struct mpi_world){rank_here, world.size, rank_here, world.size, "threads"};
    pthread_mutex_unlock(&world.mutex);
    return 0;
}

static inline struct letter *letter_of(struct mailbox *box, size_t bytes, bool is_send) {
    struct letter *letter = box->first;
    if (letter && (is_send ? !letter->sent : !letter->awaited)) { /* the other side posted first */
        world_requires(letter->bytes == bytes, "send and receive have different sizes");
        box->first = letter->next;
        if (!box->first) box->last = NULL;
        return letter;
    }
    letter = calloc(1, sizeof *letter);
    world_requires(letter != NULL, "out of memory");
    letter->bytes = bytes;
    for (int i = 0; world.delays && i < 2; i++) letter->polls_left[i] = world_chance(4);
    if (box->last) box->last->next = letter;
    else box->first = letter;
    box->last = letter;
    world.letters++;
    return letter;
}

/* A request is the letter's address, or for a receive the byte after it. */
static inline void *world_send(const void *data, size_t bytes, int to) {
    world_requires(bytes > 0 && bytes <= MPI_MESSAGE_MAX, "a message of no or too many bytes");
    world_requires(to != rank_here && to >= 0 && to < world.size,
                   "a message to a rank that does not exist");
    pthread_mutex_lock(&world.mutex);
    struct letter *letter = letter_of(&world.boxes[rank_here][to], bytes, true);
    letter->sent = true;
    world.sent++;
    letter->data = data;
    if (world_chance(2)) {
        letter->copy = malloc(bytes);
        world_requires(letter->copy != NULL, "out of memory");
        memcpy(letter->copy, data, bytes);
    }
    pthread_mutex_unlock(&world.mutex);
    return letter;
}

static inline void *world_receive(void *data, size_t bytes, int from) {
    world_requires(bytes > 0 && bytes <= MPI_MESSAGE_MAX, "a message of no or too many bytes");
    world_requires(from != rank_here && from >= 0 && from < world.size, "a message from nobody");
    pthread_mutex_lock(&world.mutex);
    struct letter *letter = letter_of(&world.boxes[from][rank_here], bytes, false);
    letter->awaited = true;
    letter->into = data;
    memset(data, 0xA5, bytes);
    pthread_mutex_unlock(&world.mutex);
    return (char *)letter + 1;
}

static inline int world_done(void *request) {
    int side = (uintptr_t)request % 2;
    struct letter *letter = (struct letter *)((char *)request - side);
    pthread_mutex_lock(&world.mutex);
    world_requires(!letter->through[side], "a request is asked for after it was through");
    bool done = letter->polls_left[side]-- <= 0;
    if (side == 1 && done && letter->sent && !letter->delivered) {
        memcpy(letter->into, letter->copy ? letter->copy : letter->data, letter->bytes);
        letter->delivered = true;
    }
    done = done && (letter->delivered || (side == 0 && letter->copy));
    letter->through[side] = done;
    if (letter->through[0] && letter->through[1]) {
        free(letter->copy);
        free(letter);
        world.letters--;
    }
    pthread_mutex_unlock(&world.mutex);
    return done;
}

static inline void world_abort(int status) {
    _exit(status);
}

/* Waits for all ranks, like MPI_Finalize. */
static inline void world_close(void) {
    pthread_mutex_lock(&world.mutex);
    world.closed++;
    while (world.closed < world.size) {
        pthread_mutex_unlock(&world.mutex);
        usleep(100);
        pthread_mutex_lock(&world.mutex);
    }
    world_requires(world.letters == 0, "messages are left at the end");
    pthread_mutex_unlock(&world.mutex);
}

static const struct mpi_module world_module = {MPI_MODULE_VERSION, world_open, world_send,
                                               world_receive,      world_done, world_abort,
                                               world_close};

struct world_thread {
    pthread_t thread;
    void (*body)(const struct ranks *ranks, void *argument);
    void *argument;
    size_t staging_bytes;
};

static inline void *world_live(void *argument) {
    const struct world_thread *self = argument;
    struct ranks ranks;
    struct error failure;
    world_requires(mpi_open(&ranks, &world_module, self->staging_bytes, &failure) == 0,
                   "mpi_open failed");
    self->body(&ranks, self->argument);
    ranks_close(&ranks);
    return NULL;
}

/* Runs body as each of `size` ranks, and waits for all. staging_bytes is as for mpi_open. */
static inline void world_run(int size, size_t staging_bytes, bool delays,
                             void (*body)(const struct ranks *ranks, void *argument),
                             void *argument) {
    struct world_thread threads[WORLD_RANKS_MAX];
    world_requires(size >= 1 && size <= WORLD_RANKS_MAX, "too many ranks");
    world.size = size;
    world.opened = world.closed = world.sent = 0;
    world.delays = delays;
    for (int i = 0; i < size; i++) {
        threads[i] = (struct world_thread){0, body, argument, staging_bytes};
        world_requires(pthread_create(&threads[i].thread, NULL, world_live, &threads[i]) == 0,
                       "no thread");
    }
    for (int i = 0; i < size; i++) pthread_join(threads[i].thread, NULL);
}
