#include "model/core/gradient_stream.h"

#include <assert.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"

static int64_t layer_count(const struct gradient_stream *stream) {
    return stream->count / stream->stream.layers;
}

void gradient_stream_open(struct gradient_stream *stream, const struct parameter *list,
                          enum dtype dtype) {
    *stream = (struct gradient_stream){.stream.lane = LANE_GRADIENTS};
    for (ptrdiff_t i = 0; i < parameter_trained_count(list); i++) {
        const struct parameter *p = &list[i];
        if (!parameter_in_layer(p)) continue;
        if (stream->count == 0) stream->first = p->offset;
        stream->count = p->offset + p->elements - stream->first;
        stream->stream.layers = p->layer + 1;
    }
    if (stream->count == 0) return;
    assert(stream->count % stream->stream.layers == 0);
    stream->stream.bytes = dtype_size(dtype, layer_count(stream));
    stream->host.dtype = stream->buffers.dtype = dtype;
}

void gradient_stream_layout(struct gradient_stream *stream, struct arena *arena,
                            struct arena *host) {
    struct layer_stream *layers = &stream->stream;
    if (layers->layers == 0) return;
    layer_stream_layout(layers, arena);
    layers->host = arena_take(host, layer_stream_host_bytes(layers));
    stream->host = (struct tensor){layers->host, stream->host.dtype, 1, {stream->count}};
    stream->buffers = (struct tensor){layers->buffers,
                                      stream->host.dtype,
                                      1,
                                      {MIN(layers->layers, BACKEND_SLOTS) * layer_count(stream)}};
}

int64_t gradient_stream_place(const struct gradient_stream *stream, const struct parameter *p) {
    const int64_t in_layer = p->offset - stream->first - p->layer * layer_count(stream);
    return p->layer % BACKEND_SLOTS * layer_count(stream) + in_layer;
}

/* A buffer's layer has been sent before its lane fetches the next one. */
void gradient_stream_ready(struct gradient_stream *stream, struct backend *be, int64_t layer,
                           bool accumulate) {
    if (accumulate) {
        layer_stream_fetch(&stream->stream, be, layer);
        layer_stream_fetch(&stream->stream, be, layer - 1);
    }
    layer_stream_wait(&stream->stream, be, layer);
}
