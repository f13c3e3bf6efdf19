#include "kernels/comm/mpi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "data/util/min_max.h"
#include "data/util/signals.h"

enum {
    JOBS = 256,             /* maximum of queued jobs */
    PIECE_BYTES = 16 << 20, /* larger messages are cut into pieces of this size */
    STAGING_BYTES = 8 << 20,
    BLOCK = 1024, /* elements that are added at a time */
    /* Polls of a message: the first ones without pause, some after short sleeps, in which most
     * pieces of a message arrive, then after longer ones, which cost 5 % of a core instead of
     * 20. */
    SPINS = 64,
    SHORT_SLEEPS = 128,
    SHORT_NANOSECONDS = 20000,
    LONG_NANOSECONDS = 150000,
};

enum job_kind {
    JOB_OPEN,
    JOB_BROADCAST,
    JOB_GATHER,
    JOB_SWAP,
    JOB_REDUCE_SCATTER,
    JOB_ALL_GATHER,
    JOB_CLOSE,
};

struct job {
    enum job_kind kind;
    void *data;
    const void *own;      /* gather: this rank's bytes */
    size_t bytes;         /* in total; for gather, of each rank */
    size_t element_bytes; /* for all_gather */
    int64_t count;        /* elements of a collective */
    enum dtype dtype;     /* for reduce_scatter */
    const struct rank_message *out, *in;
    int outs, ins;
};

/* Messages that were posted together. */
struct posted {
    void **requests;
    int count, capacity;
};

struct mpi {
    const struct mpi_module *module;
    struct mpi_world world;
    int opened; /* 0: not yet; 1, or -1 with the reason */
    char reason[256];

    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;
    struct job jobs[JOBS]; /* a ring */
    uint64_t queued, finished;
    atomic_int abort_status; /* all ranks end with this status; -1: none */

    struct mpi_arithmetic arithmetic;    /* for collectives */
    struct posted sends[2], receives[2]; /* two chunks are in flight at a time */
    size_t staging_bytes;
    char *staging; /* [2, ranks] chunks */
};

/* ---- the thread: messages */

static void end_all(struct mpi *mpi) {
    int status = atomic_load(&mpi->abort_status);
    if (status >= 0) mpi->module->abort(status);
}

static void append(struct mpi *mpi, struct posted *posted, void *request) {
    if (posted->count == posted->capacity) {
        posted->capacity = posted->capacity ? 2 * posted->capacity : 64;
        posted->requests = realloc(posted->requests, (size_t)posted->capacity * sizeof(void *));
        if (!posted->requests) mpi->module->abort(1);
    }
    posted->requests[posted->count++] = request;
}

static size_t piece_of(size_t bytes, size_t first) {
    return bytes - first < PIECE_BYTES ? bytes - first : PIECE_BYTES;
}

static void post_send(struct mpi *mpi, int chunk, const void *data, size_t bytes, int to) {
    for (size_t first = 0; first < bytes; first += PIECE_BYTES)
        append(mpi, &mpi->sends[chunk % 2],
               mpi->module->send((const char *)data + first, piece_of(bytes, first), to));
}

static void post_receive(struct mpi *mpi, int chunk, void *data, size_t bytes, int from) {
    for (size_t first = 0; first < bytes; first += PIECE_BYTES)
        append(mpi, &mpi->receives[chunk % 2],
               mpi->module->receive((char *)data + first, piece_of(bytes, first), from));
}

static void pause_after(int polls) {
    long sleep = polls < SPINS + SHORT_SLEEPS ? SHORT_NANOSECONDS : LONG_NANOSECONDS;
    if (polls >= SPINS) nanosleep(&(struct timespec){0, sleep}, NULL);
}

