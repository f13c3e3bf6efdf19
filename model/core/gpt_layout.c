#include "model/core/gpt_layout.h"

#include <assert.h>

#include <stb/stb_ds.h>

#include "model/core/added_rows.h"

static struct tensor tensor_at(const struct tensor *flat, int64_t offset, int64_t rows,
                               int64_t columns) {
    struct tensor tensor = {NULL, flat->dtype, columns ? 2 : 1, {rows, columns}};
    if (flat->data) tensor.data = (char *)flat->data + (size_t)offset * dtype_bytes(flat->dtype);
    return tensor;
}

struct tensor gpt_gradients(const struct gpt *gpt, int64_t first, int64_t count) {
    const struct gradient_stream *stream = &gpt->gradient_stream;
    const int64_t end = stream->first + stream->count;
    if (first >= stream->first && first < end)
        return tensor_range(&stream->host, first - stream->first, count);
    assert(stream->count == 0 || first >= end || first + count <= stream->first);
    return tensor_range(&gpt->gradients, first >= end ? first - stream->count : first, count);
}

struct tensor gpt_gradient(const struct gpt *gpt, const struct parameter *parameter) {
    const struct tensor stored = gpt_gradients(gpt, parameter->offset, parameter->elements);
    return tensor_at(&stored, 0, parameter->extent.rows, parameter->extent.columns);
}

/* Adds the rows of a fused parameter to the tensor of the first one of its group. */
static void fuse(struct gpt *gpt, const struct parameter *p) {
    const struct parameter *first = p;
    while (first->fused_with_previous) first--;
    parameter_tensor(&gpt->weights, first)->shape[0] += p->extent.rows;
    parameter_tensor(&gpt->dweights, first)->shape[0] += p->extent.rows;
}

/* Returns the gradient of a parameter. That of a frozen norm is written but never read. */
static struct tensor gradient_of(const struct gpt *gpt, const struct parameter *p) {
    const struct extent *extent = &p->extent;
    const struct gradient_stream *stream = &gpt->gradient_stream;
    if (gradient_stream_has(stream, p))
        return tensor_at(&stream->buffers, gradient_stream_place(stream, p), extent->padded_rows,
                         extent->columns);
    if (p->group != GROUP_FROZEN) {
        const struct tensor stored = gpt_gradients(gpt, p->offset, p->elements);
        return tensor_at(&stored, 0, extent->padded_rows, extent->columns);
    }
    if (p->site == SITE_LAYERNORM)
        return tensor_at(&gpt->unused_gradients, 0, extent->padded_rows, extent->columns);
    return (struct tensor){0};
}

/* Returns the elements of the largest gradient that only unused_gradients holds. */
static int64_t unused_count(const struct gpt *gpt) {
    int64_t largest = 0;
    for (ptrdiff_t i = parameter_trained_count(gpt->list); i < arrlen(gpt->list); i++)
        if (gpt->list[i].site == SITE_LAYERNORM && gpt->list[i].elements > largest)
            largest = gpt->list[i].elements;
    return largest;
}

void gpt_layout_parameters(struct gpt *gpt, struct arena *arena, struct arena *host) {
    struct memory_plan *m = &gpt->memory;
    masters_layout(&gpt->masters, arena, host);
    m->master = arena->used;
    masters_layout_copies(&gpt->masters, arena);
    m->copies = arena->used - m->master;
    if (gpt->use == GPT_TRAINING) {
        gradient_stream_layout(&gpt->gradient_stream, arena, host);
        gpt->gradients = arena_tensor(arena, gpt->precision.gradients,
                                      gpt->trained_count - gpt->gradient_stream.count, 0);
        gpt->unused_gradients = arena_tensor(arena, gpt->precision.gradients, unused_count(gpt), 0);
    }
    m->gradients = arena->used - m->master - m->copies;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list); i++) {
        const struct parameter *p = &gpt->list[i];
        *parameter_tensor(&gpt->weights, p) = masters_read_tensor(&gpt->masters, p);
        if (gpt->use == GPT_TRAINING) *parameter_tensor(&gpt->dweights, p) = gradient_of(gpt, p);
        if (p->fused_with_previous) fuse(gpt, p);
    }
    gpt->head = parameter_tensor(&gpt->weights, parameter_head(gpt->list));
    gpt->dhead = parameter_tensor(&gpt->dweights, parameter_head(gpt->list));
    gpt->token_table =
        masters_tensor(&gpt->masters, parameter_wte(gpt->list), &gpt->token_remainder);
}

/* Lays out the scratch buffers, each as large as the largest tensor that uses it. */
static void layout_scratch(const struct gpt *gpt, struct arena *arena,
                           void *scratch[SCRATCH_COUNT]) {
    const struct precision *p = &gpt->precision;
    size_t bytes[SCRATCH_COUNT] = {0};
    for (int i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        struct extent extent = activation_extent((enum activation_id)i, &gpt->shape);
        size_t size = (size_t)(extent.rows * extent.columns) * dtype_bytes(p->activation[i]);
        if (size > bytes[a->memory]) bytes[a->memory] = size;
        if (gpt->use == GPT_TRAINING && size > bytes[a->gradient]) bytes[a->gradient] = size;
    }
    bytes[SCRATCH_NONE] = 0;
    if (gpt_branch_is_residual(gpt)) bytes[SCRATCH_dbranch] = 0;
    for (int i = 0; i < SCRATCH_COUNT; i++) scratch[i] = arena_take(arena, bytes[i]);
    if (gpt_branch_is_residual(gpt)) scratch[SCRATCH_dbranch] = scratch[SCRATCH_dresidual];
}

