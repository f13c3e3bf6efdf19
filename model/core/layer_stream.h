/* State of layers that is in pinned host memory, one layer after another, and passes by way of
 * BACKEND_SLOTS buffers on the device: layer l in buffer l % BACKEND_SLOTS. Layers are copied while
 * operations of others run; the host never waits. All functions but layer_stream_layout do nothing
 * while operations are only planned, or if there are no layers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/arena.h"
#include "kernels/backend.h"

struct layer_stream {
    enum copy_lane lane;
    int64_t layers;              /* their number; 0: none is streamed */
    size_t bytes;                /* of one layer */
    char *host;                  /* all layers */
    char *buffers;               /* BACKEND_SLOTS layers on the device, or fewer */
    int64_t held[BACKEND_SLOTS]; /* layer in each buffer, or on its way there; -1: none */
    bool copying[BACKEND_SLOTS]; /* this pass copies the buffer */
};

/* Takes the buffers. Called once to measure and once to assign addresses; the host memory is that
 * of layer_stream_host_bytes. */
void layer_stream_layout(struct layer_stream *stream, struct arena *arena);

static inline size_t layer_stream_host_bytes(const struct layer_stream *stream) {
    return (size_t)stream->layers * stream->bytes;
}

/* Return an arena of a layer in host memory, and in its buffer. */
struct arena layer_stream_host(const struct layer_stream *stream, int64_t layer);
struct arena layer_stream_buffer(const struct layer_stream *stream, int64_t layer);

/* Called before a pass: forgets what the buffers hold, because a pass may be recorded as a graph,
 * which does not run after the same passes each time. */
void layer_stream_begin(struct layer_stream *stream);

/* Begins to copy a layer to its buffer unless that holds it. No later operation may read or write
 * what the buffer holds. A layer that does not exist is ignored. */
void layer_stream_fetch(struct layer_stream *stream, struct backend *be, int64_t layer);

/* Notes that operations write a layer to its buffer. */
void layer_stream_hold(struct layer_stream *stream, int64_t layer);

/* Begins to copy a layer from its buffer to host memory. */
void layer_stream_send(struct layer_stream *stream, struct backend *be, int64_t layer);

/* Makes later operations wait for the last copy of a layer's buffer, in either direction. */
void layer_stream_wait(const struct layer_stream *stream, struct backend *be, int64_t layer);

/* Called after a pass that sends layers: makes later operations wait for all copies. */
void layer_stream_end(const struct layer_stream *stream, struct backend *be);