/* Waits until all messages are complete. */
static void finish(struct mpi *mpi, struct posted *posted) {
    for (int polls = 0; posted->count > 0; polls++) {
        int left = 0;
        for (int i = 0; i < posted->count; i++)
            if (!mpi->module->done(posted->requests[i]))
                posted->requests[left++] = posted->requests[i];
        if (left < posted->count) polls = 0;
        posted->count = left;
        end_all(mpi);
        if (left > 0) pause_after(polls);
    }
}

static void finish_both(struct mpi *mpi, int chunk) {
    finish(mpi, &mpi->receives[chunk % 2]);
    finish(mpi, &mpi->sends[chunk % 2]);
}

/* ---- the thread: jobs */

static void run_broadcast(struct mpi *mpi, const struct job *job) {
    if (mpi->world.rank > 0) post_receive(mpi, 0, job->data, job->bytes, 0);
    for (int rank = 1; mpi->world.rank == 0 && rank < mpi->world.size; rank++)
        post_send(mpi, 0, job->data, job->bytes, rank);
    finish_both(mpi, 0);
}

/* Each round doubles the blocks that a rank has: its own and those of the ranks after it, where
 * rank 0 follows the last. So a rank sends 2 log(ranks) messages instead of one to each. */
static void run_gather(struct mpi *mpi, const struct job *job) {
    char *all = job->data, *own_data = all + (size_t)mpi->world.rank * job->bytes;
    int own = mpi->world.rank, size = mpi->world.size;
    if (own_data != job->own) memmove(own_data, job->own, job->bytes);
    for (int have = 1; have < size; have *= 2) {
        int count = MIN(have, size - have), to = (own + size - have) % size;
        int from = (own + have) % size, until_last = MIN(count, size - from);
        int sent = MIN(count, size - own);
        post_receive(mpi, 0, all + (size_t)from * job->bytes, (size_t)until_last * job->bytes,
                     from);
        post_receive(mpi, 0, all, (size_t)(count - until_last) * job->bytes, from);
        post_send(mpi, 0, own_data, (size_t)sent * job->bytes, to);
        post_send(mpi, 0, all, (size_t)(count - sent) * job->bytes, to);
        finish_both(mpi, 0);
    }
}

static void run_swap(struct mpi *mpi, const struct job *job) {
    for (int i = 0; i < job->ins; i++)
        post_receive(mpi, 0, job->in[i].data, job->in[i].bytes, job->in[i].rank);
    for (int i = 0; i < job->outs; i++)
        post_send(mpi, 0, job->out[i].data, job->out[i].bytes, job->out[i].rank);
    finish_both(mpi, 0);
}

/* Returns the bytes of one piece, from element `first` on, of a rank's part: 0 if the part ends
 * before. */
static size_t part_bytes(const struct mpi *mpi, const struct job *job, int rank, int64_t first,
                         int64_t piece, char **data, size_t element_bytes) {
    struct rank_part part = ranks_part(job->count, mpi->world.size, rank);
    int64_t left = part.count - first, count = left < piece ? left : piece;
    *data = (char *)job->data + (size_t)(part.first + first) * element_bytes;
    return count > 0 ? (size_t)count * element_bytes : 0;
}

static void post_all_gather(struct mpi *mpi, const struct job *job, int chunk, int64_t piece) {
    char *own_data, *data;
    int own = mpi->world.rank;
    int64_t first = chunk * piece;
    size_t bytes = part_bytes(mpi, job, own, first, piece, &own_data, job->element_bytes);
    for (int step = 1; step < mpi->world.size; step++) {
        int to = (own + step) % mpi->world.size;
        int from = (own + mpi->world.size - step) % mpi->world.size;
        size_t received_bytes = part_bytes(mpi, job, from, first, piece, &data, job->element_bytes);
        post_receive(mpi, chunk, data, received_bytes, from);
        post_send(mpi, chunk, own_data, bytes, to);
    }
}

/* The last rank's part is the largest. */
static int chunks_of(const struct mpi *mpi, const struct job *job, int64_t piece) {
    int64_t most = ranks_part(job->count, mpi->world.size, mpi->world.size - 1).count;
    return (int)((most + piece - 1) / piece);
}

