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
struct shared_memory {
    atomic_int arrived; /* arrivals since the start, of all ranks */
    atomic_int status;  /* exit status of an abort; 0: none */
    char messages[FORKED_RANKS_MOST][MESSAGE_BYTES];
};

static void wait_for_all(const struct ranks *ranks) {
    struct shared_memory *shared = ranks->state;
    int here = atomic_fetch_add(&shared->arrived, 1);
    int all = (here / ranks->size + 1) * ranks->size;
    while (atomic_load(&shared->arrived) < all) {
        if (atomic_load(&shared->status)) _exit(atomic_load(&shared->status));
        nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

static void forked_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes) {
    struct shared_memory *shared = ranks->state;
    assert(bytes <= MESSAGE_BYTES);
    memcpy(shared->messages[ranks->rank], own, bytes);
    wait_for_all(ranks);
    for (int rank = 0; rank < ranks->size; rank++)
        memcpy((char *)all + (size_t)rank * bytes, shared->messages[rank], bytes);
    wait_for_all(ranks);
}

static void forked_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    char all[FORKED_RANKS_MOST * MESSAGE_BYTES];
    forked_gather(ranks, all, data, bytes);
    memcpy(data, all, bytes);
}

static void forked_abort(const struct ranks *ranks, int status) {
    struct shared_memory *shared = ranks->state;
    atomic_store(&shared->status, status);
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
    struct shared_memory *shared =
        mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t processes[FORKED_RANKS_MOST];
    int failed = 0;
    assert(shared != MAP_FAILED && size <= FORKED_RANKS_MOST);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        processes[rank] = fork();
        if (processes[rank]) continue;
        struct ranks ranks = {rank,   size,         rank, size, "forked", &forked_functions,
                              shared, STDERR_FILENO};
        alarm(SECONDS);
        body(&ranks, given);
        _exit(0);
    }
    for (int rank = 0; rank < size; rank++) {
        int status = -1;
        if (processes[rank] > 0) waitpid(processes[rank], &status, 0);
        failed += status != 0;
    }
    munmap(shared, sizeof *shared);
    return failed;
}
