/* The gated delta rule (kernels/delta_rule_args.h) in chunks, computed alike on both backends: what
 * one sequence and one key head, with the value heads that share it, need of the two passes.
 *
 * In a chunk that begins with the state S, let D[i, j] be the product of exp(g) of rows j + 1 to i,
 * and e[i] that of rows 0 to i. With A[i, j] = (k_i . k_j) D[i, j] below the diagonal and P[i, j] =
 * (q_i . k_j) D[i, j] up to it (Yang et al. 2025, section 3.3):
 *
 *     z = v - e k S - A u,   u = beta z,   out = e q S + P u
 *     S of the next chunk = e[last] S + (D[last] k)' u
 *
 * The backward pass recomputes all of it from S. The derivative of row i's g is the sum of those of
 * all D and e that contain it. Each is added once: as a difference of sums over rows, it would lose
 * its digits where exp(g) is small.
 *
 * The source that includes this is run by one thread on a CPU, and by a block of threads on a GPU.
 * It defines
 *     DELTA_FUNCTION                           qualifiers of functions
 *     EACH_INDEX(i, count)                     a loop that threads share: the same thread for an i
 *     EACH_ELEMENT(i, rows, j, columns)        the same for the elements of a matrix
 *     BARRIER()                                between threads
 * and functions that all threads call and that end with a barrier. Matrices are dense:
 *     delta_product(out, rows, columns, a, row_step, step, b, count, add)
 *         out (+)= sum over l < count of a[i * row_step + l * step] b[l, j]
 *     delta_transpose(out, in, rows, columns)
 *     delta_dots(out, a, b, rows, columns)     out[i] = a[i] . b[i]
 *     delta_load(to, width, padded, from, row, column, rows, columns)
 *         to [padded, width] = `rows` rows of a tensor from a column on, and 0 beyond
 *     delta_store(to, row, column, rows, columns, from, width)
 * Rows and columns are multiples of 8, those of delta_transpose and widths of DELTA_UNIT. */
#pragma once

#include "kernels/arena.h"
#include "kernels/delta_rule_args.h"
#include "kernels/logistic.h"

enum { DELTA_UNIT = 16, DELTA_SOLVED = 8 /* rows that delta_solve solves at a time */ };

/* Sizes and tensors of both passes. */
struct delta_rule {
    struct tensor qkv, gates, out; /* out: dout in the backward pass */
    struct tensor dqkv, dgates;    /* of the backward pass */
    const float *A_log, *dt_bias;  /* [H_v] */
    float *states, *state;         /* optional, as in the arguments */
    float *sums;                   /* backward: [B, 2, H_v], of dA_log and ddt_bias */
    const int32_t *first_keys;     /* optional */
    int64_t length, gates_column;  /* T */
    int64_t state_rows;            /* T without state */
    int key_heads, value_heads;    /* H_k, H_v */
    int group;                     /* H_v / H_k */
    int key_size, value_size;      /* Dk, Dv */
    int keys, values;              /* the same, rounded up to DELTA_UNIT: widths of matrices */
    bool resumes;
};

/* Buffers of a task. C: rows of a chunk, rounded up to DELTA_UNIT; further rows have q, k, v and
 * beta of 0 and g of 0. */
struct delta_chunk {
    float *base;                 /* NULL while measuring */
    int64_t used;                /* floats */
    int rows, padded;            /* of the chunk; C */
    float *state;                /* [group, keys, values] */
    float *q, *k, *k_across;     /* [C, keys] twice, [keys, C] */
    float *q_norm, *k_norm;      /* [C]: one over the norm */
    float *kk, *qk;              /* [C, C]: products of rows */
    float *alpha, *beta, *a, *e; /* [C]; alpha: exp(g) */
    float *decay, *solved, *p;   /* [C, C]: D, -A, P */
    float *z, *u, *out;          /* [C, values]; out: dout in the backward pass */
    /* of the backward pass */
    float *dstate;                       /* [group, keys, values], of the next chunk's state */
    float *state_across, *dstate_across; /* [values, keys] */
    float *u_across, *du, *dz;           /* [values, C], [C, values] */
    float *dqk, *dkk;                    /* [C, C] */
    float *dq, *dk, *dk_read;            /* [C, keys]; dk_read: of k_i where row i is read */
    float *dq_sum, *dk_sum;              /* [C, keys], over value heads */
    float *dg, *dbeta, *dots, *of_q, *of_k, *of_u; /* [C] */
    float *of_state;                               /* [keys] */
};

