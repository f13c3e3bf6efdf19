#include "kernels/cuda/library.h"

#include <dlfcn.h>

#include "kernels/cuda/device.h"
extern "C" {
#include "kernels/cuda/library_paths.h"
}

enum { WHY_BYTES = 120 };

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
    char later[CUDA_REASON_BYTES];
    glob_t paths = {};
    bool found = false;
#ifdef __CUDACC__
    cuda_library_paths(&paths, file);
    for (size_t i = 0; i < paths.gl_pathc && !found; i++)
        found = load_from(paths.gl_pathv[i], check, table, i ? later : reason);
    globfree(&paths);
#else
    (void)file, (void)paths, (void)later;
    found = load_from("", check, table, reason);
#endif
    return found ? NULL : reason;
}
