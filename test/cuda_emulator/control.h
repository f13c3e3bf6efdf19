/* Test-side control of the emulated device, for C and C++. Only emulated builds have it (they
 * define EMULATED). The emulator serves one host thread.
 *
 * Environment variables:
 * CUDA_EMULATOR_DEVICES=4 emulates four devices (default: one); CUDA_VISIBLE_DEVICES="2,3"
 * selects among them.
 * CUDA_EMULATOR_FAIL=cudaMalloc:3 makes the third call of cudaMalloc fail. Other calls that
 * allocate or start work can be named too, as can kernels ("launch") and calls of cublasLt.
 * CUDA_EMULATOR_SM=75 sets the compute capability.
 * CUDA_EMULATOR_TENSOR_CORES=truncate adds products as an H100 does, see tensor_core.h.
 * CUDA_EMULATOR_BROKEN=802 makes the devices fail with this cudaError_t: 46 when one is selected,
 * others when they are counted.
 * CUDA_EMULATOR_DRIVER=12040 sets the driver's version: one of an older major version than the
 * runtime is too old, 0 means that no driver is installed.
 * CUDA_EMULATOR_LAZY=65536 takes this many bytes of device memory at the first launch of each
 * kernel, as modules take them that are loaded lazily: memory that runs out after planning.
 * CUBLASLT_REFUSE=EPILOGUE and CUBLASLT_LIE=EPILOGUE are described in fake_cublaslt.h. */
#ifndef TEST_CUDA_EMULATOR_CONTROL_H
#define TEST_CUDA_EMULATOR_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sets the order in which threads and blocks run: 0 numeric, 1 reversed, any other value seeds a
 * random order. */
void cuda_emulator_schedule(unsigned seed);

/* Leaves `bytes` of device memory free beyond what is allocated now. Initially 16 GiB. */
void cuda_emulator_memory(size_t bytes);

/* Sets compute capability sm / 10 . sm % 10 for devices opened from now on, with its shared memory.
 * Initially sm_90. */
void cuda_emulator_capability(int sm);

/* Counters since the last reset. A bank conflict is an extra cycle of an ldmatrix (one of its
 * 8x8 matrices) whose rows share banks of shared memory; a good layout has none. */
struct cuda_emulator_stats {
    uint64_t launches, blocks, threads, switches, barriers, collectives;
    uint64_t ldmatrix, ldmatrix_conflicts;
    int blocks_held; /* fewest blocks of a launch that a multiprocessor can hold at once, by their
                        threads and shared memory */
    uint64_t graph_launches; /* launched graphs; their kernels count as launches, too */
    uint64_t recordings;     /* graphs that were begun to be recorded */
    uint64_t host_launches;  /* kernels, copies, fills and graphs started by calls of the host;
                                not those that a graph starts, nor matmuls of the library */
};
struct cuda_emulator_stats cuda_emulator_stats(void);
void cuda_emulator_stats_reset(void);

/* Suppresses messages on stderr about errors that a test makes on purpose. */
void cuda_emulator_quiet(int quiet);

/* Returns the text of the last launch error, "" if the last launch succeeded. */
const char *cuda_emulator_failure(void);

#ifdef __cplusplus
}
#endif

#endif