/* True if the backward pass of a linear layer reads its input: for the gradient of its weight or of
 * its adapters. */
static bool reads_input_again(const struct gpt *gpt, enum autocast_site site) {
    return !shape_has_adapters(&gpt->shape) || shape_adapts(&gpt->shape, site);
}

/* Lays out one layer's tensors, or those of the model (layer -1). Layers share those that the
 * backward pass recomputes or does not read. The others of a layer are taken from `saved`. */
static void layout_layer(struct gpt *gpt, struct arena *arena, struct arena *saved,
                         void *const *scratch, int64_t layer) {
    struct activations *all = &gpt->activations;
    for (enum activation_id i = 0; i < ACTIVATIONS_AND_STATISTICS; i++) {
        const struct activation *a = &activation_table[i];
        if (a->layered != (layer >= 0)) continue;
        struct tensor *tensor = activation_tensor(all, i, layer);
        struct extent extent = activation_extent(i, &gpt->shape);
        *tensor = (struct tensor){scratch[a->memory],
                                  gpt->precision.activation[i],
                                  extent.columns ? 2 : 1,
                                  {extent.rows, extent.columns}};
        if (a->memory != SCRATCH_NONE) continue;
        bool unsaved = a->read_once && (quantization_keeps(&gpt->quantization, a->reader) ||
                                        !reads_input_again(gpt, a->reader));
        if (layer >= 0 && gpt->recompute < a->recomputed && !unsaved)
            tensor->data = arena_take(saved, tensor_bytes(tensor));
        else if (layer <= 0) tensor->data = arena_take(arena, tensor_bytes(tensor));
        else tensor->data = activation_tensor(all, i, 0)->data;
    }
}

/* Lays out the tensors of all layers. Saved ones that are streamed are alike in all layers. */
static void layout_layers(struct gpt *gpt, struct arena *arena, void *const *scratch) {
    struct layer_stream *stream = &gpt->saved;
    if (stream->layers > 0) {
        struct arena unused = {0}, measure = {0};
        layout_layer(gpt, &unused, &measure, scratch, 0);
        stream->bytes = measure.used;
        layer_stream_layout(stream, arena);
    }
    for (int64_t layer = -1; layer < gpt->shape.n_layer; layer++) {
        struct arena buffer = layer_stream_buffer(stream, layer);
        const bool streamed = layer >= 0 && stream->layers > 0;
        layout_layer(gpt, arena, streamed ? &buffer : arena, scratch, layer);
    }
}

/* Gradients have the shapes and dtypes of their tensors. */
static void layout_gradients(struct gpt *gpt, void *const *scratch) {
    struct activations *all = &gpt->activations;
    for (enum activation_id i = 0; i < ACTIVATION_COUNT; i++) {
        const struct activation *a = &activation_table[i];
        struct tensor *gradient = activation_gradient(all, i);
        *gradient = *activation_tensor(all, i, 0);
        if (!a->gradient_in_place) gradient->data = scratch[a->gradient];
    }
}

void gpt_layout_activations(struct gpt *gpt, struct arena *arena) {
    const struct gpt_shape *s = &gpt->shape;
    struct activations *a = &gpt->activations;
    void *scratch[SCRATCH_COUNT];
    /* These come first, so that their addresses do not depend on the batch. */
    if (s->positions == POSITIONS_ROPE)
        gpt->angles = arena_tensor(arena, DTYPE_F32, gpt->capacity.sequence_length, s->head_dim);
    if (s->positions == POSITIONS_ROPE && s->rope_theta_window > 0 && s->window > 0)
        gpt->window_angles =
            arena_tensor(arena, DTYPE_F32, gpt->capacity.sequence_length, s->head_dim);
    if (gpt->has_cache)
        gpt->cache = arena_tensor(arena, gpt->precision.activation[ACTIVATION_qkv],
                                  s->n_layer * gpt->cache_rows, 2 * shape_kv(s));
    if (gpt->texts) gpt->added = arena_take(arena, added_bytes(gpt_added_max(gpt)));
    a->first_keys = NULL;
    a->positions = NULL;
    a->branches.rows = 0;
    a->tokens = arena_take(arena, (size_t)s->rows * sizeof *a->tokens);
    a->targets = arena_take(arena, (size_t)s->rows * sizeof *a->targets);
    quantization_layout(&gpt->quantization, arena, s);
    adapters_layout(&gpt->adapters, arena, s, &gpt->precision, gpt->use == GPT_TRAINING,
                    gpt->dropout.adapter > 0);
    layout_scratch(gpt, arena, scratch);
    layout_layers(gpt, arena, scratch);
    layout_gradients(gpt, scratch);
}
