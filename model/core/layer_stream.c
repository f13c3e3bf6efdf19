#include "model/core/layer_stream.h"

#include "data/util/min_max.h"

void layer_stream_layout(struct layer_stream *stream, struct arena *arena) {
    const size_t slots = (size_t)MIN(stream->layers, BACKEND_SLOTS);
    stream->buffers = arena_take(arena, slots * stream->bytes);
    layer_stream_begin(stream);
}

static struct arena arena_of(char *base, int64_t index, size_t bytes) {
    return (struct arena){base ? base + (size_t)index * bytes : NULL, 0, bytes};
}

struct arena layer_stream_host(const struct layer_stream *stream, int64_t layer) {
    return arena_of(stream->host, layer, stream->bytes);
}

struct arena layer_stream_buffer(const struct layer_stream *stream, int64_t layer) {
    return arena_of(stream->buffers, layer % BACKEND_SLOTS, stream->bytes);
}

static bool exists(const struct layer_stream *stream, int64_t layer) {
    return layer >= 0 && layer < stream->layers;
}

static struct copy_slot slot_of(const struct layer_stream *stream, int64_t layer) {
    return (struct copy_slot){stream->lane, (int)(layer % BACKEND_SLOTS)};
}

void layer_stream_begin(struct layer_stream *stream) {
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        stream->held[slot] = -1;
        stream->copying[slot] = false;
    }
}

void layer_stream_fetch(struct layer_stream *stream, struct backend *be, int64_t layer) {
    if (!exists(stream, layer) || backend_plans(be)) return;
    const struct copy_slot slot = slot_of(stream, layer);
    if (stream->held[slot.slot] == layer) return;
    stream->held[slot.slot] = layer;
    stream->copying[slot.slot] = true;
    backend_copy(be, slot, layer_stream_buffer(stream, layer).base,
                 layer_stream_host(stream, layer).base, stream->bytes);
}

void layer_stream_hold(struct layer_stream *stream, int64_t layer) {
    if (exists(stream, layer)) stream->held[layer % BACKEND_SLOTS] = layer;
}

void layer_stream_send(struct layer_stream *stream, struct backend *be, int64_t layer) {
    if (!exists(stream, layer) || backend_plans(be)) return;
    const struct copy_slot slot = slot_of(stream, layer);
    stream->copying[slot.slot] = true;
    backend_copy(be, slot, layer_stream_host(stream, layer).base,
                 layer_stream_buffer(stream, layer).base, stream->bytes);
}

void layer_stream_wait(const struct layer_stream *stream, struct backend *be, int64_t layer) {
    if (!exists(stream, layer) || backend_plans(be)) return;
    const struct copy_slot slot = slot_of(stream, layer);
    if (stream->copying[slot.slot]) backend_copied(be, slot);
}

void layer_stream_end(const struct layer_stream *stream, struct backend *be) {
    for (int64_t slot = 0; slot < BACKEND_SLOTS; slot++) layer_stream_wait(stream, be, slot);
}