static void run_all_gather(struct mpi *mpi, const struct job *job) {
    int64_t piece = PIECE_BYTES / (int64_t)job->element_bytes;
    int chunks = chunks_of(mpi, job, piece);
    for (int chunk = 0; chunk <= chunks; chunk++) {
        if (chunk < chunks) post_all_gather(mpi, job, chunk, piece);
        if (chunk > 0) finish_both(mpi, chunk - 1);
    }
}

/* Returns the buffer in which the data of another rank arrive, in a chunk. */
static char *staged_data(const struct mpi *mpi, int chunk, int rank, size_t bytes) {
    return mpi->staging + (size_t)(chunk % 2 * mpi->world.size + rank) * bytes;
}

static void post_reduce_scatter(struct mpi *mpi, const struct job *job, int chunk, int64_t piece) {
    char *own_data, *data;
    int own = mpi->world.rank;
    size_t element = dtype_bytes(job->dtype);
    int64_t first = chunk * piece;
    size_t received_bytes = part_bytes(mpi, job, own, first, piece, &own_data, element);
    for (int step = 1; step < mpi->world.size; step++) {
        int to = (own + step) % mpi->world.size;
        int from = (own + mpi->world.size - step) % mpi->world.size;
        size_t bytes = part_bytes(mpi, job, to, first, piece, &data, element);
        post_receive(mpi, chunk, staged_data(mpi, chunk, from, (size_t)piece * element),
                     received_bytes, from);
        post_send(mpi, chunk, data, bytes, to);
    }
}

/* Sum over all ranks, in their order, of a block of this rank's part. */
static void add_block(float *sum, const struct mpi *mpi, const struct job *job, int chunk,
                      size_t staged_bytes, char *own_data, int64_t first, int64_t count) {
    float wide[BLOCK];
    for (int rank = 0; rank < mpi->world.size; rank++) {
        const char *from =
            rank == mpi->world.rank ? own_data : staged_data(mpi, chunk, rank, staged_bytes);
        const float *values =
            mpi->arithmetic.widen(wide, from, job->dtype, (size_t)first, (size_t)count);
        if (rank == 0) memcpy(sum, values, (size_t)count * sizeof *sum);
        else
            for (int64_t i = 0; i < count; i++) sum[i] += values[i];
    }
}

static void add_chunk(const struct mpi *mpi, const struct job *job, int chunk, int64_t piece) {
    char *own_data;
    float sum[BLOCK];
    size_t element = dtype_bytes(job->dtype);
    size_t bytes = part_bytes(mpi, job, mpi->world.rank, chunk * piece, piece, &own_data, element);
    int64_t count = (int64_t)(bytes / element);
    for (int64_t first = 0; first < count; first += BLOCK) {
        int64_t n = count - first < BLOCK ? count - first : BLOCK;
        add_block(sum, mpi, job, chunk, (size_t)piece * element, own_data, first, n);
        mpi->arithmetic.store(own_data, job->dtype, (size_t)first, sum, (size_t)n);
    }
}

static void run_reduce_scatter(struct mpi *mpi, const struct job *job) {
    size_t each = mpi->staging_bytes / 2 / (size_t)mpi->world.size;
    int64_t piece = (int64_t)(each / dtype_bytes(job->dtype));
    int chunks = chunks_of(mpi, job, piece);
    for (int chunk = 0; chunk <= chunks; chunk++) {
        if (chunk < chunks) post_reduce_scatter(mpi, job, chunk, piece);
        if (chunk == 0) continue;
        finish(mpi, &mpi->receives[(chunk - 1) % 2]);
        add_chunk(mpi, job, chunk - 1, piece);
        finish(mpi, &mpi->sends[(chunk - 1) % 2]);
    }
}