static ON_HOST_AND_DEVICE float *delta_take(struct delta_chunk *c, int64_t floats) {
    float *taken = c->base ? c->base + c->used : NULL;
    c->used += floats;
    return taken;
}

/* Returns a task's buffers in memory. */
static ON_HOST_AND_DEVICE struct delta_chunk
delta_chunk_at(float *memory, const struct delta_rule *r, bool backward) {
    const int64_t rows = DELTA_CHUNK, states = (int64_t)r->group * r->keys * r->values;
    struct delta_chunk chunk, *c = &chunk;
    memset(c, 0, sizeof *c);
    c->base = memory;
    c->state = delta_take(c, states);
    float **of_keys[] = {&c->q,  &c->k,       &c->k_across, &c->dq,
                         &c->dk, &c->dk_read, &c->dq_sum,   &c->dk_sum};
    for (int i = 0; i < (backward ? 8 : 3); i++) *of_keys[i] = delta_take(c, rows * r->keys);
    float **of_values[] = {&c->z, &c->u, &c->out, &c->u_across, &c->du, &c->dz};
    for (int i = 0; i < (backward ? 6 : 3); i++) *of_values[i] = delta_take(c, rows * r->values);
    float **of_rows[] = {&c->kk, &c->qk, &c->decay, &c->solved, &c->p, &c->dqk, &c->dkk};
    for (int i = 0; i < (backward ? 7 : 5); i++) *of_rows[i] = delta_take(c, rows * rows);
    float **vectors[] = {&c->q_norm, &c->k_norm, &c->alpha, &c->beta, &c->a,    &c->e,
                         &c->dg,     &c->dbeta,  &c->dots,  &c->of_q, &c->of_k, &c->of_u};
    for (int i = 0; i < (backward ? 12 : 6); i++) *vectors[i] = delta_take(c, rows);
    if (!backward) return chunk;
    c->dstate = delta_take(c, states);
    c->state_across = delta_take(c, (int64_t)r->keys * r->values);
    c->dstate_across = delta_take(c, (int64_t)r->keys * r->values);
    c->of_state = delta_take(c, r->keys);
    return chunk;
}

/* ---- one chunk of one value head */

/* x[i] += sum over j < i of m[i, j] y[j], y[i] = beta[i] x[i]; backward: the same for j > i and
 * m[j, i], from the last row on. */
DELTA_FUNCTION void delta_solve(const struct delta_chunk *c, float *x, float *y, int width,
                                bool backward) {
    const int row_step = backward ? 1 : c->padded, step = backward ? c->padded : 1;
    for (int done = 0; done < c->padded; done += DELTA_SOLVED) {
        const int first = backward ? c->padded - DELTA_SOLVED - done : done;
        const int from = backward ? first + DELTA_SOLVED : 0;
        const float *m = c->solved + first * row_step;
        delta_product(x + first * width, DELTA_SOLVED, width, m + from * step, row_step, step,
                      y + from * width, done, true);
        for (int n = 0; n < DELTA_SOLVED; n++) {
            const int i = backward ? first + DELTA_SOLVED - 1 - n : first + n;
            for (int l = 1; l <= n; l++) {
                const int j = backward ? i + l : i - l;
                const float factor = c->solved[i * row_step + j * step];
                EACH_INDEX(at, width) {
                    x[i * width + at] += factor * y[j * width + at];
                }
            }
            const float beta = c->beta[i];
            EACH_INDEX(at, width) {
                y[i * width + at] = beta * x[i * width + at];
            }
        }
        BARRIER();
    }
}

