/* Paths under which NVIDIA's libraries may be installed. */
#pragma once

#include <glob.h>

/* Lists the paths under which file ("libnccl.so.2") may be found, in the order in which they are
 * tried: as the loader finds it, in the CUDA toolkit, then in environments of conda and pip, which
 * CONDA_PREFIX and VIRTUAL_ENV name or which are the user's or the system's. The first two are bare
 * names, all others exist. globfree releases them. */
void cuda_library_paths(glob_t *paths, const char *file);
