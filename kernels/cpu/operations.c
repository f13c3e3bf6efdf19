/* The only exported symbol of a level: `make` renames it to cpu_operations_v3 and the like, and
 * hides all others, so that one program can contain the same sources several times. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/level.h"

#define X(name)
#define S(name)                                                                   \
    static void plan_##name(struct backend *be, const struct name##_args *args) { \
        backend_workspace(be, cpu_##name##_scratch(be, args));                    \
    }
OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S

extern const struct cpu_operations cpu_operations;

const struct cpu_operations cpu_operations = {
    .run =
        {
#define X(name) .name = cpu_##name,
            OPERATIONS(X)
#undef X
        },
    .plan =
        {
#define X(name) .name = none_##name,
#define S(name) .name = plan_##name,
            OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S
        },
#ifdef PLAIN_PRODUCTS
    .plain_product = cpu_plain_product,
#endif
    .widen = dtype_widen,
    .store = dtype_store,
    .square_share = CPU_FLAT_BLOCK,
};