/* Computes D, e, -A, P, and z and u from v, which u holds before. */
DELTA_FUNCTION void delta_values(const struct delta_rule *r, const struct delta_chunk *c,
                                 const float *state) {
    const int rows = c->padded, values = r->values;
    for (int i = 0; i < rows; i++) {
        const float alpha = c->alpha[i];
        EACH_INDEX(j, i + 1) {
            c->decay[i * rows + j] = j < i ? c->decay[(i - 1) * rows + j] * alpha : 1;
        }
        EACH_INDEX(one, 1) {
            c->e[i] = i > 0 ? c->e[i - 1] * alpha : alpha;
        }
    }
    delta_product(c->z, rows, values, c->k, r->keys, 1, state, r->keys, false);
    EACH_ELEMENT(i, rows, j, rows) {
        const int at = i * rows + j;
        c->solved[at] = j < i ? -c->kk[at] * c->decay[at] : 0;
        c->p[at] = j <= i ? c->qk[at] * c->decay[at] : 0;
    }
    EACH_ELEMENT(i, rows, j, values) {
        c->z[i * values + j] = c->u[i * values + j] - c->e[i] * c->z[i * values + j];
    }
    BARRIER();
    delta_solve(c, c->z, c->u, values, false);
}

/* Computes out, and replaces the state by the next one. Overwrites z. */
DELTA_FUNCTION void delta_chunk_forward(const struct delta_rule *r, const struct delta_chunk *c,
                                        float *state) {
    const int rows = c->padded, keys = r->keys, values = r->values;
    const float *to_end = c->decay + (rows - 1) * rows;
    delta_values(r, c, state);
    delta_product(c->out, rows, values, c->q, keys, 1, state, keys, false);
    EACH_ELEMENT(i, rows, j, values) {
        c->out[i * values + j] *= c->e[i];
        c->z[i * values + j] = to_end[i] * c->u[i * values + j];
    }
    EACH_ELEMENT(i, keys, j, values) {
        state[i * values + j] *= c->e[rows - 1];
    }
    BARRIER();
    delta_product(c->out, rows, values, c->p, rows, 1, c->u, rows, true);
    delta_product(state, keys, values, c->k, 1, keys, c->z, rows, true);
}

/* Computes dg from derivatives of logarithms: of D, which replace p, by rows below, and of what
 * multiplies q and k (e), u (D[last]) and the state (e[last]). */
DELTA_FUNCTION void delta_gates_backward(const struct delta_chunk *c, int keys) {
    const int rows = c->padded;
    for (int i = rows - 1; i >= 0; i--) {
        EACH_INDEX(j, rows) {
            const int at = i * rows + j;
            const float below = i + 1 < rows ? c->p[at + rows] : 0;
            c->p[at] = c->dqk[at] * c->qk[at] + c->dkk[at] * c->kk[at] + below;
        }
    }
    BARRIER();
    EACH_INDEX(i, rows) {
        float sum = 0;
        for (int j = 0; j < i; j++) sum += c->p[i * rows + j] + c->of_u[j];
        for (int j = i; j < rows; j++) sum += c->of_q[j] + c->of_k[j];
        for (int j = 0; j < keys; j++) sum += c->of_state[j] * c->e[rows - 1];
        c->dg[i] = sum;
    }
    BARRIER();
}

/* Given dout in `out` and the derivative of the next state, computes dz, which is that of v, dq,
 * dk, dk_read, dbeta and dg, and replaces dstate by that of this chunk's state. Overwrites out and
 * u. */
