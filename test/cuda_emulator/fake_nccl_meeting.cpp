#ifdef WITH_NCCL
#include "test/cuda_emulator/fake_nccl_meeting.h"

#include <algorithm>
#include <atomic>

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "test/cuda_emulator/fake_nccl.h"

namespace rendezvous {

enum { RANKS_MAX = 16, RECORDS = 1024 };

/* The input of operation N, in the rank's buffer; its record is at N % RECORDS. */
struct record {
    operation called;
    size_t at, bytes;
};

struct member {
    std::atomic<int> state;
    int pid, size;
    char device[16];
    std::atomic<uint64_t> called, done; /* number of operations */
    record records[RECORDS];
};

struct shared {
    uint64_t magic;
    member members[RANKS_MAX];
};

namespace {

const size_t BUFFER_BYTES = (size_t)256 << 20;
const size_t HEADER = (sizeof(shared) + 65535) / 65536 * 65536;
const size_t ALL = HEADER + RANKS_MAX * BUFFER_BYTES;
const uint64_t MAGIC = 0x66616b656e63636c;

/* Content of our ncclUniqueId. */
struct unique_id {
    uint64_t magic;
    int pid, file;
};

double patience = 60;

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void pause_briefly() {
    timespec t = {0, 50000};
    nanosleep(&t, NULL);
}

trouble none() {
    return {ncclSuccess, ""};
}

__attribute__((format(printf, 2, 3))) trouble say(ncclResult_t result, const char *format, ...) {
    trouble said = {result, ""};
    va_list list;
    va_start(list, format);
    vsnprintf(said.text, sizeof said.text, format, list);
    va_end(list);
    return said;
}

char *buffer_of(const rank_slot &own, int rank) {
    return (char *)own.memory + HEADER + (size_t)rank * BUFFER_BYTES;
}

member *member_of(const rank_slot &own) {
    return &own.memory->members[own.rank];
}

trouble map(const unique_id &point, shared **memory) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", point.pid, point.file);
    FILE *file = point.magic == MAGIC ? fopen(path, "r+") : NULL;
    if (!file) return say(ncclSystemError, "ncclCommInitRank: unknown unique id");
    void *at = mmap(NULL, ALL, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fileno(file), 0);
    fclose(file);
    *memory = (shared *)at;
    return at != MAP_FAILED && (*memory)->magic == MAGIC
               ? none()
               : say(ncclSystemError, "ncclCommInitRank: the memory cannot be shared");
}

trouble wait_for_members(const rank_slot &own) {
    double begun = now();
    const member *all = own.memory->members;
    for (int rank = 0; rank < own.size; rank++) {
        while (all[rank].state.load() == ABSENT) {
            if (now() - begun > patience)
                return say(ncclSystemError, "ncclCommInitRank: rank %d did not join", rank);
            pause_briefly();
        }
        if (all[rank].size != own.size)
            return say(ncclInvalidArgument, "ncclCommInitRank: %d ranks, or %d?", own.size,
                       all[rank].size);
    }
    for (int a = 0; a < own.size; a++)
        for (int b = 0; b < a; b++)
            if (memcmp(all[a].device, all[b].device, sizeof all[a].device) == 0)
                return say(ncclInvalidUsage, "ranks %d and %d have the same GPU", b, a);
    return none();
}

/* Says why a rank does not call an operation; "" if it still may. */
void reason(const rank_slot &own, int rank, char *why, size_t size) {
    const member &other = own.memory->members[rank];
    why[0] = 0;
    if (other.state == ABORTED) snprintf(why, size, "rank %d has aborted", rank);
    else if (other.state == DESTROYED) snprintf(why, size, "rank %d has left", rank);
    else if (kill(other.pid, 0) && errno == ESRCH) snprintf(why, size, "rank %d died", rank);
}

/* Waits until the rank has called this operation. `why` is "", or the reason why it never will. */
void wait_for(const rank_slot &own, int rank, uint64_t number, char *why, size_t size) {
    const member &other = own.memory->members[rank];
    double begun = now();
    why[0] = 0;
    while (other.called.load() <= number) {
        reason(own, rank, why, size);
        if (!why[0] && now() - begun > patience)
            snprintf(why, size, "rank %d does not call it", rank);
        if (why[0] && other.called.load() <= number) return;
        why[0] = 0;
        pause_briefly();
    }
}

bool same(const operation &a, const operation &b) {
    return a.what == b.what && a.type == b.type && a.op == b.op && a.root == b.root &&
           a.count == b.count;
}

} // namespace

const char *name_of(kind what) {
    static const char *const names[] = {"ncclReduceScatter", "ncclAllGather", "ncclReduce",
                                        "ncclBroadcast"};
    return names[what];
}

