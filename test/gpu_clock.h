/* For gpu_bench: time as the GPU counts it, and what the table of operations has no name for. */
#pragma once

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { GPU_MARKS = 2048 };

/* Marks (0..GPU_MARKS-1) are noted when the device gets there; nobody waits. */
void gpu_mark(struct backend *be, int mark);

/* Waits until the device is done with everything. */
void gpu_wait(struct backend *be);

/* Seconds of the device between two marks; waits for the second. */
double gpu_seconds(struct backend *be, int from, int to);

/* The vendor's copy within device memory: the ceiling for what moves bytes. */
void gpu_copy(struct backend *be, void *to, const void *from, size_t bytes);

void gpu_clock_close(void);

/* Switches the fused epilogues of the library on or off for products from now on; at first they are
 * as the GPU has them. */
void gpu_fuse(struct backend *be, bool on);

/* After a failure: the runtime's last error is none of what comes next. */
void gpu_forget_error(void);

#ifdef __cplusplus
}
#endif
