/* A stand-in for the part of NCCL that we use, behind its real prototypes: honest sums between
 * processes of one machine, and a clerk who reports (with a line on stderr) whatever the real one
 * forbids, or would answer by hanging or by wrong numbers.
 *
 * A communicator is memory that the ranks share, which has no name: the unique id tells where in
 * /proc it is found, so that nothing is left behind, however a rank ends. Each rank has a room
 * there in which it publishes what goes into its operations.
 *
 * An operation takes what it reads when it is called, that is, what the stream would find when it
 * comes there: what the stream has not been told to wait for is missing. So a rank's slowness never
 * keeps others from going on, as on GPUs, although our streams work only when somebody waits. The
 * memory under way is poison until the stream does the operation, which must find the poison as it
 * was. Sums go around the ring that ends at the rank that gets them, rounded at every rank. */
#ifdef WITH_NCCL
#include "test/cuda_emulator/fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "test/cuda_emulator/machine.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace {

enum { RANKS_MOST = 16, RECORDS = 1024 };
enum kind { REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST };
const char *const names[] = {"ncclReduceScatter", "ncclAllGather", "ncclReduce", "ncclBroadcast"};
const size_t ROOM = (size_t)256 << 20;
const uint64_t MAGIC = 0x66616b656e63636c;

/* What must be the same on all ranks. */
struct operation {
    kind what;
    ncclDataType_t type;
    int op, root;
    size_t count;
};

/* In a rank's room: what it put into its operation number N, at N % RECORDS. */
struct record {
    operation called;
    size_t at, bytes;
};

enum state { NOBODY, HERE, ABORTED, DESTROYED };

struct member {
    std::atomic<int> state;
    int pid, size;
    char device[16];
    std::atomic<uint64_t> called, done; /* operations */
    record records[RECORDS];
};

struct shared {
    uint64_t magic;
    member members[RANKS_MOST];
};

const size_t HEADER = (sizeof(shared) + 65535) / 65536 * 65536;

/* What our ncclUniqueId holds. */
struct meeting_point {
    uint64_t magic;
    int pid, file;
};

fake_nccl counts;
double patience = 60;
bool quiet;
int later_error, open_groups;
struct {
    char function[32];
    int calls_left;
    ncclResult_t result;
} planned;
char last_text[512];

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void rest() {
    timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

__attribute__((format(printf, 2, 3))) ncclResult_t mistake(ncclResult_t result, const char *format,
                                                           ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(last_text, sizeof last_text, format, list);
    va_end(list);
    if (!quiet) fprintf(stderr, "fake NCCL: %s\n", last_text);
    counts.mistakes++;
    return result;
}

} // namespace

struct ncclComm {
    shared *memory;
    int rank, size, device;
    bool ended;          /* aborted or destroyed */
    bool failed;         /* a function has said so */
    ncclResult_t later;  /* what went wrong on the stream */
    cudaStream_t stream; /* of its operations */
    bool has_stream;
    size_t used; /* of its room */
    uint64_t called;
};

