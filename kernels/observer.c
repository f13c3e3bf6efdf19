#include "kernels/observer.h"

#include <assert.h>
#include <stddef.h>

const char *operation_name(enum operation_id id) {
    static const char *const names[] = {
#define X(name) #name,
        OPERATIONS(X)
#undef X
    };
    return names[id];
}

#define X(name)                                                                       \
    static void observed_##name(struct backend *be, const struct name##_args *args) { \
        struct observer *observer = be->observer;                                     \
        if (observer->before) observer->before(observer, ID_##name, args);            \
        be->run->name(be, args);                                                      \
        if (observer->after) observer->after(observer, ID_##name, args);              \
    }
OPERATIONS(X)
#undef X

static const struct operations observed_operations = {
#define X(name) .name = observed_##name,
    OPERATIONS(X)
#undef X
};

void backend_observe(struct backend *be, struct observer *observer) {
    assert(be->op != be->plan);
    be->observer = observer;
    be->op = observer ? &observed_operations : be->run;
}
