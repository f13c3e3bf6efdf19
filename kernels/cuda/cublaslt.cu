#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plain_c.h"

#define TEXT_OF(number) #number
#define TEXT(macro)     TEXT_OF(macro)

enum { PATH_BYTES = 512, REASON_BYTES = 640 };

#ifdef __CUDACC__
#define FILE_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

/* Where the loader looks first, then where toolkits are installed without telling it. */
static bool candidate(char *path, int at) {
    const char *home = getenv("CUDA_HOME");
    switch (at) {
    case 0: snprintf(path, PATH_BYTES, FILE_NAME); return true;
    case 1: snprintf(path, PATH_BYTES, "libcublasLt.so"); return true;
    case 2: snprintf(path, PATH_BYTES, "%s/lib64/" FILE_NAME, home ? home : ""); return true;
    case 3: snprintf(path, PATH_BYTES, "%s/lib/" FILE_NAME, home ? home : ""); return true;
    case 4: snprintf(path, PATH_BYTES, "/usr/local/cuda/lib64/" FILE_NAME); return true;
    case 5: snprintf(path, PATH_BYTES, "/usr/local/cuda/lib/" FILE_NAME); return true;
    }
    return false;
}
#else
#define FILE_NAME "the emulated cublasLt"

/* The program itself, which holds the stand-in of test/cuda_emulator; naming a function of it here
 * is what makes the linker take it from the archive. */
static bool candidate(char *path, int at) {
    static void *volatile linked = (void *)&cublasLtCreate;
    path[0] = 0;
    return at == 0 && linked;
}
#endif

/* Returns the name that is missing, or NULL. */
static const char *look_up(struct cublaslt *lt, void *library) {
#define X(name)                                                     \
    *(void **)(void *)&lt->name = dlsym(library, "cublasLt" #name); \
    if (!lt->name) return "cublasLt" #name;
    CUBLASLT_FUNCTIONS(X)
#undef X
    return NULL;
}

/* Whether the library at path serves; if not, says why. */
static bool load_from(struct cublaslt *lt, const char *path, char *reason) {
    void *library = dlopen(path[0] ? path : NULL, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, REASON_BYTES, "%s", dlerror());
        return false;
    }
    const char *missing = look_up(lt, library);
    if (!missing && lt->GetVersion() / 10000 == CUBLAS_VER_MAJOR) return true;
    if (missing) snprintf(reason, REASON_BYTES, "%s has no %s", path, missing);
    else snprintf(reason, REASON_BYTES, "%s is of version %zu", path, lt->GetVersion());
    dlclose(library);
    return false;
}

int cublaslt_load(struct cublaslt *lt, struct error *error) {
    char path[PATH_BYTES], first_reason[REASON_BYTES], reason[REASON_BYTES];
    for (int at = 0; candidate(path, at); at++)
        if (load_from(lt, path, at ? reason : first_reason)) return 0;
    return fail(
        error,
        "device \"cuda\": matrix products need cuBLAS " TEXT(
            CUBLAS_VER_MAJOR) ", but %.600s; install libcublas of the CUDA toolkit, or name "
                              "the folder of " FILE_NAME " in LD_LIBRARY_PATH, or use --device cpu",
        first_reason);
}
