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

size_t backend_plan_pause(struct backend *be) {
    be->op = be->run;
    return be->workspace_bytes;
}

bool backend_plan_sizes(struct backend *be, bool only_sizes) {
    bool before = be->only_sizes;
    be->only_sizes = only_sizes;
    return before;
}

size_t backend_plan_from(struct backend *be, size_t bytes) {
    size_t before = be->workspace_bytes;
    be->workspace_bytes = bytes;
    return before;
}

int backend_plan_end(struct backend *be, struct error *error) {
    if (be->workspace) backend_release(be, be->workspace);
    be->workspace = backend_allocate(be, backend_plan_pause(be));
    if (be->workspace) return 0;
    return fail_memory(error, "the workspace (%zu MiB)", be->workspace_bytes >> 20);
}
