/* Control of the emulated device by tests. Only in emulated builds (EMULATED is defined there); C
 * and C++. The emulator serves one thread of the host.
 *
 * CUDA_EMULATOR_DEVICES=4 in the environment puts four devices into the machine, of which
 * CUDA_VISIBLE_DEVICES="2,3" shows some; by default there is one. CUDA_EMULATOR_FAIL=cudaMalloc:3
 * lets the third call of cudaMalloc fail; so can other calls that take resources or start work,
 * kernels ("launch") and those of cublasLt. CUDA_EMULATOR_SM=75 makes it a GPU of that compute
 * capability; CUBLASLT_REFUSE=EPILOGUE and CUBLASLT_LIE=EPILOGUE are as in fake_cublaslt.h. */
#ifndef TEST_CUDA_EMULATOR_CONTROL_H
#define TEST_CUDA_EMULATOR_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The order in which threads and blocks run: 0 as numbered, 1 reversed, else by chance. */
void cuda_emulator_schedule(unsigned seed);

/* Leaves `bytes` of device memory free, whatever is allocated now; 16 GiB at first. */
void cuda_emulator_memory(size_t bytes);

/* Makes it a GPU of compute capability sm / 10 . sm % 10, for what is opened from now on; sm_90 at
 * first. */
void cuda_emulator_capability(int sm);

/* Counted since the last reset. A conflict is a further cycle that an ldmatrix (one of its 8x8
 * matrices) takes because rows share banks of shared memory; 0 is what a good layout gives. */
struct cuda_emulator_stats {
    uint64_t launches, blocks, threads, switches, barriers, collectives;
    uint64_t ldmatrix, ldmatrix_conflicts;
    uint64_t graph_launches; /* their kernels count as launches, too */
};
struct cuda_emulator_stats cuda_emulator_stats(void);
void cuda_emulator_stats_reset(void);

/* No messages on stderr about errors that a test makes on purpose. */
void cuda_emulator_quiet(int quiet);

/* Text of the last launch that failed, "" if the last one did not. */
const char *cuda_emulator_failure(void);

#ifdef __cplusplus
}
#endif

#endif