static void open_world(struct mpi *mpi) {
    mpi->opened = mpi->module->open(&mpi->world, mpi->reason, sizeof mpi->reason) ? -1 : 1;
}

static void run_job(struct mpi *mpi, const struct job *job) {
    switch (job->kind) {
    case JOB_OPEN: open_world(mpi); break;
    case JOB_BROADCAST: run_broadcast(mpi, job); break;
    case JOB_GATHER: run_gather(mpi, job); break;
    case JOB_SWAP: run_swap(mpi, job); break;
    case JOB_REDUCE_SCATTER: run_reduce_scatter(mpi, job); break;
    case JOB_ALL_GATHER: run_all_gather(mpi, job); break;
    case JOB_CLOSE: mpi->module->close(); break;
    }
}

static void *run_jobs(void *state) {
    struct mpi *mpi = state;
    bool closed = false;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    while (!closed) {
        pthread_mutex_lock(&mpi->mutex);
        while (mpi->queued == mpi->finished && atomic_load(&mpi->abort_status) < 0)
            pthread_cond_wait(&mpi->work, &mpi->mutex);
        struct job job = mpi->jobs[mpi->finished % JOBS];
        pthread_mutex_unlock(&mpi->mutex);
        end_all(mpi);
        run_job(mpi, &job);
        closed = job.kind == JOB_CLOSE || mpi->opened < 0;
        pthread_mutex_lock(&mpi->mutex);
        mpi->finished++;
        pthread_cond_broadcast(&mpi->done);
        pthread_mutex_unlock(&mpi->mutex);
    }
    return NULL;
}

/* ---- callers: queueing jobs */

static uint64_t queue_job(struct mpi *mpi, const struct job *job) {
    pthread_mutex_lock(&mpi->mutex);
    while (mpi->queued - mpi->finished == JOBS) pthread_cond_wait(&mpi->done, &mpi->mutex);
    mpi->jobs[mpi->queued % JOBS] = *job;
    uint64_t ticket = ++mpi->queued;
    pthread_cond_signal(&mpi->work);
    pthread_mutex_unlock(&mpi->mutex);
    return ticket;
}

static void wait_for(struct mpi *mpi, uint64_t ticket) {
    pthread_mutex_lock(&mpi->mutex);
    while (mpi->finished < ticket) pthread_cond_wait(&mpi->done, &mpi->mutex);
    pthread_mutex_unlock(&mpi->mutex);
}

static void run_and_wait(struct mpi *mpi, const struct job *job) {
    wait_for(mpi, queue_job(mpi, job));
}

static void mpi_broadcast(const struct ranks *ranks, void *data, size_t bytes) {
    run_and_wait(ranks->state, &(struct job){.kind = JOB_BROADCAST, .data = data, .bytes = bytes});
}

static void mpi_gather(const struct ranks *ranks, void *all, const void *own, size_t bytes) {
    run_and_wait(ranks->state,
                 &(struct job){.kind = JOB_GATHER, .data = all, .own = own, .bytes = bytes});
}

static void mpi_swap(const struct ranks *ranks, const struct rank_message *out, int outs,
                     const struct rank_message *in, int ins) {
    run_and_wait(ranks->state,
                 &(struct job){.kind = JOB_SWAP, .out = out, .outs = outs, .in = in, .ins = ins});
}

/* Sets the status with which the thread ends the process. */
static void mpi_abort(const struct ranks *ranks, int status) {
    struct mpi *mpi = ranks->state;
    atomic_store(&mpi->abort_status, status);
    pthread_mutex_lock(&mpi->mutex);
    pthread_cond_signal(&mpi->work);
    pthread_mutex_unlock(&mpi->mutex);
    sleep(10);
    _exit(status);
}

