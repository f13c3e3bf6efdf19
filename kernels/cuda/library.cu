#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/device.h"

enum { PATH_BYTES = 512, WHY_BYTES = 120 };

#ifdef __CUDACC__
/* Lists the loader's search path first, then the usual directories of toolkits. */
static bool candidate(char *path, int at, const char *file) {
    const char *home = getenv("CUDA_HOME"), *version = strstr(file, ".so.");
    switch (at) {
    case 0: snprintf(path, PATH_BYTES, "%s", file); return true;
    case 1: snprintf(path, PATH_BYTES, "%.*s.so", (int)(version - file), file); return true;
    case 2: snprintf(path, PATH_BYTES, "%s/lib64/%s", home ? home : "", file); return true;
    case 3: snprintf(path, PATH_BYTES, "%s/lib/%s", home ? home : "", file); return true;
    case 4: snprintf(path, PATH_BYTES, "/usr/local/cuda/lib64/%s", file); return true;
    case 5: snprintf(path, PATH_BYTES, "/usr/local/cuda/lib/%s", file); return true;
    }
    return false;
}
#else
static bool candidate(char *path, int at, const char *file) {
    (void)file;
    path[0] = 0;
    return at == 0;
}
#endif

/* Returns true if the library at path can be used; otherwise writes the reason. */
static bool load_from(const char *path, cuda_library_check *check, void *table, char *reason) {
    char why[WHY_BYTES];
    void *library = dlopen(path[0] ? path : NULL, RTLD_LAZY | RTLD_LOCAL);
    if (!library) {
        snprintf(reason, CUDA_REASON_BYTES, "%s", dlerror());
        return false;
    }
    if (check(table, library, why, sizeof why)) return true;
    snprintf(reason, CUDA_REASON_BYTES, "%s %s", path, why);
    dlclose(library);
    return false;
}

const char *cuda_library_load(const char *file, cuda_library_check *check, void *table,
                              char reason[CUDA_REASON_BYTES]) {
    char path[PATH_BYTES], later[CUDA_REASON_BYTES];
    for (int at = 0; candidate(path, at, file); at++)
        if (load_from(path, check, table, at ? later : reason)) return NULL;
    return reason;
}
