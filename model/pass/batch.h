/* A batch in memory: filled on the host, and read by passes from backend memory, where the same
 * arrays lie at addresses that never change. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "data/util/error.h"
#include "kernels/backend.h"
#include "kernels/decode_args.h"

/* Arrays of a batch besides its tokens. */
enum batch_array {
    BATCH_INPUTS = 1,
    BATCH_TARGETS = 2,
    BATCH_FIRST_KEYS = 4,
    BATCH_POSITIONS = 8,
    BATCH_KEYS = 16,
};

struct batch_format {
    int64_t batch, length; /* B, T */
    unsigned arrays;       /* of enum batch_array */
    int64_t counted_unit;  /* see struct batch_view */
    size_t extra;          /* bytes of what the objective reads besides (model/task/objective.h) */
};

/* Addresses of a batch's arrays. An array that its format lacks is NULL, and so are all in passes
 * that are only planned. */
struct batch_view {
    int64_t batch, length;      /* B, T */
    struct step_inputs *inputs; /* of the batch's step */
    int32_t *tokens;            /* [B, T] */
    int32_t *targets;           /* [B, T], -1: does not count */
    int32_t *first_keys;        /* [B, T], of attention, or NULL: all keys */
    int32_t *positions;         /* [B, T], of tokens in their texts, or NULL: 0..T-1 in each
                                 * sequence, or for rope any with the same differences */
    struct decode_keys *keys;   /* [B, T], of rows that attend to keys elsewhere */
    void *extra;

    /* The rows whose targets count, for which alone logits are computed: see batch_count. Their
     * number is rounded up to a multiple of the unit, so that few shapes of matmuls occur; 0:
     * logits of all rows are computed. */
    int64_t counted_unit, counted;
    int32_t *counted_rows;   /* [B, T], then -1 */
    int32_t *counted_places; /* [B, T], of each row in counted_rows, or -1 */
};

struct batch {
    struct backend *be;
    struct batch_view host, sent; /* in host memory and in backend memory */
    void *host_memory, *sent_memory;
    size_t bytes; /* of each */
};

/* Returns the bytes of backend memory that batch_open takes; on a CPU, host memory included. */
size_t batch_bytes(const struct backend *be, const struct batch_format *format);

/* Allocates a batch. batch_close may follow in any case. */
int batch_open(struct batch *batch, struct backend *be, const struct batch_format *format,
               struct error *error);
void batch_close(struct batch *batch);

/* Returns a counted_unit for batches of so many rows: a sixteenth of them or, where a step is
 * recorded for each number of units (backend_graph), an eighth. */
enum { BATCH_UNITS_RECORDED = 8 };
int64_t batch_counted_unit(const struct backend *be, int64_t rows);

/* Lists the rows whose targets count in the host's arrays, and sets `counted` of both views; to 0
 * if the format has no unit, or if that many rows would be all. */
void batch_count(struct batch *batch);

/* Fills the rows of a sequence after the first `given` ones with copies of its first row, which
 * reads no other row, if the batch has positions and first keys. Copies leave the largest absolute
 * values, and with them the scales of quantized tensors, as they are. */
void batch_pad(const struct batch_view *host, int64_t sequence, int64_t given);

/* Copies the host's arrays to backend memory, after all operations before. */
void batch_upload(const struct batch *batch);
