/* A fake of the part of NCCL that we use, behind its real prototypes: true sums between
 * processes of one machine. It reports, with a line on stderr, every call that the real library
 * forbids, or would answer by hanging or by wrong numbers.
 *
 * fake_nccl_meeting.h is how ranks find each other and exchange their data.
 *
 * An operation copies its input when it is called: the data that the stream would find when it
 * gets there, without anything the stream does not wait for. So a slow rank never blocks the
 * others, as on GPUs, although our streams work only when the host waits. The memory in use is
 * poisoned until the stream does the operation, and the operation checks that the poison is
 * intact. Sums go around the ring that ends at the receiving rank, rounded at every rank. */
#ifdef WITH_NCCL
#include "test/cuda_emulator/fake_nccl.h"

#include <nccl.h>

#include <algorithm>
#include <vector>

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/cuda_emulator/fake_nccl_meeting.h"
#include "test/cuda_emulator/machine.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

using namespace rendezvous;

namespace {

fake_nccl counts;
bool quiet;
int later_error, open_groups;
struct {
    char function[32];
    int calls_left;
    ncclResult_t result;
} planned;
char last_text[512];

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

ncclResult_t report(const trouble &what) {
    return what.result == ncclSuccess ? ncclSuccess : mistake(what.result, "%s", what.text);
}

} // namespace

struct ncclComm {
    rank_slot own;
    int device;
    bool ended;          /* aborted or destroyed */
    bool failed;         /* a function has reported an error */
    ncclResult_t later;  /* error found on the stream */
    cudaStream_t stream; /* stream of its operations */
    bool has_stream;
    bool connected; /* has the memory of its connections */
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
    char *region; /* memory that must not be touched until the operation is done */
    size_t region_bytes;
};

std::vector<work> group;
/* Never freed, so that use after destruction is detected. */
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

/* ---- the stream's part of an operation */

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

/* to = sum of count elements from index `first` on, in the order of the ring that ends at
 * `last`. */
void add(const work &w, char *to, size_t first, size_t count, int last) {
    int size = w.comm->own.size;
    for (int step = 1; step <= size; step++) {
        const char *from = input(w.comm->own, (last + step) % size, w.number);
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
        add(w, w.receive, (size_t)w.comm->own.rank * w.o.count, w.o.count, w.comm->own.rank);
        break;
    case ALL_GATHER:
        for (int rank = 0; rank < w.comm->own.size; rank++)
            memcpy(w.receive + (size_t)rank * bytes, input(w.comm->own, rank, w.number), bytes);
        break;
    case REDUCE:
        if (w.comm->own.rank == w.o.root) add(w, w.receive, 0, w.o.count, w.o.root);
        break;
    case BROADCAST: memcpy(w.receive, input(w.comm->own, w.o.root, w.number), bytes); break;
    }
}

/* NaN in every type, and different from the emulator's own fill value. */
char poison_at(const char *p) {
    return (uintptr_t)p % 2 ? (char)0xff : (char)0xc3;
}

ncclResult_t meet(const work &w) {
    if (emu::host_is_blocked() && !all_have_called(w.comm->own, w.number)) {
        trouble lost = lost_rank(w.comm->own);
        if (lost.result != ncclSuccess)
            return mistake(ncclRemoteError,
                           "%s: the host waits in the runtime, where it cannot ask "
                           "ncclCommGetAsyncError: it would hang",
                           lost.text);
    }
    ncclResult_t result = report(wait_for_all(w.comm->own, w.number, w.o));
    if (result != ncclSuccess) return result;
    for (size_t i = 0; i < w.region_bytes; i++)
        if (w.region[i] != poison_at(w.region + i))
            return mistake(ncclInvalidUsage,
                           "rank %d, operation %llu, %s: byte %zu of its memory was written while "
                           "it was under way",
                           w.comm->own.rank, (unsigned long long)w.number, name_of(w.o.what), i);
    return ncclSuccess;
}

void perform(void *argument) {
    work *w = (work *)argument;
    if (!w->comm->ended && w->comm->later == ncclSuccess) {
        w->comm->later = meet(*w);
        if (w->comm->later == ncclSuccess) do_arithmetic(*w);
        else emu::runtime_error(cudaErrorLaunchFailure, "NCCL's work failed");
    }
    done(w->comm->own, w->number);
    delete w;
}

/* True if the operation of every rank has begun, so that this one completes. A rank that has died
 * never begins: the operation never ends, as on a GPU. */
bool has_all(void *argument) {
    const work *w = (const work *)argument;
    return w->comm->ended || w->comm->later != ncclSuccess ||
           all_have_called(w->comm->own, w->number);
}