namespace {

/* An operation of this rank. */
struct work {
    ncclComm *comm;
    operation o;
    const char *send;
    char *receive;
    cudaStream_t stream;
    uint64_t number;
    char *region; /* that must not be touched while it is under way */
    size_t region_bytes;
};

std::vector<work> group;
/* Never freed: what is used afterwards can be told. */
std::vector<ncclComm *> &known = *new std::vector<ncclComm *>;

size_t size_of(ncclDataType_t type) {
    switch (type) {
    case ncclInt8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclFloat32: return 4;
    default: return 0;
    }
}

char *room_of(const ncclComm *comm, int rank) {
    return (char *)comm->memory + HEADER + (size_t)rank * ROOM;
}

/* ---- what a stream does when it comes to an operation */

float load(const char *p, ncclDataType_t type, size_t i) {
    if (type == ncclFloat32) return ((const float *)p)[i];
    if (type == ncclBfloat16) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}

void store(char *p, ncclDataType_t type, size_t i, float value) {
    if (type == ncclFloat32) ((float *)p)[i] = value;
    else if (type == ncclBfloat16) ((__nv_bfloat16 *)p)[i] = __float2bfloat16(value);
    else ((__half *)p)[i] = __float2half(value);
}

const char *input(const work &w, int rank) {
    const record &r = w.comm->memory->members[rank].records[w.number % RECORDS];
    return room_of(w.comm, rank) + r.at;
}

/* to = the sum of count elements from `first` on, in the order of the ring that ends at `last`. */
void add(const work &w, char *to, size_t first, size_t count, int last) {
    int size = w.comm->size;
    for (int step = 1; step <= size; step++) {
        const char *from = input(w, (last + step) % size);
        for (size_t i = 0; i < count; i++) {
            float value = load(from, w.o.type, first + i);
            if (step > 1) value += load(to, w.o.type, i);
            store(to, w.o.type, i, value);
        }
    }
}

void do_arithmetic(const work &w) {
    size_t bytes = w.o.count * size_of(w.o.type);
    switch (w.o.what) {
    case REDUCE_SCATTER:
        add(w, w.receive, (size_t)w.comm->rank * w.o.count, w.o.count, w.comm->rank);
        break;
    case ALL_GATHER:
        for (int rank = 0; rank < w.comm->size; rank++)
            memcpy(w.receive + (size_t)rank * bytes, input(w, rank), bytes);
        break;
    case REDUCE:
        if (w.comm->rank == w.o.root) add(w, w.receive, 0, w.o.count, w.o.root);
        break;
    case BROADCAST: memcpy(w.receive, input(w, w.o.root), bytes); break;
    }
}

/* NaN in every type, and not what the emulator fills memory with. */
char poison_at(const char *p) {
    return (uintptr_t)p % 2 ? (char)0xff : (char)0xc3;
}

/* Waits until the rank has called this operation; "" or why it never will. */
void wait_for(const work &w, int rank, char *why, size_t size) {
    const member &other = w.comm->memory->members[rank];
    double begun = now();
    why[0] = 0;
    while (other.called.load() <= w.number) {
        if (other.state == ABORTED) snprintf(why, size, "rank %d has aborted", rank);
        else if (other.state == DESTROYED) snprintf(why, size, "rank %d has left", rank);
        else if (kill(other.pid, 0) && errno == ESRCH) snprintf(why, size, "rank %d died", rank);
        else if (now() - begun > patience) snprintf(why, size, "rank %d does not call it", rank);
        if (why[0] && other.called.load() <= w.number) return;
        why[0] = 0;
        rest();
    }
}

bool same(const operation &a, const operation &b) {
    return a.what == b.what && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.count == b.count;
}

ncclResult_t meet(const work &w) {
    char why[80];
    const char *name = names[w.o.what];
    for (int rank = 0; rank < w.comm->size; rank++) {
        wait_for(w, rank, why, sizeof why);
        if (why[0])
            return mistake(ncclRemoteError, "rank %d waits in operation %llu, %s: %s", w.comm->rank,
                           (unsigned long long)w.number, name, why);
        const operation &o = w.comm->memory->members[rank].records[w.number % RECORDS].called;
        if (!same(w.o, o))
            return mistake(ncclInvalidUsage,
                           "operation %llu: rank %d called %s, count %zu, type %d, root %d, where "
                           "rank %d called %s, count %zu, type %d, root %d",
                           (unsigned long long)w.number, rank, names[o.what], o.count, o.type,
                           o.root, w.comm->rank, name, w.o.count, w.o.type, w.o.root);
    }
    for (size_t i = 0; i < w.region_bytes; i++)
        if (w.region[i] != poison_at(w.region + i))
            return mistake(ncclInvalidUsage,
                           "rank %d, operation %llu, %s: byte %zu of its memory was written while "
                           "it was under way",
                           w.comm->rank, (unsigned long long)w.number, name, i);
    return ncclSuccess;
}

void perform(void *argument) {
    work *w = (work *)argument;
    if (!w->comm->ended && w->comm->later == ncclSuccess) {
        w->comm->later = meet(*w);
        if (w->comm->later == ncclSuccess) do_arithmetic(*w);
        else emu::runtime_error(cudaErrorLaunchFailure, "NCCL's work failed");
    }
    w->comm->memory->members[w->comm->rank].done = w->number + 1;
    delete w;
}

/* ---- calls */

/* Whether this call is to fail. */
bool fails(const char *function, ncclComm *comm, ncclResult_t *result) {
    if (comm) counts.calls++;
    if (strcmp(planned.function, function) != 0 || --planned.calls_left != 0) return false;
    snprintf(last_text, sizeof last_text, "planned by the test");
    *result = planned.result;
    planned.function[0] = 0;
    if (comm) comm->failed = true;
    return true;
}

ncclResult_t check_comm(ncclComm *comm, const char *function) {
    if (std::find(known.begin(), known.end(), comm) == known.end())
        return mistake(ncclInvalidArgument, "%s: no communicator", function);
    if (comm->ended)
        return mistake(ncclInvalidArgument, "%s: rank %d has aborted or destroyed it", function,
                       comm->rank);
    if (comm->failed)
        return mistake(ncclInvalidUsage, "%s: rank %d goes on after an error", function,
                       comm->rank);
    return ncclSuccess;
}

ncclResult_t check_place(ncclComm *comm, const char *function, cudaStream_t stream) {
    if (emu::current_device() != comm->device || emu::device_of_stream(stream) != comm->device)
        return mistake(ncclInvalidUsage, "%s: rank %d: another device than at its start", function,
                       comm->rank);
    if (comm->has_stream && comm->stream != stream)
        return mistake(ncclInvalidUsage, "%s: rank %d: a second stream is not emulated", function,
                       comm->rank);
    comm->stream = stream;
    comm->has_stream = true;
    return ncclSuccess;
}

/* Bytes that a rank puts in and gets. */
size_t send_bytes(const work &w) {
    size_t bytes = w.o.count * size_of(w.o.type);
    if (w.o.what == BROADCAST && w.o.root != w.comm->rank) return 0;
    return w.o.what == REDUCE_SCATTER ? bytes * (size_t)w.comm->size : bytes;
}
size_t receive_bytes(const work &w) {
    size_t bytes = w.o.count * size_of(w.o.type);
    if (w.o.what == REDUCE && w.o.root != w.comm->rank) return 0;
    return w.o.what == ALL_GATHER ? bytes * (size_t)w.comm->size : bytes;
}

/* Where both are the same memory, this is how they must lie. */
bool in_place(const work &w) {
    size_t part = (size_t)w.comm->rank * w.o.count * size_of(w.o.type);
    if (w.o.what == REDUCE_SCATTER) return w.receive == w.send + part;
    if (w.o.what == ALL_GATHER) return w.send == w.receive + part;
    return w.send == w.receive;
}

ncclResult_t check_memory(work *w) {
    const char *name = names[w->o.what];
    size_t in = send_bytes(*w), out = receive_bytes(*w);
    bool overlap = w->send < w->receive + out && w->receive < w->send + in;
    if ((in && !emu::device_range(w->send, in)) || (out && !emu::device_range(w->receive, out)))
        return mistake(ncclInvalidArgument, "%s: rank %d: not all of it is device memory", name,
                       w->comm->rank);
    if (overlap && !in_place(*w))
        return mistake(ncclInvalidUsage, "%s: rank %d: buffers overlap in a wrong place", name,
                       w->comm->rank);
    bool all_of_send = in_place(*w) && in > out;
    w->region = all_of_send ? (char *)w->send : w->receive;
    w->region_bytes = all_of_send ? in : out;
    return ncclSuccess;
}

ncclResult_t check(work *w) {
    const char *name = names[w->o.what];
    ncclResult_t result = check_comm(w->comm, name);
    if (result == ncclSuccess) result = check_place(w->comm, name, w->stream);
    if (result == ncclSuccess && (!size_of(w->o.type) || w->o.op != ncclSum ||
                                  (w->o.type == ncclInt8 && w->o.what % 2 == 0)))
        result = mistake(ncclInvalidArgument, "%s: a type or sum that is not emulated", name);
    if (result == ncclSuccess && (w->o.root < 0 || w->o.root >= w->comm->size))
        result = mistake(ncclInvalidArgument, "%s: root %d of %d", name, w->o.root, w->comm->size);
    return result == ncclSuccess ? check_memory(w) : result;
}

/* Once all have done what was published, the room is empty again. */
ncclResult_t publish(work *w) {
    ncclComm *comm = w->comm;
    member *own = &comm->memory->members[comm->rank];
    size_t bytes = send_bytes(*w);
    uint64_t done = comm->called;
    for (int rank = 0; rank < comm->size; rank++)
        done = std::min(done, comm->memory->members[rank].done.load());
    if (done == comm->called) comm->used = 0;
    if (comm->used + bytes > ROOM || comm->called - done >= RECORDS)
        return mistake(ncclSystemError, "rank %d: too much is under way for the emulation",
                       comm->rank);
    w->number = comm->called++;
    if (bytes) memcpy(room_of(comm, comm->rank) + comm->used, w->send, bytes);
    own->records[w->number % RECORDS] = {w->o, comm->used, bytes};
    own->called = comm->called;
    comm->used += (bytes + 63) / 64 * 64;
    return ncclSuccess;
}

ncclResult_t end_group() {
    ncclResult_t result = ncclSuccess;
    for (work &w : group) {
        if (w.comm->failed) continue;
        emu::inputs_begin(w.stream, w.send, send_bytes(w));
        emu::inputs_begin(w.stream, w.region, w.region_bytes);
        ncclResult_t own = publish(&w);
        for (size_t i = 0; i < w.region_bytes; i++) w.region[i] = poison_at(w.region + i);
        emu::work_end();
        if (own != ncclSuccess) result = own;
        w.comm->failed |= own != ncclSuccess;
    }
    for (const work &w : group)
        if (!w.comm->failed)
            emu::queue_work(w.stream, perform, new work(w), w.region, w.region_bytes);
    group.clear();
    return result;
}

ncclResult_t call(work w) {
    ncclResult_t result;
    if (fails(names[w.o.what], w.comm, &result)) return result;
    result = check(&w);
    if (result != ncclSuccess) {
        if (std::find(known.begin(), known.end(), w.comm) != known.end()) w.comm->failed = true;
        return result;
    }
    group.push_back(w);
    return open_groups ? ncclSuccess : end_group();
}

/* ---- ranks meet */

ncclResult_t map(const meeting_point &point, shared **memory) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", point.pid, point.file);
    FILE *file = point.magic == MAGIC ? fopen(path, "r+") : NULL;
    if (!file) return mistake(ncclSystemError, "ncclCommInitRank: nobody has this unique id");
    void *at = mmap(NULL, HEADER + RANKS_MOST * ROOM, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_NORESERVE, fileno(file), 0);
    fclose(file);
    *memory = (shared *)at;
    return at != MAP_FAILED && (*memory)->magic == MAGIC
               ? ncclSuccess
               : mistake(ncclSystemError, "ncclCommInitRank: the memory cannot be shared");
}