trouble create(ncclUniqueId *id) {
    unique_id point = {MAGIC, getpid(), memfd_create("fake nccl", MFD_CLOEXEC)};
    if (point.file < 0 || ftruncate(point.file, (off_t)ALL) ||
        pwrite(point.file, &MAGIC, sizeof MAGIC, offsetof(shared, magic)) != sizeof MAGIC)
        return say(ncclSystemError, "ncclGetUniqueId: no memory to share");
    memset(id, 0, sizeof *id);
    memcpy(id, &point, sizeof point);
    return none();
}

trouble join(rank_slot *own, const ncclUniqueId &id, int rank, int size, const char device[16]) {
    unique_id point;
    memcpy(&point, &id, sizeof point);
    *own = {NULL, rank, size, 0, 0, 0, 0};
    if (size < 1 || size > RANKS_MAX || rank < 0 || rank >= size)
        return say(ncclInvalidArgument, "ncclCommInitRank: rank %d of %d", rank, size);
    trouble mapping = map(point, &own->memory);
    if (mapping.result != ncclSuccess) return mapping;
    member *self = member_of(*own);
    if (self->state.load() != ABSENT)
        return say(ncclInvalidUsage, "ncclCommInitRank: rank %d joined twice", rank);
    self->pid = getpid();
    self->size = size;
    memcpy(self->device, device, sizeof self->device);
    self->state = PRESENT;
    trouble gathering = wait_for_members(*own);
    if (point.pid == getpid()) close(point.file); /* every rank has mapped it */
    return gathering;
}

void leave(const rank_slot &own, state how) {
    member_of(own)->state = how;
}

trouble publish(rank_slot *own, const operation &called, const char *input, size_t bytes,
                uint64_t *number) {
    member *self = member_of(*own);
    uint64_t done = own->called;
    for (int rank = 0; rank < own->size; rank++)
        done = std::min(done, own->memory->members[rank].done.load());
    if (done == own->called) own->used = 0;
    if (own->used + bytes > BUFFER_BYTES || own->called - done >= RECORDS)
        return say(ncclSystemError, "rank %d: too much is under way for the emulation", own->rank);
    *number = own->called++;
    if (bytes) memcpy(buffer_of(*own, own->rank) + own->used, input, bytes);
    self->records[*number % RECORDS] = {called, own->used, bytes};
    self->called = own->called;
    own->used += (bytes + 63) / 64 * 64;
    return none();
}

trouble wait_for_all(const rank_slot &own, uint64_t number, const operation &called) {
    char why[80];
    const char *name = name_of(called.what);
    for (int rank = 0; rank < own.size; rank++) {
        wait_for(own, rank, number, why, sizeof why);
        if (why[0])
            return say(ncclRemoteError, "rank %d waits in operation %llu, %s: %s", own.rank,
                       (unsigned long long)number, name, why);
        const operation &o = own.memory->members[rank].records[number % RECORDS].called;
        if (!same(called, o))
            return say(ncclInvalidUsage,
                       "operation %llu: rank %d called %s, count %zu, type %d, root %d, where "
                       "rank %d called %s, count %zu, type %d, root %d",
                       (unsigned long long)number, rank, name_of(o.what), o.count, o.type, o.root,
                       own.rank, name, called.count, called.type, called.root);
    }
    return none();
}

bool all_have_called(const rank_slot &own, uint64_t number) {
    for (int rank = 0; rank < own.size; rank++)
        if (own.memory->members[rank].called.load() <= number) return false;
    return true;
}

trouble lost_rank(const rank_slot &own) {
    char why[80];
    uint64_t oldest = member_of(own)->done.load();
    for (int rank = 0; rank < own.size && oldest < own.called; rank++) {
        reason(own, rank, why, sizeof why);
        if (why[0] && own.memory->members[rank].called.load() <= oldest)
            return say(ncclRemoteError, "rank %d waits in operation %llu: %s", own.rank,
                       (unsigned long long)oldest, why);
    }
    return none();
}

trouble late_rank(rank_slot *own) {
    uint64_t oldest = member_of(*own)->done.load();
    if (oldest != own->stalled_at || own->stalled_since == 0) {
        own->stalled_at = oldest;
        own->stalled_since = now();
    }
    if (oldest == own->called || now() - own->stalled_since < patience) return none();
    for (int rank = 0; rank < own->size; rank++)
        if (own->memory->members[rank].called.load() <= oldest)
            return say(ncclRemoteError, "rank %d waits in operation %llu: rank %d does not call it",
                       own->rank, (unsigned long long)oldest, rank);
    return none();
}

const char *input(const rank_slot &own, int rank, uint64_t number) {
    const record &r = own.memory->members[rank].records[number % RECORDS];
    return buffer_of(own, rank) + r.at;
}

void done(const rank_slot &own, uint64_t number) {
    member_of(own)->done = number + 1;
}

bool all_is_done(const rank_slot &own) {
    return member_of(own)->done.load() == own.called;
}

} // namespace rendezvous

void fake_nccl_patience(double seconds) {
    rendezvous::patience = seconds;
}
#endif