DELTA_FUNCTION void delta_chunk_backward(const struct delta_rule *r, const struct delta_chunk *c,
                                         const float *state, float *dstate) {
    const int rows = c->padded, keys = r->keys, values = r->values;
    const float *to_end = c->decay + (rows - 1) * rows;
    delta_values(r, c, state);
    delta_transpose(c->state_across, state, keys, values);
    delta_transpose(c->dstate_across, dstate, keys, values);
    delta_transpose(c->u_across, c->u, rows, values);
    delta_product(c->du, rows, values, c->k, keys, 1, dstate, keys, false);
    EACH_ELEMENT(i, rows, j, values) {
        c->du[i * values + j] *= to_end[i];
    }
    BARRIER();
    delta_dots(c->of_u, c->du, c->u, rows, values);
    delta_dots(c->of_state, state, dstate, keys, values);
    delta_product(c->du, rows, values, c->p, 1, rows, c->out, rows, true);
    delta_product(c->dqk, rows, rows, c->out, values, 1, c->u_across, values, false);
    delta_product(c->dq, rows, keys, c->out, values, 1, c->state_across, values, false);
    delta_product(c->dk_read, rows, keys, c->u, values, 1, c->dstate_across, values, false);
    delta_solve(c, c->du, c->dz, values, true);
    delta_dots(c->dbeta, c->z, c->du, rows, values);
    delta_product(c->dkk, rows, rows, c->dz, values, 1, c->u_across, values, false);
    EACH_ELEMENT(i, rows, j, rows) {
        const int at = i * rows + j;
        c->dqk[at] = j <= i ? c->dqk[at] * c->decay[at] : 0;
        c->dkk[at] = j < i ? -c->dkk[at] * c->decay[at] : 0;
    }
    EACH_ELEMENT(i, rows, j, values) {
        c->out[i * values + j] *= c->e[i];
        c->u[i * values + j] = -c->e[i] * c->dz[i * values + j];
    }
    EACH_ELEMENT(i, rows, j, keys) {
        c->dq[i * keys + j] *= c->e[i];
        c->dk_read[i * keys + j] *= to_end[i];
    }
    EACH_ELEMENT(i, keys, j, values) {
        dstate[i * values + j] *= c->e[rows - 1];
    }
    BARRIER();
    delta_product(dstate, keys, values, c->q, 1, keys, c->out, rows, true);
    delta_product(dstate, keys, values, c->k, 1, keys, c->u, rows, true);
    delta_product(c->dk, rows, keys, c->u, values, 1, c->state_across, values, false);
    delta_dots(c->of_q, c->q, c->dq, rows, keys);
    delta_dots(c->of_k, c->k, c->dk, rows, keys);
    delta_product(c->dq, rows, keys, c->dqk, rows, 1, c->k, rows, true);
    delta_product(c->dk, rows, keys, c->dkk, rows, 1, c->k, rows, true);
    delta_product(c->dk_read, rows, keys, c->dqk, 1, rows, c->q, rows, true);
    delta_product(c->dk_read, rows, keys, c->dkk, 1, rows, c->k, rows, true);
    delta_gates_backward(c, keys);
}

/* ---- rows of a chunk */

/* x = factor * x / norm, and norm = 1 / norm. */
DELTA_FUNCTION void delta_normalize(float *x, float *norm, int rows, int keys, float factor) {
    delta_dots(norm, x, x, rows, keys);
    EACH_INDEX(i, rows) {
        norm[i] = 1 / sqrtf(norm[i] + 1e-6f);
    }
    BARRIER();
    EACH_ELEMENT(i, rows, j, keys) {
        x[i * keys + j] *= factor * norm[i];
    }
    BARRIER();
}

/* Replaces dx by the derivative of the input of delta_normalize, whose result is x. */
DELTA_FUNCTION void delta_normalize_backward(float *dx, const float *x, const float *norm,
                                             float *dots, int rows, int keys, float factor) {
    delta_dots(dots, x, dx, rows, keys);
    EACH_ELEMENT(i, rows, j, keys) {
        const int at = i * keys + j;
        dx[at] = norm[i] * (factor * dx[at] - x[at] * dots[i] / factor);
    }
    BARRIER();
}

DELTA_FUNCTION float delta_query_factor(const struct delta_rule *r) {
    return 1 / sqrtf((float)r->key_size);
}

