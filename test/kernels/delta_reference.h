/* The gated delta rule in fp64, row after row as it is defined, with its gradients. */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "test/kernels/check.h"

struct delta_shape {
    int batch, length;          /* B, T */
    int key_heads, value_heads; /* H_k, H_v */
    int key_size, value_size;   /* Dk, Dv */
    enum dtype dtype;
    bool documents; /* sequences consist of several */
};

enum { DELTA_LENGTH_MAX = 160 };

/* Arrays are as the operation's tensors; gates [B, T, 2 H_v]. */
struct delta_reference {
    const struct delta_shape *shape;
    struct check *check;
    int32_t *first_keys; /* [B, T] */
    const double *qkv, *A_log, *dt_bias, *dout;
    double *gates, *out, *dqkv, *dgates, *dA_log, *ddt_bias;
    double *dA_log_size, *ddt_bias_size;   /* sums of absolute values */
    double *state_after[DELTA_LENGTH_MAX]; /* [H_v, Dk, Dv], of the first sequence */
};

static inline int64_t delta_columns(const struct delta_shape *s) {
    return 2 * s->key_heads * s->key_size + s->value_heads * s->value_size;
}

/* Allocates all but the inputs, and divides sequences into documents. */
static inline void delta_reference_open(struct delta_reference *r, struct check *c,
                                        const struct delta_shape *s) {
    const int64_t rows = (int64_t)s->batch * s->length;
    *r = (struct delta_reference){.shape = s, .check = c};
    r->first_keys = (int32_t *)(void *)check_doubles(c, rows);
    r->gates = check_doubles(c, rows * 2 * s->value_heads);
    r->dgates = check_doubles(c, rows * 2 * s->value_heads);
    r->out = check_doubles(c, rows * s->value_heads * s->value_size);
    r->dqkv = check_doubles(c, rows * delta_columns(s));
    r->dA_log = check_doubles(c, s->value_heads), r->ddt_bias = check_doubles(c, s->value_heads);
    r->dA_log_size = check_doubles(c, s->value_heads);
    r->ddt_bias_size = check_doubles(c, s->value_heads);
    for (int t = 0; t < s->length; t++)
        r->state_after[t] = check_doubles(c, (int64_t)s->value_heads * s->key_size * s->value_size);
    /* Documents of 5, 65, 1 ... rows; in the next sequence of 6, 66, 2 ... */
    for (int64_t i = 0; s->documents && i < rows; i++) {
        const int t = (int)(i % s->length), more = (int)(i / s->length);
        const int begins[] = {70 + 2 * more + 1, 70 + 2 * more, 5 + more, 0};
        for (int j = 3; j >= 0; j--)
            if (t >= begins[j]) r->first_keys[i] = begins[j];
    }
}

/* One row of one head. */
struct delta_row {
    double *before, *decayed, *after;      /* [Dk, Dv] */
    double *q, *k, *u;                     /* normalized; beta (v - decayed' k) */
    double q_norm, k_norm, alpha, beta, x; /* x: a + dt_bias */
};

static inline double delta_normalize_row(double *to, const double *from, int size, double factor) {
    double sum = 1e-6;
    for (int i = 0; i < size; i++) sum += from[i] * from[i];
    for (int i = 0; i < size; i++) to[i] = factor * from[i] / sqrt(sum);
    return 1 / sqrt(sum);
}

/* to += derivative of the input of delta_normalize_row, whose result was `result`. */
static inline void delta_normalize_gradient(double *to, const double *dresult, const double *result,
                                            double norm, int size, double factor) {
    double dot = 0;
    for (int i = 0; i < size; i++) dot += dresult[i] * result[i] / factor;
    for (int i = 0; i < size; i++) to[i] += norm * (factor * dresult[i] - result[i] * dot);
}

