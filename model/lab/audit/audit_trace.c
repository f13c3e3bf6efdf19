#include "model/lab/audit/audit_trace.h"

#include <stdio.h>

bool tensor_id_is_gradient(int id) {
    return id >= ACTIVATION_COUNT;
}

static enum activation_id activation_of(int id) {
    return (enum activation_id)(tensor_id_is_gradient(id) ? TENSOR_IDS - 1 - id : id);
}

bool tensor_id_is_layered(int id) {
    return activation_table[activation_of(id)].layered;
}

const char *tensor_id_label(char label[TENSOR_ID_LABEL_MAX], int id, int layer) {
    char prefix[32] = "";
    if (layer >= 0 && tensor_id_is_layered(id)) snprintf(prefix, sizeof prefix, "layer %d ", layer);
    snprintf(label, TENSOR_ID_LABEL_MAX, tensor_id_is_gradient(id) ? "%sd(%s)" : "%s%s", prefix,
             activation_table[activation_of(id)].name);
    return label;
}

int tensor_id_layers(int id, const struct gpt_shape *shape) {
    const struct activation *a = &activation_table[activation_of(id)];
    bool stored = !tensor_id_is_gradient(id) || a->gradient_in_place || a->gradient != SCRATCH_NONE;
    if (!stored || activation_extent(activation_of(id), shape).rows == 0) return 0;
    return a->layered ? (int)shape->n_layer : 1;
}

/* A reader with POLICY_INPUT takes the dtype of its input, so it need not be named. */
unsigned tensor_id_sites(int id) {
    const struct activation *a = &activation_table[activation_of(id)];
    unsigned sites = 0;
    if (a->residual) return 0;
    if (autocast_site_is_choice(a->writer)) sites |= 1u << a->writer;
    enum autocast_policy policy = autocast_site_policy(a->reader);
    if (policy == POLICY_LOWER || policy == POLICY_LINEAR) sites |= 1u << a->reader;
    return sites;
}

enum dtype tensor_id_dtype(int id, const struct precision *precision) {
    if (id == PARAMETERS) return precision->gradients;
    return precision->activation[activation_of(id)];
}

int trace_operation(struct traced traced[TRACED_MAX], struct gpt *gpt,
                    const struct trace_label *label) {
    for (int i = 0; label && i < label->count; i++) {
        enum activation_id id = label->tensors[i].id;
        int layer = label->tensors[i].layer;
        const struct tensor *whole = label->gradient && !activation_table[id].gradient_in_place
                                         ? activation_gradient(&gpt->activations, id)
                                         : activation_tensor(&gpt->activations, id, layer);
        int64_t columns = tensor_columns(whole);
        /* The memory of logits holds one chunk of rows at a time, from row 0 on. */
        bool chunk = tensor_rows(whole) < gpt->shape.rows;
        traced[i] = (struct traced){
            .id = label->gradient ? tensor_id_of_gradient(id) : (int)id,
            .layer = layer,
            .tensor = tensor_slice(whole, chunk ? 0 : label->first_row, label->rows),
            .first = label->first_row * columns,
            .total = gpt->shape.rows * columns,
        };
    }
    return label ? label->count : 0;
}