/* Loads `rows` rows of q and k, which the value heads of a key head share. row: of the tensor. */
DELTA_FUNCTION void delta_load_keys(const struct delta_rule *r, struct delta_chunk *c, int64_t row,
                                    int rows, int key_head) {
    const int padded = (rows + DELTA_UNIT - 1) / DELTA_UNIT * DELTA_UNIT, keys = r->keys,
              size = r->key_size;
    c->rows = rows, c->padded = padded;
    delta_load(c->q, keys, padded, &r->qkv, row, key_head * size, rows, size);
    delta_load(c->k, keys, padded, &r->qkv, row, (r->key_heads + key_head) * size, rows, size);
    delta_normalize(c->q, c->q_norm, padded, keys, delta_query_factor(r));
    delta_normalize(c->k, c->k_norm, padded, keys, 1);
    delta_transpose(c->k_across, c->k, padded, keys);
    delta_product(c->kk, padded, padded, c->k, keys, 1, c->k_across, keys, false);
    delta_product(c->qk, padded, padded, c->q, keys, 1, c->k_across, keys, false);
}

/* Column of the first value of a head in a row of qkv. */
static ON_HOST_AND_DEVICE int delta_values_column(const struct delta_rule *r, int head) {
    return 2 * r->key_heads * r->key_size + head * r->value_size;
}

/* Loads v, to u, and the gates of a value head. */
DELTA_FUNCTION void delta_load_values(const struct delta_rule *r, const struct delta_chunk *c,
                                      int64_t row, int head) {
    const int64_t column = r->gates_column + head;
    const float rate = -expf(r->A_log[head]), bias = r->dt_bias[head];
    delta_load(c->u, r->values, c->padded, &r->qkv, row, delta_values_column(r, head), c->rows,
               r->value_size);
    delta_load(c->beta, 1, c->padded, &r->gates, row, column, c->rows, 1);
    delta_load(c->a, 1, c->padded, &r->gates, row, column + r->value_heads, c->rows, 1);
    EACH_INDEX(i, c->padded) {
        c->beta[i] = i < c->rows ? sigmoid(c->beta[i]) : 0;
        c->alpha[i] = i < c->rows ? expf(rate * softplus(c->a[i] + bias)) : 1;
    }
    BARRIER();
}

/* Stores the derivatives of v and of the gates, and adds to those of A_log and dt_bias. */
DELTA_FUNCTION void delta_store_values(const struct delta_rule *r, const struct delta_chunk *c,
                                       int64_t row, int head, float *sums) {
    const int64_t column = r->gates_column + head;
    const float rate = -expf(r->A_log[head]), bias = r->dt_bias[head];
    EACH_INDEX(i, c->rows) {
        const float x = c->a[i] + bias;
        c->dbeta[i] *= c->beta[i] * (1 - c->beta[i]);
        c->dots[i] = c->dg[i] * rate * softplus(x);
        c->dg[i] *= rate * sigmoid(x);
    }
    BARRIER();
    EACH_INDEX(one, 1) {
        for (int i = 0; i < c->rows; i++) {
            sums[head] += c->dots[i];
            sums[r->value_heads + head] += c->dg[i];
        }
    }
    delta_store(&r->dqkv, row, delta_values_column(r, head), c->rows, r->value_size, c->dz,
                r->values);
    delta_store(&r->dgates, row, column, c->rows, 1, c->dbeta, 1);
    delta_store(&r->dgates, row, column + r->value_heads, c->rows, 1, c->dg, 1);
}

/* ---- states */

/* state [keys, values] = from [Dk, Dv], or 0 if that is NULL. */
DELTA_FUNCTION void delta_read_state(const struct delta_rule *r, float *state, const float *from) {
    EACH_ELEMENT(i, r->keys, j, r->values) {
        const bool inside = from && i < r->key_size && j < r->value_size;
        state[i * r->values + j] = inside ? from[i * r->value_size + j] : 0;
    }
    BARRIER();
}

