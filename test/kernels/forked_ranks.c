#include "test/kernels/forked_ranks.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE_BYTES = 4096, SECONDS = 60 };

/* Memory that all processes share. */
struct meeting {
    atomic_int arrived; /* since the beginning, by all */
    atomic_int status;  /* of an abort; 0: none */
    char messages[FORKED_RANKS_MOST][MESSAGE_BYTES];
};

static void wait_for_all(const struct ranks *ranks) {
    struct meeting *meeting = ranks->state;
    int here = atomic_fetch_add(&meeting->arrived, 1);
    int all = (here / ranks->size + 1) * ranks->size;
    while (atomic_load(&meeting->arrived) < all) {
        if (atomic_load(&meeting->status)) _exit(atomic_load(&meeting->status));
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

static void forked_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes) {
    struct meeting *meeting = ranks->state;
    assert(bytes <= MESSAGE_BYTES);
    memcpy(meeting->messages[ranks->rank], own, bytes);
    wait_for_all(ranks);
    for (int rank = 0; rank < ranks->size; rank++)
        memcpy((char *)all + (size_t)rank * bytes, meeting->messages[rank], bytes);
    wait_for_all(ranks);
}

static void forked_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    char all[FORKED_RANKS_MOST * MESSAGE_BYTES];
    forked_gather(ranks, all, data, bytes);
    memcpy(data, all, bytes);
}

static void forked_abort(const struct ranks *ranks, int status) {
    struct meeting *meeting = ranks->state;
    atomic_store(&meeting->status, status);
    _exit(status);
}

static const struct rank_functions forked_functions = {
    .broadcast = forked_broadcast, .gather = forked_gather, .abort = forked_abort};

void forked_rank_check(const struct ranks *ranks, bool good, const char *file, int line,
                       const char *text) {
    if (good) return;
    fprintf(stderr, "%s:%d: rank %d of %d: FAILED: %s\n", file, line, ranks->rank, ranks->size,
            text);
    ranks_abort(ranks, 1);
    _exit(1);
}

int forked_ranks(int size, void (*body)(const struct ranks *ranks, const void *given),
                 const void *given) {
    struct meeting *meeting =
        mmap(NULL, sizeof *meeting, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t processes[FORKED_RANKS_MOST];
    int failed = 0;
    assert(meeting != MAP_FAILED && size <= FORKED_RANKS_MOST);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        processes[rank] = fork();
        if (processes[rank]) continue;
        struct ranks ranks = {rank, size, rank, size, "forked", &forked_functions, meeting};
        alarm(SECONDS);
        body(&ranks, given);
        _exit(0);
    }
    for (int rank = 0; rank < size; rank++) {
        int status = -1;
        if (processes[rank] > 0) waitpid(processes[rank], &status, 0);
        failed += status != 0;
    }
    munmap(meeting, sizeof *meeting);
    return failed;
}