/* Waits for all ranks, each of which must have a device of its own. */
ncclResult_t gather(const ncclComm *comm) {
    double begun = now();
    const member *all = comm->memory->members;
    for (int rank = 0; rank < comm->size; rank++) {
        while (all[rank].state.load() == NOBODY) {
            if (now() - begun > patience)
                return mistake(ncclSystemError, "ncclCommInitRank: rank %d does not come", rank);
            rest();
        }
        if (all[rank].size != comm->size)
            return mistake(ncclInvalidArgument, "ncclCommInitRank: %d ranks, or %d?", comm->size,
                           all[rank].size);
    }
    for (int a = 0; a < comm->size; a++)
        for (int b = 0; b < a; b++)
            if (memcmp(all[a].device, all[b].device, sizeof all[a].device) == 0)
                return mistake(ncclInvalidUsage, "ranks %d and %d have the same GPU", b, a);
    return ncclSuccess;
}

/* Ends a communicator. Returns whether that was allowed. */
ncclResult_t leave(ncclComm *comm, state how, const char *function) {
    if (std::find(known.begin(), known.end(), comm) == known.end() || comm->ended)
        return mistake(ncclInvalidArgument, "%s: no communicator", function);
    member *own = &comm->memory->members[comm->rank];
    counts.calls++;
    counts.alive--;
    counts.aborted += how == ABORTED;
    comm->ended = true;
    own->state = how;
    if (how == DESTROYED && (comm->failed || comm->later != ncclSuccess))
        return mistake(ncclInvalidUsage, "%s: rank %d goes on after an error", function,
                       comm->rank);
    if (how == DESTROYED && own->done.load() != comm->called)
        return mistake(ncclInvalidUsage, "%s: rank %d: operations are under way", function,
                       comm->rank);
    return open_groups ? mistake(ncclInvalidUsage, "%s: within a group", function) : ncclSuccess;
}

} // namespace