/* ---- calls */

/* True if this call has to fail. */
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
                       comm->own.rank);
    if (comm->failed)
        return mistake(ncclInvalidUsage, "%s: rank %d continues after an error", function,
                       comm->own.rank);
    return ncclSuccess;
}

ncclResult_t check_place(ncclComm *comm, const char *function, cudaStream_t stream) {
    if (emu::current_device() != comm->device || emu::device_of_stream(stream) != comm->device)
        return mistake(ncclInvalidUsage, "%s: rank %d: another device than at its start", function,
                       comm->own.rank);
    if (comm->has_stream && comm->stream != stream)
        return mistake(ncclInvalidUsage, "%s: rank %d: a second stream is not emulated", function,
                       comm->own.rank);
    comm->stream = stream;
    comm->has_stream = true;
    counts.priority = emu::priority_of_stream(stream);
    return ncclSuccess;
}

/* Takes the memory of the connections. */
ncclResult_t connect(ncclComm *comm) {
    if (comm->connected) return ncclSuccess;
    comm->connected = emu::take_memory(FAKE_NCCL_CONNECTION);
    return comm->connected
               ? ncclSuccess
               : mistake(ncclUnhandledCudaError, "no device memory is left for connections");
}

/* Number of bytes that a rank sends and receives. */
size_t send_bytes(const work &w) {
    size_t bytes = w.o.count * size_of(w.o.type);
    if (w.o.what == BROADCAST && w.o.root != w.comm->own.rank) return 0;
    return w.o.what == REDUCE_SCATTER ? bytes * (size_t)w.comm->own.size : bytes;
}
size_t receive_bytes(const work &w) {
    size_t bytes = w.o.count * size_of(w.o.type);
    if (w.o.what == REDUCE && w.o.root != w.comm->own.rank) return 0;
    return w.o.what == ALL_GATHER ? bytes * (size_t)w.comm->own.size : bytes;
}

/* True if send and receive buffers that overlap are laid out as an in-place operation requires. */
bool in_place(const work &w) {
    size_t part = (size_t)w.comm->own.rank * w.o.count * size_of(w.o.type);
    if (w.o.what == REDUCE_SCATTER) return w.receive == w.send + part;
    if (w.o.what == ALL_GATHER) return w.send == w.receive + part;
    return w.send == w.receive;
}

ncclResult_t check_memory(work *w) {
    const char *name = name_of(w->o.what);
    size_t in = send_bytes(*w), out = receive_bytes(*w);
    bool overlap = w->send < w->receive + out && w->receive < w->send + in;
    if ((in && !emu::device_range(w->send, in)) || (out && !emu::device_range(w->receive, out)))
        return mistake(ncclInvalidArgument, "%s: rank %d: not all of it is device memory", name,
                       w->comm->own.rank);
    if (overlap && !in_place(*w))
        return mistake(ncclInvalidUsage, "%s: rank %d: buffers overlap, but not in place", name,
                       w->comm->own.rank);
    bool all_of_send = in_place(*w) && in > out;
    w->region = all_of_send ? (char *)w->send : w->receive;
    w->region_bytes = all_of_send ? in : out;
    return ncclSuccess;
}

ncclResult_t check(work *w) {
    const char *name = name_of(w->o.what);
    ncclResult_t result = check_comm(w->comm, name);
    if (result == ncclSuccess) result = check_place(w->comm, name, w->stream);
    if (result == ncclSuccess && (!size_of(w->o.type) || w->o.op != ncclSum ||
                                  (w->o.type == ncclInt8 && w->o.what % 2 == 0)))
        result = mistake(ncclInvalidArgument, "%s: a type or sum that is not emulated", name);
    if (result == ncclSuccess && (w->o.root < 0 || w->o.root >= w->comm->own.size))
        result =
            mistake(ncclInvalidArgument, "%s: root %d of %d", name, w->o.root, w->comm->own.size);
    return result == ncclSuccess ? check_memory(w) : result;
}

ncclResult_t end_group() {
    ncclResult_t result = ncclSuccess;
    for (work &w : group) {
        if (w.comm->failed) continue;
        emu::inputs_begin(w.stream, w.send, send_bytes(w));
        emu::inputs_begin(w.stream, w.region, w.region_bytes);
        ncclResult_t own = report(publish(&w.comm->own, w.o, w.send, send_bytes(w), &w.number));
        for (size_t i = 0; i < w.region_bytes; i++) w.region[i] = poison_at(w.region + i);
        emu::work_end();
        if (own != ncclSuccess) result = own;
        w.comm->failed |= own != ncclSuccess;
    }
    for (const work &w : group)
        if (!w.comm->failed)
            emu::queue_work(w.stream, perform, has_all, new work(w), w.region, w.region_bytes);
    group.clear();
    return result;
}

