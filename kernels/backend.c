#include "kernels/backend.h"

#include <assert.h>

#include "kernels/collectives.h"

#define X(name)                                                            \
    void none_##name(struct backend *be, const struct name##_args *args) { \
        (void)be;                                                          \
        (void)args;                                                        \
    }
OPERATIONS(X)
#undef X

void backend_close(struct backend *be) {
    be->collectives->functions->close(be->collectives);
    if (be->workspace) backend_release(be, be->workspace);
    be->functions->close(be);
}

void *backend_workspace(struct backend *be, size_t bytes) {
    bool planning = be->op == be->plan;
    if (planning && bytes > be->workspace_bytes) be->workspace_bytes = bytes;
    assert(planning || (be->workspace ? bytes <= be->workspace_bytes : bytes == 0));
    return planning ? NULL : be->workspace;
}

void backend_plan_begin(struct backend *be) {
    be->op = be->plan;
}

int backend_plan_end(struct backend *be, struct error *error) {
    if (be->workspace) backend_release(be, be->workspace);
    be->workspace = backend_allocate(be, be->workspace_bytes);
    be->op = be->run;
    if (be->workspace) return 0;
    return fail(error, "out of memory: no %zu MiB for the workspace", be->workspace_bytes >> 20);
}
