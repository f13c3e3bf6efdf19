/* Counters and switches of the fake NCCL, for tests. Counts are of this process, since it
 * started. */
#ifndef TEST_CUDA_EMULATOR_FAKE_NCCL_H
#define TEST_CUDA_EMULATOR_FAKE_NCCL_H

#ifdef __cplusplus
extern "C" {
#endif

struct fake_nccl {
    long calls;    /* of functions that take a communicator */
    long mistakes; /* what the real library forbids, or would wait for without end */
    long alive;    /* communicators neither destroyed nor aborted */
    long aborted;
};

const struct fake_nccl *fake_nccl_counts(void);

/* The call number nth (1: the next one) of a function, "ncclReduce", fails with this ncclResult_t
 * and does nothing. */
void fake_nccl_fail(const char *function, int nth, int result);

/* From now on ncclCommGetAsyncError tells this ncclResult_t. */
void fake_nccl_fail_later(int result);

/* No messages on stderr about mistakes that a test makes on purpose. */
void fake_nccl_quiet(int quiet);

/* How long an operation waits for ranks that have not called it; 60 at first. */
void fake_nccl_patience(double seconds);

#ifdef __cplusplus
}
#endif

#endif
