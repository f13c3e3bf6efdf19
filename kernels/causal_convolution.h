/* The causal convolution (kernels/delta_rule_args.h), computed alike on both backends: a task has
 * SEGMENT rows of some columns of a sequence, and keeps the last TAPS at hand. Backward it also
 * computes the rows after them that they reach.
 *
 * The source that includes this defines
 *     CONVOLUTION, CONVOLUTION_ON_ROWS         qualifiers of functions, and of those with ROWS
 *     lanes, LANE(row, i), EACH_LANE(c, i)     values of a row of the columns, in fp32
 *     EACH_TAP(j)                              an unrolled loop over TAPS
 *     ROWS                                     such rows of a tensor, from the sequence's first on
 *     load_row(c, row, rows, t), store_row(c, rows, t, row)
 *     silu(x), logistic(x) */
#pragma once

#include "kernels/delta_rule_args.h"

enum { SEGMENT = 64, TAPS = CONVOLUTION_KERNEL_MAX };

struct convolution {
    lanes weight[TAPS], x[TAPS]; /* x: rows t - TAPS + 1 .. t; the last K of both count */
    const int32_t *first_keys;   /* of the sequence, or NULL */
    int begin, end, length;      /* rows of the task; T */
    int columns, kernel, unused; /* of the task; K; TAPS - K */
    int state_rows;              /* 0 without tail */
    bool resumes;
};

CONVOLUTION void begin_task(struct convolution *c, int64_t sequence, int64_t segment) {
    c->begin = (int)segment * SEGMENT;
    c->end = c->length - c->begin < SEGMENT ? c->length : c->begin + SEGMENT;
    if (c->first_keys) c->first_keys += sequence * c->length;
}

/* Reads row t: of the tail before the first row, and 0 without it. */
CONVOLUTION_ON_ROWS void read_row(const struct convolution *c, lanes *row, ROWS in, ROWS tail,
                                  int t) {
    const int before = t + c->kernel - 1;
    if (t >= 0) load_row(c, row, in, t);
    else if (c->resumes && before >= 0) load_row(c, row, tail, before);
    else EACH_LANE(c, i) LANE(*row, i) = 0;
}

CONVOLUTION_ON_ROWS void read_rows_before(struct convolution *c, ROWS in, ROWS tail) {
    EACH_TAP(j) {
        if (j > c->unused) read_row(c, &c->x[j], in, tail, c->begin - TAPS + j);
    }
}

/* Moves on to the next row, which takes the memory of the oldest one. */
CONVOLUTION void next_row(lanes rows[TAPS]) {
    lanes oldest = rows[0];
    EACH_TAP(j) {
        if (j + 1 < TAPS) rows[j] = rows[j + 1];
    }
    rows[TAPS - 1] = oldest;
}

/* Returns j of the first row in x that row t reads. */
CONVOLUTION int first_tap(const struct convolution *c, int t) {
    const int first = c->first_keys ? c->first_keys[t] : 0;
    const int tap = first - (t - TAPS + 1);
    return tap < c->unused || (first == 0 && c->resumes) ? c->unused : tap;
}

CONVOLUTION void convolve(const struct convolution *c, lanes *sum, int tap) {
    EACH_LANE(c, i) LANE(*sum, i) = 0;
    EACH_TAP(j) {
        if (j >= tap) EACH_LANE(c, i) LANE(*sum, i) += LANE(c->weight[j], i) * LANE(c->x[j], i);
    }
}

/* The task of a sequence's first rows replaces the tail: in ascending order, since a row of the old
 * one moves to one before. */
CONVOLUTION_ON_ROWS void convolution_forward(struct convolution *c, ROWS out, ROWS tail, ROWS in,
                                             lanes sum) {
    read_rows_before(c, in, tail);
    for (int t = c->begin; t < c->end; t++) {
        next_row(c->x);
        load_row(c, &c->x[TAPS - 1], in, t);
        convolve(c, &sum, first_tap(c, t));
        EACH_LANE(c, i) LANE(sum, i) = silu(LANE(sum, i));
        store_row(c, out, t, sum);
    }
    for (int i = 0; c->begin == 0 && c->state_rows > 0 && i + 1 < c->kernel; i++) {
        read_row(c, &sum, in, tail, c->state_rows - c->kernel + 1 + i);
        store_row(c, tail, i, sum);
    }
}

/* Adds to dweight; sums: 0, of rows t - TAPS + 1 .. t. */
CONVOLUTION_ON_ROWS void convolution_backward(struct convolution *c, ROWS din, ROWS dout, ROWS in,
                                              lanes dweight[TAPS], lanes sums[TAPS], lanes x,
                                              lanes d) {
    read_rows_before(c, in, in);
    for (int t = c->begin; t < c->end + c->kernel - 1; t++) {
        next_row(c->x);
        next_row(sums);
        EACH_LANE(c, i) LANE(sums[TAPS - 1], i) = 0;
        if (t < c->length) {
            const int tap = first_tap(c, t);
            load_row(c, &c->x[TAPS - 1], in, t);
            load_row(c, &d, dout, t);
            convolve(c, &x, tap);
            EACH_LANE(c, i) {
                const float s = logistic(LANE(x, i));
                LANE(d, i) *= s + LANE(x, i) * s * (1.0f - s);
            }
            EACH_TAP(j) {
                if (j >= tap)
                    EACH_LANE(c, i) LANE(sums[j], i) += LANE(c->weight[j], i) * LANE(d, i);
                if (j >= tap && t < c->end)
                    EACH_LANE(c, i) LANE(dweight[j], i) += LANE(c->x[j], i) * LANE(d, i);
            }
        }
        EACH_TAP(j) {
            if (j == c->unused && t - c->kernel + 1 >= c->begin)
                store_row(c, din, t - c->kernel + 1, sums[j]);
        }
    }
}

/* ---- on the host */

/* Returns what all tasks share; columns: all. */
static inline struct convolution convolution_of(const struct tensor *in,
                                                const struct tensor *weight,
                                                const struct tensor *out,
                                                const int32_t *first_keys) {
    struct convolution c;
    memset(&c, 0, sizeof c);
    c.columns = (int)tensor_rows(weight), c.kernel = (int)tensor_columns(weight);
    c.unused = TAPS - c.kernel, c.length = (int)in->shape[1], c.first_keys = first_keys;
    assert(in->rank == 3 && c.unused >= 0 && c.columns <= tensor_columns(in));
    assert(tensor_columns(out) == c.columns && tensor_rows(out) == tensor_rows(in));
    assert(out->dtype == in->dtype);
    (void)out;
    return c;
}

static inline int64_t segments_of(const struct tensor *in) {
    return blocks_of(in->shape[1], SEGMENT);
}

/* Bytes of the partial sums of dweight, [segments of all sequences, C, K]. */
static inline size_t partials_bytes(const struct causal_convolution_backward_args *args) {
    const int64_t segments = args->in->shape[0] * segments_of(args->in);
    return (size_t)(segments * tensor_count(args->weight)) * sizeof(float);
}
