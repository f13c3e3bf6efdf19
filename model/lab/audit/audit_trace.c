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

int place_layers(int place, const struct gpt_shape *shape) {
    if (activation_extent(activation_of(place), shape).rows == 0) return 0;
    return place_is_layered(place) ? (int)shape->n_layer : 1;
}

/* A reader that takes the dtype of its input follows. */
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
    return precision->activation[activation_of(place)];
}

void place_label(char *label, size_t size, int place, int layer) {
    char name[PLACE_NAME_MAX];
    place_name(name, place);
    if (place_is_layered(place)) snprintf(label, size, "layer %d %s", layer, name);
    else snprintf(label, size, "%s", name);
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
        /* Of logits there is a chunk at a time, from row 0 on. */
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
