/* Libraries of NVIDIA's that are found at run time: the program links nothing of them, so that it
 * starts on machines without them. */
#pragma once

#include "kernels/cuda/plain_c.h"

enum { CUDA_REASON_BYTES = 640 };

/* Looks for file ("libnccl.so.2") where the loader and CUDA toolkits have it, and asks `serves`,
 * which fills a table of functions by dlsym, whether it is the right one; if not, that says why
 * ("has no ncclReduce"). Returns NULL, or why the first that was tried does not serve, written into
 * reason. The library stays in the process for good: loading it once more costs nothing then.
 *
 * In emulated builds the library is the program itself, which holds the stand-ins of
 * test/cuda_emulator. */
typedef bool cuda_library_serves(void *table, void *library, char *why, size_t size);
const char *cuda_library_load(const char *file, cuda_library_serves *serves, void *table,
                              char reason[CUDA_REASON_BYTES]);