static inline void delta_row_forward(const struct delta_reference *r, struct delta_row *row,
                                     const double *before, int64_t at, int head) {
    const struct delta_shape *s = r->shape;
    const int dk = s->key_size, dv = s->value_size,
              key_head = head / (s->value_heads / s->key_heads);
    const double *qkv = r->qkv + at * delta_columns(s), *gates = r->gates + at * 2 * s->value_heads;
    const double *v = qkv + 2 * s->key_heads * dk + head * dv;
    double *out = r->out + (at * s->value_heads + head) * dv;
    row->before = check_doubles(r->check, dk * dv), row->decayed = check_doubles(r->check, dk * dv);
    row->after = check_doubles(r->check, dk * dv), row->u = check_doubles(r->check, dv);
    row->q = check_doubles(r->check, dk), row->k = check_doubles(r->check, dk);
    if (before) memcpy(row->before, before, (size_t)(dk * dv) * sizeof *before);
    row->q_norm = delta_normalize_row(row->q, qkv + key_head * dk, dk, 1 / sqrt(dk));
    row->k_norm = delta_normalize_row(row->k, qkv + (s->key_heads + key_head) * dk, dk, 1);
    row->beta = 1 / (1 + exp(-gates[head]));
    row->x = gates[s->value_heads + head] + r->dt_bias[head];
    row->alpha = exp(-exp(r->A_log[head]) * log1p(exp(row->x)));
    for (int i = 0; i < dk * dv; i++) row->decayed[i] = row->alpha * row->before[i];
    for (int j = 0; j < dv; j++) {
        double read = 0;
        for (int i = 0; i < dk; i++) read += row->decayed[i * dv + j] * row->k[i];
        row->u[j] = row->beta * (v[j] - read);
        out[j] = 0;
        for (int i = 0; i < dk; i++) {
            row->after[i * dv + j] = row->decayed[i * dv + j] + row->k[i] * row->u[j];
            out[j] += row->after[i * dv + j] * row->q[i];
        }
    }
}

/* dstate: in and out, of the states after and before the row. */
static inline void delta_row_backward(const struct delta_reference *r, const struct delta_row *row,
                                      double *dstate, int64_t at, int head) {
    const struct delta_shape *s = r->shape;
    const int dk = s->key_size, dv = s->value_size,
              key_head = head / (s->value_heads / s->key_heads);
    const double *dout = r->dout + (at * s->value_heads + head) * dv;
    double *dqkv = r->dqkv + at * delta_columns(s), *dgates = r->dgates + at * 2 * s->value_heads;
    double *dv_row = dqkv + 2 * s->key_heads * dk + head * dv;
    double *dq = check_doubles(r->check, dk), *dk_row = check_doubles(r->check, dk);
    double dalpha = 0, dbeta = 0;
    for (int j = 0; j < dv; j++) {
        double du = 0;
        for (int i = 0; i < dk; i++) {
            dq[i] += row->after[i * dv + j] * dout[j];
            dstate[i * dv + j] += row->q[i] * dout[j];
            du += dstate[i * dv + j] * row->k[i];
            dk_row[i] += dstate[i * dv + j] * row->u[j];
        }
        dv_row[j] = row->beta * du;
        dbeta += du * row->u[j] / row->beta;
        for (int i = 0; i < dk; i++) {
            dk_row[i] -= row->decayed[i * dv + j] * row->beta * du;
            dstate[i * dv + j] -= row->k[i] * row->beta * du;
            dalpha += dstate[i * dv + j] * row->before[i * dv + j];
            dstate[i * dv + j] *= row->alpha;
        }
    }
    const double rate = -exp(r->A_log[head]), dg = dalpha * row->alpha;
    const double da = dg * rate / (1 + exp(-row->x)), dA = dg * rate * log1p(exp(row->x));
    dgates[head] = dbeta * row->beta * (1 - row->beta);
    dgates[s->value_heads + head] = da;
    r->dA_log[head] += dA, r->ddt_bias[head] += da;
    r->dA_log_size[head] += fabs(dA), r->ddt_bias_size[head] += fabs(da);
    delta_normalize_gradient(dqkv + key_head * dk, dq, row->q, row->q_norm, dk, 1 / sqrt(dk));
    delta_normalize_gradient(dqkv + (s->key_heads + key_head) * dk, dk_row, row->k, row->k_norm, dk,
                             1);
}

static inline void delta_reference_run(const struct delta_reference *r) {
    const struct delta_shape *s = r->shape;
    const int64_t floats = (int64_t)s->key_size * s->value_size;
    for (int i = 0; i < s->batch * s->value_heads; i++) {
        struct delta_row rows[DELTA_LENGTH_MAX];
        const int64_t first = (int64_t)(i / s->value_heads) * s->length;
        const int head = i % s->value_heads;
        double *dstate = check_doubles(r->check, floats);
        for (int t = 0; t < s->length; t++) {
            const bool begins = r->first_keys[first + t] == t;
            delta_row_forward(r, &rows[t], begins || t == 0 ? NULL : rows[t - 1].after, first + t,
                              head);
            if (first == 0)
                memcpy(r->state_after[t] + head * floats, rows[t].after,
                       (size_t)floats * sizeof(double));
        }
        for (int t = s->length - 1; t >= 0; t--) {
            delta_row_backward(r, &rows[t], dstate, first + t, head);
            if (r->first_keys[first + t] == t) memset(dstate, 0, (size_t)floats * sizeof *dstate);
        }
    }
}
