#include "model/lab/audit/audit_trace.h"

#include <assert.h>
#include <stdio.h>

static bool has_gradient(enum activation_id id) {
    const struct activation *a = &activation_table[id];
    return a->gradient_in_place || a->gradient != SCRATCH_NONE;
}

int place_of_gradient(enum activation_id id) {
    assert(has_gradient(id));
    int place = ACTIVATION_COUNT;
    for (int after = ACTIVATION_COUNT - 1; after > (int)id; after--)
        place += has_gradient((enum activation_id)after);
    return place;
}

bool place_is_gradient(int place) {
    return place >= ACTIVATION_COUNT;
}

static enum activation_id activation_of(int place) {
    if (!place_is_gradient(place)) return (enum activation_id)place;
    int id = ACTIVATION_COUNT - 1;
    while (!has_gradient((enum activation_id)id) ||
           place_of_gradient((enum activation_id)id) != place)
        id--;
    return (enum activation_id)id;
}

const char *place_name(char name[PLACE_NAME_MAX], int place) {
    snprintf(name, PLACE_NAME_MAX, place_is_gradient(place) ? "d(%s)" : "%s",
             activation_table[activation_of(place)].name);
    return name;
}

bool place_is_layered(int place) {
    return activation_table[activation_of(place)].layered;
}

/* A reader that takes the dtype of its input follows. */
unsigned place_words(int place) {
    const struct activation *a = &activation_table[activation_of(place)];
    unsigned words = 0;
    if (a->residual) return 0;
    if (autocast_site_is_choice(a->writer)) words |= 1u << a->writer;
    if (autocast_site_policy(a->reader) == POLICY_LOWER) words |= 1u << a->reader;
    return words;
}

enum dtype place_dtype(int place, const struct precision *precision) {
    return precision->activation[activation_of(place)];
}

void place_label(char *label, size_t size, int place, int layer) {
    char name[PLACE_NAME_MAX];
    place_name(name, place);
    if (place_is_layered(place)) snprintf(label, size, "layer %d %s", layer, name);
    else snprintf(label, size, "%s", name);
}

/* The activations and gradients of them that an operation writes, in the order in which the pass
 * tells them. */
static void list_outputs(const struct tensor *outputs[TRACED_MAX], enum operation_id id,
                         const void *all_args) {
    const struct layernorm_forward_args *norm = all_args;
    const struct layernorm_backward_args *norm_backward = all_args;
    const struct matmul_args *matmul = all_args;
    switch (id) {
    case ID_embedding_forward:
        outputs[0] = ((const struct embedding_forward_args *)all_args)->out;
        break;
    case ID_layernorm_forward:
        outputs[0] = norm->sum ? norm->sum : norm->out;
        outputs[1] = norm->out;
        break;
    case ID_layernorm_backward: /* the branch's is the same, or a rounded copy */
        outputs[0] = norm_backward->din;
        outputs[1] = norm_backward->din_lower ? norm_backward->din_lower : norm_backward->din;
        break;
    case ID_matmul:
        outputs[0] = matmul->gelu_in ? matmul->gelu_in : matmul->out;
        outputs[1] = matmul->out;
        break;
    case ID_attention_forward:
        outputs[0] = ((const struct attention_forward_args *)all_args)->out;
        break;
    case ID_attention_backward:
        outputs[0] = ((const struct attention_backward_args *)all_args)->dqkv;
        break;
    case ID_cross_entropy:
        outputs[0] = ((const struct cross_entropy_args *)all_args)->logits;
        break;
    default: break;
    }
}

int trace_operation(struct traced traced[TRACED_MAX], const struct gpt *gpt, enum operation_id id,
                    const void *args) {
    const struct tensor *outputs[TRACED_MAX] = {0};
    const struct written *written = &gpt->written;
    if (written->count) list_outputs(outputs, id, args);
    for (int i = 0; i < written->count; i++) {
        enum activation_id activation = written->tensors[i].id;
        assert(outputs[i]);
        int64_t columns = tensor_columns(outputs[i]);
        traced[i] = (struct traced){
            .place = written->gradient ? place_of_gradient(activation) : (int)activation,
            .layer = written->tensors[i].layer,
            .tensor = *outputs[i],
            .first = written->first_row * columns,
            .total = gpt->shape.rows * columns,
        };
    }
    return written->count;
}
