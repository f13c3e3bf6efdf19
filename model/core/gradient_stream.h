/* Gradients of the matrices of layers in host memory (offload.gradients). The backward pass of a
 * layer writes them to a buffer on the device, which is copied to the host while the next layer
 * runs. A pass that adds to the gradients of the one before copies each layer back first, while the
 * layer before it runs. The optimizer reads them in host memory. */
#pragma once

#include "model/architecture/parameters.h"
#include "model/core/layer_stream.h"

struct gradient_stream {
    int64_t first, count;  /* elements of the flat order: the matrices of all layers */
    struct tensor host;    /* [count] */
    struct tensor buffers; /* [2 or fewer, count / layers] */
    struct layer_stream stream;
};

/* Streams the gradients of all trained matrices of layers in a list. */
void gradient_stream_open(struct gradient_stream *stream, const struct parameter *list,
                          enum dtype dtype);

/* Called once to measure and once to assign addresses. */
void gradient_stream_layout(struct gradient_stream *stream, struct arena *arena,
                            struct arena *host);

/* True if a parameter's gradients are streamed, which are then in `buffers` from the element
 * gradient_stream_place on. */
static inline bool gradient_stream_has(const struct gradient_stream *stream,
                                       const struct parameter *p) {
    return p->offset >= stream->first && p->offset < stream->first + stream->count;
}
int64_t gradient_stream_place(const struct gradient_stream *stream, const struct parameter *p);

/* Called before the backward pass of a layer, which runs after that of the layer above.
 * accumulate: it adds to the gradients of the pass before. */
void gradient_stream_ready(struct gradient_stream *stream, struct backend *be, int64_t layer,
                           bool accumulate);
