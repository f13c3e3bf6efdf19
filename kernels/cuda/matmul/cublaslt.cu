#include "kernels/cuda/matmul/cublaslt.h"

#include <dlfcn.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/library.h"

#define TEXT_OF(number) #number
#define TEXT(macro)     TEXT_OF(macro)
#define FILE_NAME       "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

static bool fill_table(void *table, void *library, char *why, size_t size) {
    struct cublaslt *lt = (struct cublaslt *)table;
    const char *missing = NULL;
#define X(name)                                                     \
    *(void **)(void *)&lt->name = dlsym(library, "cublasLt" #name); \
    if (!lt->name && !missing) missing = "cublasLt" #name;
    CUBLASLT_FUNCTIONS(X)
#undef X
    if (!missing && lt->GetVersion() / 10000 == CUBLAS_VER_MAJOR) return true;
    if (missing) snprintf(why, size, "has no %s", missing);
    else snprintf(why, size, "is of version %zu", lt->GetVersion());
    return false;
}

int cublaslt_load(struct cublaslt *lt, struct error *error) {
    char reason[CUDA_REASON_BYTES];
#ifndef __CUDACC__
    /* This reference makes the linker take the stub from the archive. */
    static void *volatile linked = (void *)&cublasLtCreate;
    (void)linked;
#endif
    if (!cuda_library_load(FILE_NAME, fill_table, lt, reason)) return 0;
    return fail(
        error,
        "device \"cuda\": matrix products need cuBLAS " TEXT(
            CUBLAS_VER_MAJOR) ", but %.600s; install libcublas of the CUDA toolkit, or name "
                              "the folder of " FILE_NAME " in LD_LIBRARY_PATH, or use --device cpu",
        reason);
}
