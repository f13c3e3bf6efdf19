/* Causal attention of one query head in fp64, forward and backward: the reference of the tests. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "test/kernels/soft_cap.h"

enum { LENGTH_MAX = 400 };

/* One query head with the keys and values that it reads, in fp64; rows are `stride` apart. */
struct head {
    int64_t length, columns, stride;
    const double *q, *k, *v;
    const int32_t *first_keys; /* [length], or NULL */
    double scale, cap;         /* of scores; cap 0: none */
};

static inline int64_t first_key(const struct head *head, int64_t i) {
    return head->first_keys ? head->first_keys[i] : 0;
}

/* Returns the score of query i with key j. Its size is the sum of its absolute terms. */
static inline struct capped score(const struct head *head, int64_t i, int64_t j) {
    double sum = 0, size = 0;
    for (int64_t d = 0; d < head->columns; d++) {
        double term = head->q[i * head->stride + d] * head->k[j * head->stride + d] * head->scale;
        sum += term;
        size += fabs(term);
    }
    return soft_capped(sum, size, head->cap);
}

/* Computes the scores of query i with its keys, their sizes, and log(sum(exp(scores))). */
static inline double scores_of(const struct head *head, int64_t i, double *scores, double *sizes) {
    double max = -INFINITY, sum = 0;
    for (int64_t j = first_key(head, i); j <= i; j++) {
        struct capped capped = score(head, i, j);
        scores[j] = capped.score, sizes[j] = capped.size;
        max = fmax(max, scores[j]);
    }
    for (int64_t j = first_key(head, i); j <= i; j++) sum += exp(scores[j] - max);
    return max + log(sum);
}

/* An absolute fp32 error in a score is a relative error of exp(score), so each term is as
 * uncertain as its score is large. */
static inline void forward_head(const struct head *head, int64_t out_stride, double *out,
                                double *out_size, double *lse, double *lse_size) {
    double scores[LENGTH_MAX], sizes[LENGTH_MAX];
    for (int64_t i = 0; i < head->length; i++) {
        lse[i] = scores_of(head, i, scores, sizes);
        for (int64_t j = first_key(head, i); j <= i; j++) lse_size[i] = fmax(lse_size[i], sizes[j]);
        for (int64_t j = first_key(head, i); j <= i; j++) {
            double p = exp(scores[j] - lse[i]), unsure = 1 + sizes[j] + lse_size[i];
            for (int64_t d = 0; d < head->columns; d++) {
                double term = p * head->v[j * head->stride + d];
                out[i * out_stride + d] += term;
                out_size[i * out_stride + d] += fabs(term) * unsure;
            }
        }
        lse_size[i] += fabs(lse[i]) + 1;
    }
}

/* P = exp(S - lse), dP = dout V', delta = sum(dout * out), dS = P * (dP - delta); then dq = dS
 * k, dk = dS' q, dv = P' dout. Dao and others 2022, appendix B. lse and out are given. */
struct backward_head {
    struct head head;
    int64_t out_stride;
    const double *out, *dout, *lse;
    double *dq, *dk, *dv, *dq_size, *dk_size, *dv_size;
};

static inline void backward_pair(const struct backward_head *w, int64_t i, int64_t j, double delta,
                                 double delta_size) {
    const struct head *head = &w->head;
    struct capped s = score(head, i, j);
    double p = exp(s.score - w->lse[i]), dp = 0, dp_size = 0;
    double unsure = 1 + s.size + fabs(w->lse[i]), slope_size = s.slope * unsure + s.slope_size;
    for (int64_t d = 0; d < head->columns; d++) {
        double term = w->dout[i * w->out_stride + d] * head->v[j * head->stride + d];
        dp += term;
        dp_size += fabs(term);
    }
    double ds = p * (dp - delta) * head->scale * s.slope;
    double ds_size = p * (dp_size + delta_size) * head->scale * slope_size;
    for (int64_t d = 0; d < head->columns; d++) {
        int64_t qi = i * head->stride + d, kj = j * head->stride + d;
        double dout = w->dout[i * w->out_stride + d];
        w->dq[qi] += ds * head->k[kj];
        w->dq_size[qi] += fabs(ds_size * head->k[kj]);
        w->dk[kj] += ds * head->q[qi];
        w->dk_size[kj] += fabs(ds_size * head->q[qi]);
        w->dv[kj] += p * dout;
        w->dv_size[kj] += fabs(p * unsure * dout);
    }
}

static inline void backward_head(const struct backward_head *w) {
    for (int64_t i = 0; i < w->head.length; i++) {
        double delta = 0, delta_size = 0;
        for (int64_t d = 0; d < w->head.columns; d++) {
            double term = w->dout[i * w->out_stride + d] * w->out[i * w->out_stride + d];
            delta += term;
            delta_size += fabs(term);
        }
        for (int64_t j = first_key(&w->head, i); j <= i; j++)
            backward_pair(w, i, j, delta, delta_size);
    }
}
