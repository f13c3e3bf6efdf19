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

const struct trace_label *operation_label(enum operation_id id, const void *args) {
    switch (id) {
    case ID_embedding_forward: return ((const struct embedding_forward_args *)args)->label;
    case ID_layernorm_forward: return ((const struct layernorm_forward_args *)args)->label;
    case ID_layernorm_backward: return ((const struct layernorm_backward_args *)args)->label;
    case ID_matmul: return ((const struct matmul_args *)args)->label;
    case ID_gelu_forward: return ((const struct gelu_forward_args *)args)->label;
    case ID_gelu_backward: return ((const struct gelu_backward_args *)args)->label;
    case ID_gated_forward: return ((const struct gated_forward_args *)args)->label;
    case ID_gated_backward: return ((const struct gated_backward_args *)args)->label;
    case ID_qk_norm_forward: return ((const struct qk_norm_forward_args *)args)->label;
    case ID_attention_forward: return ((const struct attention_forward_args *)args)->label;
    case ID_attention_decode: return ((const struct attention_decode_args *)args)->label;
    case ID_attention_backward: return ((const struct attention_backward_args *)args)->label;
    case ID_causal_convolution_forward:
        return ((const struct causal_convolution_forward_args *)args)->label;
    case ID_causal_convolution_backward:
        return ((const struct causal_convolution_backward_args *)args)->label;
    case ID_delta_rule_backward: return ((const struct delta_rule_backward_args *)args)->label;
    case ID_dropout: return ((const struct dropout_args *)args)->label;
    case ID_cross_entropy: return ((const struct cross_entropy_args *)args)->label;
    case ID_distillation: return ((const struct distillation_args *)args)->label;
    case ID_gather_rows: return ((const struct gather_rows_args *)args)->label;
    case ID_cast: return ((const struct cast_args *)args)->label;
    case ID_weighted_sum: return ((const struct weighted_sum_args *)args)->label;
    case ID_softcap: return ((const struct softcap_args *)args)->label;
    default: return NULL;
    }
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