const struct fake_nccl *fake_nccl_counts(void) {
    return &counts;
}

void fake_nccl_fail(const char *function, int nth, int result) {
    snprintf(planned.function, sizeof planned.function, "%s", function);
    planned.calls_left = nth;
    planned.result = (ncclResult_t)result;
}

void fake_nccl_fail_later(int result) {
    later_error = result;
}

void fake_nccl_quiet(int on) {
    quiet = on != 0;
}

void fake_nccl_patience(double seconds) {
    patience = seconds;
}

extern "C" {

ncclResult_t ncclGetVersion(int *version) {
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result) {
    static const char *const texts[] = {
        "no error",         "unhandled cuda error", "unhandled system error", "internal error",
        "invalid argument", "invalid usage",        "remote process exited",  "in progress"};
    return result >= 0 && result < ncclNumResults ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) {
    return last_text;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id) {
    ncclResult_t result;
    if (fails("ncclGetUniqueId", NULL, &result)) return result;
    meeting_point point = {MAGIC, getpid(), memfd_create("fake nccl", MFD_CLOEXEC)};
    if (point.file < 0 || ftruncate(point.file, (off_t)(HEADER + RANKS_MOST * ROOM)) ||
        pwrite(point.file, &MAGIC, sizeof MAGIC, offsetof(shared, magic)) != sizeof MAGIC)
        return mistake(ncclSystemError, "ncclGetUniqueId: no memory to share");
    memset(id, 0, sizeof *id);
    memcpy(id, &point, sizeof point);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *handle, int size, ncclUniqueId id, int rank) {
    ncclResult_t result;
    meeting_point point;
    shared *memory = NULL;
    cudaDeviceProp properties;
    memcpy(&point, &id, sizeof point);
    *handle = NULL;
    if (fails("ncclCommInitRank", NULL, &result)) return result;
    if (size < 1 || size > RANKS_MOST || rank < 0 || rank >= size)
        return mistake(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, size);
    result = map(point, &memory);
    if (result != ncclSuccess) return result;
    member *own = &memory->members[rank];
    if (own->state.load() != NOBODY)
        return mistake(ncclInvalidUsage, "ncclCommInitRank: rank %d is there twice", rank);
    ncclComm *comm = new ncclComm();
    comm->memory = memory;
    comm->rank = rank;
    comm->size = size;
    comm->device = emu::current_device();
    cudaGetDeviceProperties(&properties, comm->device);
    own->pid = getpid();
    own->size = size;
    memcpy(own->device, properties.uuid.bytes, sizeof own->device);
    own->state = HERE;
    known.push_back(comm);
    result = gather(comm);
    if (point.pid == getpid()) close(point.file); /* all have it */
    comm->ended = result != ncclSuccess;
    if (result != ncclSuccess) return result;
    counts.alive++;
    *handle = comm;
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return leave(comm, DESTROYED, "ncclCommDestroy");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return leave(comm, ABORTED, "ncclCommAbort");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *later) {
    ncclResult_t result;
    if (fails("ncclCommGetAsyncError", comm, &result)) return result;
    result = check_comm(comm, "ncclCommGetAsyncError");
    if (result != ncclSuccess) return result;
    if (later_error) snprintf(last_text, sizeof last_text, "planned by the test");
    *later = later_error ? (ncclResult_t)later_error : comm->later;
    comm->failed |= *later != ncclSuccess;
    return ncclSuccess;
}

ncclResult_t ncclGroupStart(void) {
    ncclResult_t result;
    if (fails("ncclGroupStart", NULL, &result)) return result;
    open_groups++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void) {
    ncclResult_t result;
    if (open_groups == 0) return mistake(ncclInvalidUsage, "ncclGroupEnd without a start");
    bool failed = fails("ncclGroupEnd", NULL, &result);
    if (--open_groups) return ncclSuccess;
    if (!failed) return end_group();
    for (work &w : group) w.comm->failed = true;
    group.clear();
    return result;
}

ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
    return call({comm,
                 {REDUCE_SCATTER, type, op, 0, count},
                 (const char *)send,
                 (char *)receive,
                 stream,
                 0,
                 NULL,
                 0});
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return call({comm,
                 {ALL_GATHER, type, ncclSum, 0, count},
                 (const char *)send,
                 (char *)receive,
                 stream,
                 0,
                 NULL,
                 0});
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return call({comm,
                 {REDUCE, type, op, root, count},
                 (const char *)send,
                 (char *)receive,
                 stream,
                 0,
                 NULL,
                 0});
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return call({comm,
                 {BROADCAST, type, ncclSum, root, count},
                 (const char *)send,
                 (char *)receive,
                 stream,
                 0,
                 NULL,
                 0});
}
}
#endif