DELTA_FUNCTION void delta_write_state(const struct delta_rule *r, float *to, const float *state) {
    EACH_ELEMENT(i, r->key_size, j, r->value_size) {
        to[i * r->value_size + j] = state[i * r->values + j];
    }
    BARRIER();
}

/* Returns the states of a sequence's heads, given all of them; index: the state of several. */
DELTA_FUNCTION float *delta_state_at(const struct delta_rule *r, float *states, int64_t index,
                                     int head) {
    return states + (index * r->value_heads + head) * r->key_size * r->value_size;
}

/* Index in `states` of the state before a row of a sequence. */
DELTA_FUNCTION int64_t delta_state_index(const struct delta_rule *r, int64_t sequence,
                                         int64_t row) {
    return sequence * ((r->length - 1) / DELTA_CHUNK) + row / DELTA_CHUNK - 1;
}

DELTA_FUNCTION const int32_t *delta_first_keys(const struct delta_rule *r, int64_t sequence) {
    return r->first_keys ? r->first_keys + sequence * r->length : NULL;
}

/* ---- one sequence and key head */

/* Row after the chunk that begins at `row`. */
DELTA_FUNCTION int64_t delta_chunk_end(const struct delta_rule *r, const int32_t *first_keys,
                                       int64_t row) {
    const int64_t limit = row < r->state_rows ? r->state_rows : r->length;
    int64_t end = row + 1;
    while (end < limit && end - row < DELTA_CHUNK && !(first_keys && first_keys[end] == end)) end++;
    return end;
}

DELTA_FUNCTION void delta_forward(const struct delta_rule *r, float *memory, int64_t sequence,
                                  int key_head) {
    struct delta_chunk chunk = delta_chunk_at(memory, r, false), *c = &chunk;
    const int32_t *first_keys = delta_first_keys(r, sequence);
    const int64_t first = sequence * r->length;
    for (int64_t row = 0, end; row < r->length; row = end) {
        const bool begins = row == 0 || (first_keys && first_keys[row] == row);
        end = delta_chunk_end(r, first_keys, row);
        delta_load_keys(r, c, first + row, (int)(end - row), key_head);
        for (int i = 0; i < r->group; i++) {
            const int head = key_head * r->group + i;
            float *state = c->state + (int64_t)i * r->keys * r->values;
            float *carried = r->state ? delta_state_at(r, r->state, sequence, head) : NULL;
            delta_load_values(r, c, first + row, head);
            if (begins) delta_read_state(r, state, row == 0 && r->resumes ? carried : NULL);
            else if (r->states)
                delta_write_state(
                    r, delta_state_at(r, r->states, delta_state_index(r, sequence, row), head),
                    state);
            delta_chunk_forward(r, c, state);
            delta_store(&r->out, first + row, head * r->value_size, c->rows, r->value_size, c->out,
                        r->values);
            if (carried && end == r->state_rows) delta_write_state(r, carried, state);
        }
    }
}

