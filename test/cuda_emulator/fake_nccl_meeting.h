/* How the ranks of the stand-in for NCCL meet: in memory that their processes share, which has no
 * name. The unique id tells where in /proc it is found, so that nothing is left behind, however a
 * rank ends. Each rank has a room there in which it publishes what goes into its operations. */
#ifndef TEST_CUDA_EMULATOR_FAKE_NCCL_MEETING_H
#define TEST_CUDA_EMULATOR_FAKE_NCCL_MEETING_H

#include <nccl.h>
#include <stddef.h>
#include <stdint.h>

namespace meeting {

enum kind { REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST };
const char *name_of(kind what); /* "ncclReduceScatter" */

/* Arguments that must be the same on all ranks. */
struct operation {
    kind what;
    ncclDataType_t type;
    int op, root;
    size_t count;
};

/* A failure; result ncclSuccess: none. */
struct trouble {
    ncclResult_t result;
    char text[256];
};

enum state { NOBODY, HERE, ABORTED, DESTROYED };

/* A rank's place at a meeting. */
struct shared;
struct seat {
    shared *memory;
    int rank, size;
    size_t used;     /* bytes of its room */
    uint64_t called; /* operations that it has published */
};

/* Makes the memory, and the id by which ranks find it. */
trouble arrange(ncclUniqueId *id);

/* Waits for all ranks, each of which must have a device of its own. Memory that was mapped stays so
 * until the process ends. */
trouble enter(seat *own, const ncclUniqueId &id, int rank, int size, const char device[16]);

void leave(const seat &own, state how);

/* Puts `bytes` of input into the rank's room as those of its next operation, whose number it gives.
 * Once all ranks have done what was published, the room is empty again. */
trouble publish(seat *own, const operation &called, const char *input, size_t bytes,
                uint64_t *number);

/* Waits until all ranks have published this operation, the same as ours. */
trouble wait_for_all(const seat &own, uint64_t number, const operation &called);

/* Returns a rank's input of an operation, valid until all ranks have finished it. */
const char *input(const seat &own, int rank, uint64_t number);

void done(const seat &own, uint64_t number);
bool all_is_done(const seat &own); /* of what this rank has published */

} // namespace meeting

#endif
