/* For gpu_bench: time measured on the GPU, and device functions outside the table of operations. */
#pragma once

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_MARKS = 2048 };

/* Marks (0..GPU_MARKS-1) are recorded when the device reaches them; the host does not wait. */
void gpu_mark(struct backend *be, int mark);

/* Waits until the device has finished. */
void gpu_wait(struct backend *be);

/* Returns the seconds of the device between two marks; waits for the second. */
double gpu_seconds(struct backend *be, int from, int to);

/* The vendor's copy within device memory: the ceiling for memory-bound operations. */
void gpu_copy(struct backend *be, void *to, const void *from, size_t bytes);

void gpu_clock_close(void);

/* Switches the library's fused epilogues on or off for later matmuls; initially they are as the
 * GPU supports them. */
void gpu_fuse(struct backend *be, bool on);

/* Clears the runtime's last error after a failure. */
void gpu_forget_error(void);

#ifdef __cplusplus
}
#endif
