/* Counters and switches of the fake NCCL, for tests. Counters cover this process since its
 * start. */
#ifndef TEST_CUDA_EMULATOR_FAKE_NCCL_H
#define TEST_CUDA_EMULATOR_FAKE_NCCL_H

#ifdef __cplusplus
extern "C" {
#endif

struct fake_nccl {
    long calls;    /* calls of functions that take a communicator */
    long mistakes; /* calls that the real library forbids, or that would hang */
    long alive;    /* communicators neither destroyed nor aborted */
    long aborted;
    long connected_late; /* communicators that connected in their first operation */
    int most_blocks;     /* of an operation, of the last communicator */
    int priority;        /* stream priority of the last operation; 0 is the lowest */
};

const struct fake_nccl *fake_nccl_counts(void);

/* Makes the nth next call (1: the next one) of a function such as "ncclReduce" fail with this
 * ncclResult_t and do nothing. */
void fake_nccl_fail(const char *function, int nth, int result);

/* Makes ncclCommGetAsyncError report this ncclResult_t from now on. */
void fake_nccl_fail_later(int result);

/* As NCCL 2.22 and later, a communicator connects in its first operation, and takes this much
 * device memory there, unless the environment has NCCL_RUNTIME_CONNECT=0. */
enum { FAKE_NCCL_CONNECTION = 8 << 20 };

/* Suppresses messages on stderr about mistakes that a test makes on purpose. */
void fake_nccl_quiet(int quiet);

/* Timeout of an operation that waits for other ranks, in seconds. Initially 60. */
void fake_nccl_patience(double seconds);

#ifdef __cplusplus
}
#endif

#endif