static void release(struct mpi *mpi) {
    for (int i = 0; i < 2; i++) {
        free(mpi->sends[i].requests);
        free(mpi->receives[i].requests);
    }
    pthread_mutex_destroy(&mpi->mutex);
    pthread_cond_destroy(&mpi->work);
    pthread_cond_destroy(&mpi->done);
    free(mpi->staging);
    free(mpi);
}

static void mpi_close(struct ranks *ranks) {
    struct mpi *mpi = ranks->state;
    run_and_wait(mpi, &(struct job){.kind = JOB_CLOSE});
    pthread_join(mpi->thread, NULL);
    release(mpi);
}

static const struct rank_functions functions = {mpi_broadcast, mpi_gather, mpi_swap, mpi_abort,
                                                mpi_close};

static int allocate_staging(struct mpi *mpi, size_t bytes) {
    size_t least = (size_t)2 * (size_t)mpi->world.size * 512;
    mpi->staging_bytes = bytes > least ? bytes : least;
    mpi->staging = malloc(mpi->staging_bytes);
    return mpi->staging ? 0 : -1;
}

int mpi_open(struct ranks *ranks, const struct mpi_module *module, size_t staging_bytes,
             struct error *error) {
    struct mpi *mpi = calloc(1, sizeof *mpi);
    if (!mpi) return fail_memory(error, "the state of MPI");
    mpi->module = module;
    atomic_init(&mpi->abort_status, -1);
    pthread_mutex_init(&mpi->mutex, NULL);
    pthread_cond_init(&mpi->work, NULL);
    pthread_cond_init(&mpi->done, NULL);
    if (signals_start_thread(&mpi->thread, run_jobs, mpi)) {
        release(mpi);
        return fail(error, "cannot start a thread for MPI");
    }
    run_and_wait(mpi, &(struct job){.kind = JOB_OPEN});
    if (mpi->opened < 0) {
        pthread_join(mpi->thread, NULL);
        fail(error, "MPI: %s", mpi->reason);
        release(mpi);
        return -1;
    }
    const struct mpi_world *world = &mpi->world;
    *ranks = (struct ranks){world->rank, world->size, world->local_rank, world->local_size, "",
                            &functions,  mpi,         STDERR_FILENO};
    snprintf(ranks->description, sizeof ranks->description, "%.63s", world->library);
    if (world->size > RANKS_MAX)
        return fail(error, "%d ranks (allowed: %d)", world->size, RANKS_MAX);
    return allocate_staging(mpi, staging_bytes ? staging_bytes : STAGING_BYTES)
               ? fail_memory(error, "MPI's buffers")
               : 0;
}

/* ---- collectives */

static uint64_t mpi_reduce_scatter(const struct collectives *c, void *data, enum dtype dtype,
                                   int64_t count) {
    return queue_job(
        c->state,
        &(struct job){.kind = JOB_REDUCE_SCATTER, .data = data, .dtype = dtype, .count = count});
}

static uint64_t mpi_all_gather(const struct collectives *c, void *data, size_t element_bytes,
                               int64_t count) {
    return queue_job(c->state, &(struct job){.kind = JOB_ALL_GATHER,
                                             .data = data,
                                             .element_bytes = element_bytes,
                                             .count = count});
}

static void mpi_wait(const struct collectives *c, uint64_t ticket) {
    wait_for(c->state, ticket);
}

static void mpi_collectives_close(const struct collectives *c) {
    free((struct collectives *)c);
}

static const struct collective_functions collective_functions = {
    mpi_reduce_scatter, mpi_all_gather, mpi_wait, mpi_collectives_close, NULL};

const struct collectives *mpi_collectives(const struct ranks *ranks,
                                          const struct mpi_arithmetic *arithmetic) {
    struct mpi *mpi = ranks->state;
    struct collectives *c = malloc(sizeof *c);
    if (!c) return NULL;
    mpi->arithmetic = *arithmetic;
    *c = (struct collectives){ranks, &collective_functions, mpi, ""};
    memcpy(c->description, ranks->description, sizeof c->description);
    return c;
}
