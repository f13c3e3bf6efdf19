#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/library.h"
extern "C" {
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "kernels/collectives.h"
#include "kernels/comm/nccl.h"
}

#ifndef WITH_NCCL

int nccl_collectives_open(struct backend *be, const struct ranks *ranks, struct error *error) {
    (void)be;
    fail(error, "device \"cuda\": ranks on GPUs need NCCL, and this program was built without it; "
                "install nccl.h (package libnccl-dev) and run make again, or use --device cpu");
    return ranks_agree(ranks, -1, error);
}

#else

#include <cuda.h>
#include <dlfcn.h>
#include <nccl.h>

#define FILE_NAME "libnccl.so.2"

#define NCCL_FUNCTIONS(X) \
    X(GetVersion)         \
    X(GetUniqueId)        \
    X(GetErrorString)     \
    X(GetLastError)       \
    X(CommInitRankConfig) \
    X(CommDestroy)        \
    X(CommAbort)          \
    X(CommGetAsyncError)  \
    X(GroupStart)         \
    X(GroupEnd)           \
    X(ReduceScatter)      \
    X(AllGather)          \
    X(Reduce)             \
    X(Broadcast)

struct nccl {
#define X(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(X)
#undef X
};

enum { EVENTS = 512 };

/* Kinds of operations. */
enum { ADDING, SPREADING };
static const char *const kinds[] = {"adding gradients", "spreading weights"};

/* The operations that the stream has begun and done, in pinned memory: twice the ticket of the last
 * one, plus its kind. Between the two an operation waits for other ranks, not for this GPU. */
struct marks {
    uint32_t begun, done;
};

typedef CUresult (*write_function)(CUstream, CUdeviceptr, cuuint32_t, unsigned);

struct nccl_state {
    struct nccl nccl;
    struct backend *be;
    struct collectives collectives;
    ncclComm_t comm;          /* NULL: not connected yet, or aborted */
    cudaStream_t stream;      /* stream of all NCCL operations */
    cudaEvent_t ready;        /* marks the position in `compute` at the last operation */
    cudaEvent_t done[EVENTS]; /* at ticket % EVENTS: that operation or, once reused, a later one,
                                which completes after it */
    uint64_t tickets;         /* number of tickets issued */
    double stall_limit;       /* seconds */
    write_function write;     /* cuStreamWriteValue32, with which the stream writes the marks */
    struct marks *marks;
    pthread_t watchdog;
    bool watched; /* the watchdog runs */
    int closing;  /* it has to end; atomic */
};

static struct nccl_state *state_of(const struct collectives *c) {
    return (struct nccl_state *)c->state;
}

/* ---- the library */

