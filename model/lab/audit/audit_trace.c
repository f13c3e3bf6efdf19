#include "model/lab/audit/audit_trace.h"

#include <stdio.h>

bool place_is_gradient(int place) {
    return place >= ACTIVATION_COUNT;
}

static enum activation_id activation_of(int place) {
    return (enum activation_id)(place_is_gradient(place) ? PLACES - 1 - place : place);
}

bool place_is_layered(int place) {
    return activation_table[activation_of(place)].layered;
}

const char *place_label(char label[PLACE_LABEL_MAX], int place, int layer) {
    char prefix[32] = "";
    if (layer >= 0 && place_is_layered(place)) snprintf(prefix, sizeof prefix, "layer %d ", layer);
    snprintf(label, PLACE_LABEL_MAX, place_is_gradient(place) ? "%sd(%s)" : "%s%s", prefix,
             activation_table[activation_of(place)].name);
    return label;
}

int place_layers(int place, const struct gpt_shape *shape) {
    const struct activation *a = &activation_table[activation_of(place)];
    bool stored = !place_is_gradient(place) || a->gradient_in_place || a->gradient != SCRATCH_NONE;
    if (!stored || activation_extent(activation_of(place), shape).rows == 0) return 0;
    return a->layered ? (int)shape->n_layer : 1;
}

/* A reader with POLICY_INPUT takes the dtype of its input, so it needs no word. */
unsigned place_words(int place) {
    const struct activation *a = &activation_table[activation_of(place)];
    unsigned words = 0;
    if (a->residual) return 0;
    if (autocast_site_is_choice(a->writer)) words |= 1u << a->writer;
    enum autocast_policy policy = autocast_site_policy(a->reader);
    if (policy == POLICY_LOWER || policy == POLICY_LINEAR) words |= 1u << a->reader;
    return words;
}

enum dtype place_dtype(int place, const struct precision *precision) {
    if (place == PARAMETERS) return precision->gradients;
    return precision->activation[activation_of(place)];
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
            .place = label->gradient ? place_of_gradient(id) : (int)id,
            .layer = layer,
            .tensor = tensor_slice(whole, chunk ? 0 : label->first_row, label->rows),
            .first = label->first_row * columns,
            .total = gpt->shape.rows * columns,
        };
    }
    return label ? label->count : 0;
}