DELTA_FUNCTION void delta_backward(const struct delta_rule *r, float *memory, int64_t sequence,
                                   int key_head) {
    struct delta_chunk chunk = delta_chunk_at(memory, r, true), *c = &chunk;
    const int32_t *first_keys = delta_first_keys(r, sequence);
    const int64_t first = sequence * r->length;
    const int size = r->key_size, keys = r->keys;
    float *sums = r->sums + sequence * 2 * r->value_heads;
    EACH_INDEX(i, r->group) {
        sums[key_head * r->group + i] = sums[r->value_heads + key_head * r->group + i] = 0;
    }
    for (int64_t row, end = r->length; end > 0; end = row) {
        const int64_t document = first_keys ? first_keys[end - 1] : 0;
        const bool ends = end == r->length || (first_keys && first_keys[end] == end);
        row = document + (end - 1 - document) / DELTA_CHUNK * DELTA_CHUNK;
        delta_load_keys(r, c, first + row, (int)(end - row), key_head);
        EACH_ELEMENT(i, c->padded, j, keys) {
            c->dq_sum[i * keys + j] = c->dk_sum[i * keys + j] = 0;
        }
        for (int i = 0; i < r->group; i++) {
            const int head = key_head * r->group + i;
            float *dstate = c->dstate + (int64_t)i * keys * r->values;
            if (ends) delta_read_state(r, dstate, NULL);
            delta_read_state(
                r, c->state,
                row == document
                    ? NULL
                    : delta_state_at(r, r->states, delta_state_index(r, sequence, row), head));
            delta_load_values(r, c, first + row, head);
            delta_load(c->out, r->values, c->padded, &r->out, first + row, head * r->value_size,
                       c->rows, r->value_size);
            delta_chunk_backward(r, c, c->state, dstate);
            EACH_ELEMENT(l, c->padded, j, keys) {
                const int at = l * keys + j;
                c->dq_sum[at] += c->dq[at];
                c->dk_sum[at] += c->dk[at] + c->dk_read[at];
            }
            delta_store_values(r, c, first + row, head, sums);
        }
        delta_normalize_backward(c->dq_sum, c->q, c->q_norm, c->dots, c->padded, keys,
                                 delta_query_factor(r));
        delta_normalize_backward(c->dk_sum, c->k, c->k_norm, c->dots, c->padded, keys, 1);
        delta_store(&r->dqkv, first + row, key_head * size, c->rows, size, c->dq_sum, keys);
        delta_store(&r->dqkv, first + row, (r->key_heads + key_head) * size, c->rows, size,
                    c->dk_sum, keys);
    }
}

/* ---- arguments, on the host */

static inline struct delta_rule delta_rule_sizes(const struct tensor *qkv,
                                                 const struct tensor *gates,
                                                 const struct tensor *out, int key_heads,
                                                 int value_heads, int key_size) {
    struct delta_rule r;
    memset(&r, 0, sizeof r);
    r.qkv = *qkv, r.gates = *gates, r.out = *out;
    assert(key_heads > 0 && value_heads % key_heads == 0 && qkv->rank == 3);
    assert(tensor_rows(gates) == tensor_rows(qkv) && tensor_rows(out) == tensor_rows(qkv));
    assert(gates->dtype == qkv->dtype && out->dtype == qkv->dtype);
    r.length = r.state_rows = qkv->shape[1];
    r.key_heads = key_heads, r.value_heads = value_heads, r.group = value_heads / key_heads;
    r.key_size = key_size, r.value_size = (int)(tensor_columns(out) / value_heads);
    r.keys = (int)round_up(r.key_size, DELTA_UNIT);
    r.values = (int)round_up(r.value_size, DELTA_UNIT);
    assert(tensor_columns(qkv) == delta_values_column(&r, value_heads));
    return r;
}

static inline struct delta_rule delta_rule_of_forward(const struct delta_rule_forward_args *a) {
    struct delta_rule r =
        delta_rule_sizes(a->qkv, a->gates, a->out, a->key_heads, a->value_heads, a->key_size);
    assert(!a->states || !a->state);
    assert(!a->state || (a->state_rows > 0 && a->state_rows <= r.length));
    r.A_log = (const float *)a->A_log->data, r.dt_bias = (const float *)a->dt_bias->data;
    r.states = a->states, r.state = a->state, r.first_keys = a->first_keys;
    r.gates_column = a->gates_column, r.resumes = a->resumes;
    if (a->state) r.state_rows = a->state_rows;
    return r;
}

/* sums: scratch of the operation. */
static inline struct delta_rule delta_rule_of_backward(const struct delta_rule_backward_args *a,
                                                       float *sums) {
    struct delta_rule r =
        delta_rule_sizes(a->qkv, a->gates, a->dout, a->key_heads, a->value_heads, a->key_size);
    r.dqkv = *a->dqkv, r.dgates = *a->dgates, r.sums = sums;
    r.A_log = (const float *)a->A_log->data, r.dt_bias = (const float *)a->dt_bias->data;
    r.states = (float *)a->states, r.first_keys = a->first_keys;
    r.gates_column = a->gates_column;
    return r;
}