static bool fill_table(void *table, void *library, char *why, size_t size) {
    struct nccl *nccl = (struct nccl *)table;
#define X(name)                                                   \
    *(void **)(void *)&nccl->name = dlsym(library, "nccl" #name); \
    if (!nccl->name) {                                            \
        snprintf(why, size, "has no nccl" #name);                 \
        return false;                                             \
    }
    NCCL_FUNCTIONS(X)
#undef X
    return true;
}

static int load(struct nccl_state *s, int *version, struct error *error) {
    char reason[CUDA_REASON_BYTES];
#ifndef __CUDACC__
    /* This reference makes the linker take the stub from the archive. */
    static void *volatile linked = (void *)&ncclGetVersion;
    (void)linked;
#endif
    if (cuda_library_load(FILE_NAME, fill_table, &s->nccl, reason))
        return fail(error,
                    "device \"cuda\": ranks on GPUs need NCCL, but %.600s; install libnccl2, or "
                    "name the folder of " FILE_NAME " in LD_LIBRARY_PATH, or use --device cpu",
                    reason);
    if (s->nccl.GetVersion(version) == ncclSuccess) return 0;
    return fail(error, "device \"cuda\": NCCL does not report its version");
}

/* ---- errors */

/* True after a failure, of NCCL or another; NCCL is not called any more then. */
static bool has_failed(struct nccl_state *s) {
    if (!s->be->failure.text[0]) return false;
    if (s->comm) s->nccl.CommAbort(s->comm);
    s->comm = NULL;
    return true;
}

/* Records the first failure. Returns true if there is one. */
static bool nccl_failed(struct nccl_state *s, ncclResult_t result, const char *what) {
    struct error *failure = &s->be->failure;
    if (result != ncclSuccess && !failure->text[0])
        fail(failure, "NCCL: %s: %s: %.600s", what, s->nccl.GetErrorString(result),
             s->nccl.GetLastError(s->comm));
    return has_failed(s);
}

static ncclResult_t first_error(ncclResult_t a, ncclResult_t b) {
    return a != ncclSuccess ? a : b;
}

/* ---- operations */

/* Split of `count` elements into equal parts and a remainder. */
struct shares {
    size_t each, rest; /* elements of every rank's part; remainder, on the last rank */
    size_t own;        /* start of this rank's equal part */
    size_t rest_first;
    int last;
};

static struct shares shares_of(const struct ranks *ranks, int64_t count) {
    size_t each = (size_t)ranks_part(count, ranks->size, 0).count, size = (size_t)ranks->size;
    struct shares shares = {each, (size_t)count - size * each, (size_t)ranks->rank * each,
                            size * each, ranks->size - 1};
    return shares;
}

/* Makes the stream write a mark of the next ticket, after the work queued on it so far. */
static void write_mark(struct nccl_state *s, uint32_t *mark, int kind) {
    uint32_t value = (uint32_t)(2 * (s->tickets + 1)) + (uint32_t)kind;
    if (s->write((CUstream)s->stream, (CUdeviceptr)mark, value, CU_STREAM_WRITE_VALUE_DEFAULT))
        cuda_failed(s->be, cudaErrorNotSupported, "cuStreamWriteValue32");
}

/* Makes NCCL's stream wait for the work queued on compute so far, and begins a group. Returns true
 * if NCCL may be called. */
static bool begin(struct nccl_state *s, int kind) {
    const char *what = kinds[kind];
    cuda_failed(s->be, cudaEventRecord(s->ready, cuda_state(s->be)->compute), what);
    cuda_failed(s->be, cudaStreamWaitEvent(s->stream, s->ready, 0), what);
    write_mark(s, &s->marks->begun, kind);
    return !has_failed(s) && !nccl_failed(s, s->nccl.GroupStart(), what);
}

/* result: of the group's calls, which stop at the first failure. */
static uint64_t end_group(struct nccl_state *s, ncclResult_t result, int kind) {
    const char *what = kinds[kind];
    if (nccl_failed(s, first_error(result, s->nccl.GroupEnd()), what)) return 0;
    write_mark(s, &s->marks->done, kind);
    uint64_t ticket = ++s->tickets;
    cuda_failed(s->be, cudaEventRecord(s->done[ticket % EVENTS], s->stream), what);
    return ticket;
}

static uint64_t nccl_reduce_scatter(const struct collectives *c, void *data, enum dtype dtype,
                                    int64_t count) {
    static const ncclDataType_t types[] = {ncclFloat32, ncclFloat16, ncclBfloat16};
    static_assert(DTYPE_F32 == 0 && DTYPE_F16 == 1 && DTYPE_BF16 == 2, "types by dtype");
    struct nccl_state *s = state_of(c);
    struct shares shares = shares_of(c->ranks, count);
    char *at = (char *)data, *own = at + shares.own * dtype_bytes(dtype);
    char *rest = at + shares.rest_first * dtype_bytes(dtype);
    ncclResult_t result = ncclSuccess;
    if (!begin(s, ADDING)) return 0;
    if (shares.each)
        result =
            s->nccl.ReduceScatter(at, own, shares.each, types[dtype], ncclSum, s->comm, s->stream);
    if (shares.rest && result == ncclSuccess)
        result = s->nccl.Reduce(rest, rest, shares.rest, types[dtype], ncclSum, shares.last,
                                s->comm, s->stream);
    return end_group(s, result, ADDING);
}

static uint64_t nccl_all_gather(const struct collectives *c, void *data, size_t element_bytes,
                                int64_t count) {
    struct nccl_state *s = state_of(c);
    struct shares shares = shares_of(c->ranks, count);
    char *at = (char *)data, *own = at + shares.own * element_bytes;
    char *rest = at + shares.rest_first * element_bytes;
    ncclResult_t result = ncclSuccess;
    if (!begin(s, SPREADING)) return 0;
    if (shares.each)
        result =
            s->nccl.AllGather(own, at, shares.each * element_bytes, ncclInt8, s->comm, s->stream);
    if (shares.rest && result == ncclSuccess)
        result = s->nccl.Broadcast(rest, rest, shares.rest * element_bytes, ncclInt8, shares.last,
                                   s->comm, s->stream);
    return end_group(s, result, SPREADING);
}

/* Failures of other ranks or of the network are reported only after the calls that started
 * operations. */
static bool nccl_fails(const struct collectives *c) {
    struct nccl_state *s = state_of(c);
    ncclResult_t later = ncclSuccess;
    if (has_failed(s)) return true;
    ncclResult_t result = s->nccl.CommGetAsyncError(s->comm, &later);
    return nccl_failed(s, first_error(result, later), "waiting for other ranks");
}

static void nccl_wait(const struct collectives *c, uint64_t ticket) {
    struct nccl_state *s = state_of(c);
    const char *what = "waiting for other ranks";
    assert(ticket <= s->tickets);
    if (nccl_fails(c)) return;
    cuda_failed(s->be, cudaStreamWaitEvent(cuda_state(s->be)->compute, s->done[ticket % EVENTS], 0),
                what);
}

/* ---- the watchdog: NCCL reports a connection that closes, but not a rank that hangs or a machine
 * that is cut off. The host may be inside a launch then, since the queue of launches is full, or
 * wait for other ranks itself. So a thread watches, without calls of CUDA or NCCL, which may wait
 * for the launch. */

/* Ends all ranks. Of the ranks that wait, the lowest prints the message, and the others have been
 * ended before it is their turn. */
static void end_ranks(const struct nccl_state *s, uint32_t operation) {
    const struct ranks *ranks = s->collectives.ranks;
    const struct timespec turn = {0, 250000000};
    for (int i = 0; i < ranks->rank && i < 40; i++) nanosleep(&turn, NULL);
    dprintf(ranks->errors,
            "train: rank %d: NCCL: %s: other ranks have not answered for %g seconds (operation "
            "%u)\nlook for a rank that hangs (--log-ranks keeps the output of each) or a network "
            "that does, then go on from the last checkpoint with --resume; to wait longer, set "
            "MANTISSA_NCCL_TIMEOUT=SECONDS\n",
            ranks->rank, kinds[operation % 2], s->stall_limit, operation / 2);
    ranks_abort(ranks, EXIT_FAILURE);
}

static void *watch(void *state) {
    struct nccl_state *s = (struct nccl_state *)state;
    const struct timespec pause = {0, 50000000};
    uint32_t waiting = 0; /* operation that waits for other ranks; 0: none */
    double since = 0;
    while (!__atomic_load_n(&s->closing, __ATOMIC_ACQUIRE)) {
        uint32_t done = __atomic_load_n(&s->marks->done, __ATOMIC_ACQUIRE);
        uint32_t begun = __atomic_load_n(&s->marks->begun, __ATOMIC_ACQUIRE);
        if (begun == done || begun != waiting) {
            waiting = begun == done ? 0 : begun;
            since = progress_clock();
        } else if (progress_clock() - since > s->stall_limit) {
            end_ranks(s, waiting);
            return NULL;
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

static int start_watchdog(struct nccl_state *s, struct error *error) {
    s->write = (write_function)cuda_driver_function("cuStreamWriteValue32");
    if (!s->write || cudaMallocHost((void **)&s->marks, sizeof *s->marks) != cudaSuccess)
        return fail(error, "NCCL: %s",
                    s->write ? "no memory can be pinned"
                             : "the driver has no cuStreamWriteValue32");
    *s->marks = {0, 0};
    s->watched = signals_start_thread(&s->watchdog, watch, s) == 0;
    return s->watched ? 0 : fail(error, "NCCL: cannot start a thread");
}

/* ---- opening and closing */

/* Waits for the operations under way, unless one of them will never end. */
static void finish(const struct collectives *c) {
    const struct timespec pause = {0, 1000000};
    struct nccl_state *s = state_of(c);
    cudaError_t status;
    while ((status = cudaStreamQuery(s->stream)) == cudaErrorNotReady) {
        cudaGetLastError(); /* not an error, but recorded as one by the runtime */
        if (nccl_fails(c)) return;
        nanosleep(&pause, NULL);
    }
    cuda_failed(s->be, status, "closing NCCL");
}

static void nccl_close(const struct collectives *c) {
    struct nccl_state *s = state_of(c);
    if (!has_failed(s) && s->comm) {
        finish(c);
        if (!has_failed(s)) s->nccl.CommDestroy(s->comm);
    }
    __atomic_store_n(&s->closing, 1, __ATOMIC_RELEASE);
    if (s->watched) pthread_join(s->watchdog, NULL);
    if (s->marks) cudaFreeHost(s->marks);
    for (int i = 0; i < EVENTS; i++)
        if (s->done[i]) cudaEventDestroy(s->done[i]);
    if (s->ready) cudaEventDestroy(s->ready);
    if (s->stream) cudaStreamDestroy(s->stream);
    s->be->collectives = &collectives_alone;
    free(s);
}

static const struct collective_functions nccl_functions = {nccl_reduce_scatter, nccl_all_gather,
                                                           nccl_wait, nccl_close, nccl_fails};

/* NCCL's blocks start before those of the matmuls beside them: a transfer that waits for a free
 * multiprocessor on one rank delays all ranks. */
static void open_stream(struct nccl_state *s) {
    const char *what = "making a stream for NCCL";
    int lowest = 0, highest = 0;
    cuda_failed(s->be, cudaDeviceGetStreamPriorityRange(&lowest, &highest), what);
    cuda_failed(s->be, cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, highest),
                what);
    cuda_failed(s->be, cudaEventCreateWithFlags(&s->ready, cudaEventDisableTiming), what);
    for (int i = 0; i < EVENTS; i++)
        cuda_failed(s->be, cudaEventCreateWithFlags(&s->done[i], cudaEventDisableTiming), what);
}

/* Memory of connections, if the user wants them to be made by the first operations, which come
 * after the memory plan. It is a reserve, not a measurement: 32 channels, to and from a neighbour,
 * with a buffer of 4 MiB each (the default of NCCL_BUFFSIZE), and as much for the buffers of the
 * protocols of low latency. */
static const size_t CONNECTION_RESERVE = (size_t)(32 * 2 * 4 * 2) << 20;

/* Reads how long a rank may keep others waiting: ten minutes, as in PyTorch, unless the user says
 * otherwise. */
static int read_stall_limit(struct nccl_state *s, struct error *error) {
    const char *asked = getenv("MANTISSA_NCCL_TIMEOUT");
    char *end = NULL;
    s->stall_limit = asked ? strtod(asked, &end) : 600;
    if (!asked || (end != asked && !*end && s->stall_limit > 0)) return 0;
    return fail(error, "MANTISSA_NCCL_TIMEOUT=%.80s is not a number of seconds above 0", asked);
}

/* Does all steps that one rank can do alone, before other ranks wait for it in NCCL. */
static int prepare(struct nccl_state *s, const struct ranks *ranks, ncclUniqueId *id,
                   struct error *error) {
    int version = 0;
    if (read_stall_limit(s, error) || load(s, &version, error)) return -1;
    snprintf(s->collectives.description, sizeof s->collectives.description, "NCCL %d.%d.%d",
             version / 10000, version / 100 % 100, version % 100);
    setenv("NCCL_ALGO", "Ring", 0);
    setenv("NCCL_RUNTIME_CONNECT", "0", 0);
    if (strcmp(getenv("NCCL_RUNTIME_CONNECT"), "0") != 0)
        s->be->device.library_bytes += CONNECTION_RESERVE;
    open_stream(s);
    if (start_watchdog(s, error)) return -1;
    if (ranks->rank == 0) nccl_failed(s, s->nccl.GetUniqueId(id), "opening");
    return s->be->failure.text[0] ? fail(error, "%s", s->be->failure.text) : 0;
}

/* Matmuls are told how many multiprocessors are left (matmul/products.cu), so that those whose
 * blocks stay on their multiprocessors do not run in two waves. */
static ncclResult_t connect(struct nccl_state *s, const struct ranks *ranks, ncclUniqueId id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (ranks->size > 1) config.maxCTAs = collectives_multiprocessors(ranks);
    return s->nccl.CommInitRankConfig(&s->comm, ranks->size, id, ranks->rank, &config);
}

int nccl_collectives_open(struct backend *be, const struct ranks *ranks, struct error *error) {
    struct nccl_state *s = (struct nccl_state *)calloc(1, sizeof *s);
    ncclUniqueId id = {};
    int status = -1;
    if (s) {
        s->be = be;
        s->collectives.ranks = ranks;
        s->collectives.functions = &nccl_functions;
        s->collectives.state = s;
        status = prepare(s, ranks, &id, error);
    } else {
        fail_memory(error, "the state of NCCL");
    }
    if (ranks_agree(ranks, status, error)) {
        if (s) nccl_close(&s->collectives);
        return -1;
    }
    ranks_broadcast(ranks, &id, sizeof id);
    if (nccl_failed(s, connect(s, ranks, id), "connecting")) {
        fail(error, "%s", be->failure.text); /* other ranks may hang: the caller has to end them */
        nccl_close(&s->collectives);
        return -1;
    }
    be->collectives = &s->collectives;
    return 0;
}
#endif
