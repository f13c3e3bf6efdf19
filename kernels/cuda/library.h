/* NVIDIA's libraries, loaded at run time: the program does not link them, so that it starts on
 * machines without them. */
#pragma once

#include "kernels/cuda/plain_c.h"

enum { CUDA_REASON_BYTES = 640 };

/* Searches for file ("libnccl.so.2") in the paths of library_paths.h. `check` fills a
 * table of functions by dlsym and returns true if the library can be used; otherwise it writes the
 * reason to `why` ("has no ncclReduce"). Returns NULL on success, otherwise reason, which says why
 * the first candidate was rejected. The library is never unloaded, so loading it once more costs
 * nothing.
 *
 * In emulated builds the library is the program itself, which contains the stubs of
 * test/cuda_emulator. */
typedef bool cuda_library_check(void *table, void *library, char *why, size_t size);
const char *cuda_library_load(const char *file, cuda_library_check *check, void *table,
                              char reason[CUDA_REASON_BYTES]);
