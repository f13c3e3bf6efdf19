/* Rendezvous of the ranks of the fake NCCL, in unnamed memory that their processes share. The
 * unique id holds the memory's path in /proc, so nothing is left behind however a rank ends.
 * Each rank has a buffer there in which it publishes the inputs of its operations. */
#ifndef TEST_CUDA_EMULATOR_FAKE_NCCL_MEETING_H
#define TEST_CUDA_EMULATOR_FAKE_NCCL_MEETING_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

namespace rendezvous {

enum kind { REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST };
const char *name_of(kind what); /* "ncclReduceScatter" */

/* Arguments that must be equal on all ranks. */
struct operation {
    kind what;
    ncclDataType_t type;
    int op, root;
    size_t count;
};

/* A failure with its message; result is ncclSuccess if there is none. */
struct trouble {
    ncclResult_t result;
    char text[256];
};

enum state { ABSENT, PRESENT, ABORTED, DESTROYED };

/* One rank's view of the shared memory. */
struct shared;
struct rank_slot {
    shared *memory;
    int rank, size;
    size_t used;         /* bytes used of its buffer */
    uint64_t called;     /* number of operations it has published */
    uint64_t stalled_at; /* number of the operation that does not end, and since when */
    double stalled_since;
};

/* Creates the shared memory, and the id by which ranks find it. */
trouble create(ncclUniqueId *id);

/* Waits for all ranks, each of which must have its own device. The memory stays mapped until the
 * process ends. */
trouble join(rank_slot *own, const ncclUniqueId &id, int rank, int size, const char device[16]);

void leave(const rank_slot &own, state how);

/* Copies `bytes` of input into the rank's buffer as the input of its next operation, and returns
 * that operation's number in `number`. The buffer is reused once all ranks have done what was
 * published. */
trouble publish(rank_slot *own, const operation &called, const char *input, size_t bytes,
                uint64_t *number);

/* Waits until all ranks have published this operation; fails if its arguments differ from
 * `called`. */
trouble wait_for_all(const rank_slot &own, uint64_t number, const operation &called);

/* Returns a rank's input of an operation, valid until all ranks have finished it. */
bool all_have_called(const rank_slot &own, uint64_t number);

/* A rank that has died or ended without calling this rank's oldest operation under way;
 * ncclSuccess if there is none. */
trouble lost_rank(const rank_slot &own);

/* The same for a rank that has not called it for too long since this was first asked. */
trouble late_rank(rank_slot *own);

const char *input(const rank_slot &own, int rank, uint64_t number);

void done(const rank_slot &own, uint64_t number);
bool all_is_done(const rank_slot &own); /* True if everything this rank has published is done */

} // namespace rendezvous

#endif
