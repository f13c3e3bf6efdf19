/* The one symbol of a level: `make` renames it to cpu_operations_v3 and the like, and hides all
 * others, so that the same sources can be in one program several times. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/level.h"

static void put_plans(struct operations *plan) {
    plan->embedding_backward = cpu_embedding_backward_plan;
    plan->layernorm_backward = cpu_layernorm_backward_plan;
    plan->matmul = cpu_matmul_plan;
    plan->attention_forward = cpu_attention_forward_plan;
    plan->attention_decode = cpu_attention_decode_plan;
    plan->attention_backward = cpu_attention_backward_plan;
    plan->gradient_norm = cpu_gradient_norm_plan;
}

extern const struct cpu_operations cpu_operations;

const struct cpu_operations cpu_operations = {
    .run =
        {
#define X(name) .name = cpu_##name,
            OPERATIONS(X)
#undef X
        },
    .plan = put_plans,
    .plain_product = cpu_plain_product,
};