ncclResult_t call(const operation &o, const void *send, void *receive, ncclComm *comm,
                  cudaStream_t stream) {
    work w = {comm, o, (const char *)send, (char *)receive, stream, 0, NULL, 0};
    ncclResult_t result;
    if (fails(name_of(w.o.what), w.comm, &result)) return result;
    result = check(&w);
    if (result != ncclSuccess) {
        if (std::find(known.begin(), known.end(), w.comm) != known.end()) w.comm->failed = true;
        return result;
    }
    counts.connected_late += !w.comm->connected;
    result = connect(w.comm);
    if (result != ncclSuccess) return result;
    group.push_back(w);
    return open_groups ? ncclSuccess : end_group();
}

/* Ends a communicator. Returns true if that was allowed. */
ncclResult_t end(ncclComm *comm, state how, const char *function) {
    if (std::find(known.begin(), known.end(), comm) == known.end() || comm->ended)
        return mistake(ncclInvalidArgument, "%s: no communicator", function);
    counts.calls++;
    counts.alive--;
    counts.aborted += how == ABORTED;
    comm->ended = true;
    if (comm->connected) emu::give_memory(FAKE_NCCL_CONNECTION);
    leave(comm->own, how);
    if (how == DESTROYED && (comm->failed || comm->later != ncclSuccess))
        return mistake(ncclInvalidUsage, "%s: rank %d continues after an error", function,
                       comm->own.rank);
    if (how == DESTROYED && !all_is_done(comm->own))
        return mistake(ncclInvalidUsage, "%s: rank %d: operations are under way", function,
                       comm->own.rank);
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
    return report(create(id));
}

ncclResult_t ncclCommInitRank(ncclComm_t *handle, int size, ncclUniqueId id, int rank) {
    ncclResult_t result;
    cudaDeviceProp properties;
    rank_slot own;
    int device = emu::current_device();
    *handle = NULL;
    if (fails("ncclCommInitRank", NULL, &result)) return result;
    cudaGetDeviceProperties(&properties, device);
    result = report(join(&own, id, rank, size, properties.uuid.bytes));
    if (result != ncclSuccess) return result;
    *handle = new ncclComm{own, device, false, false, ncclSuccess, NULL, false, false};
    known.push_back(*handle);
    counts.alive++;
    const char *late = getenv("NCCL_RUNTIME_CONNECT");
    return late && strcmp(late, "0") == 0 ? connect(*handle) : ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *handle, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t *config) {
    const ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
    if (config->size != expected.size || config->magic != expected.magic ||
        config->version != expected.version)
        return mistake(ncclInvalidArgument, "ncclCommInitRankConfig: not initialized");
    if (config->maxCTAs != expected.maxCTAs && config->maxCTAs < 1)
        return mistake(ncclInvalidArgument, "ncclCommInitRankConfig: %d blocks", config->maxCTAs);
    counts.most_blocks = config->maxCTAs == expected.maxCTAs ? 0 : config->maxCTAs;
    return ncclCommInitRank(handle, size, id, rank);
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    return end(comm, DESTROYED, "ncclCommDestroy");
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
    return end(comm, ABORTED, "ncclCommAbort");
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *later) {
    ncclResult_t result;
    if (fails("ncclCommGetAsyncError", comm, &result)) return result;
    result = check_comm(comm, "ncclCommGetAsyncError");
    if (result != ncclSuccess) return result;
    if (later_error) snprintf(last_text, sizeof last_text, "planned by the test");
    if (comm->later == ncclSuccess) comm->later = report(late_rank(&comm->own));
    trouble lost = lost_rank(comm->own);
    if (comm->later == ncclSuccess && lost.result != ncclSuccess) {
        snprintf(last_text, sizeof last_text, "%s", lost.text);
        comm->later = lost.result;
    }
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
    return call({REDUCE_SCATTER, type, op, 0, count}, send, receive, comm, stream);
}

ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
    return call({ALL_GATHER, type, ncclSum, 0, count}, send, receive, comm, stream);
}

ncclResult_t ncclReduce(const void *send, void *receive, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
    return call({REDUCE, type, op, root, count}, send, receive, comm, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream) {
    return call({BROADCAST, type, ncclSum, root, count}, send, receive, comm, stream);
}
}
#endif
