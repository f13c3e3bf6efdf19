/* Gated DeltaNet (Yang, Kautz, Hatamizadeh 2025, arXiv 2412.06464), as in Qwen3.5: arguments of its
 * operations, as in kernels/kernels.h, which includes this.
 *
 * A layer computes in_proj -> [qkv | z | b | a], causal_convolution of qkv, delta_rule of the
 * result with the gates b and a, a norm of its heads, their product with silu(z), out_proj. Tensors
 * "[N, J]" may be wider than what is read or written of a row, which begins at the column that a
 * field names.
 *
 * first_keys, as in attention_forward: row t of a sequence belongs to the document that begins at
 * row first_keys[t], and nothing is carried into it from the rows before. Its results have the bits
 * that the document has alone.
 *
 * For generation, `state` and `tail` carry sequences on from one call to the next, in place: a
 * prompt is one sequence of T rows, and its texts then are B sequences of one row. With `resumes`,
 * documents that begin at row 0 continue from them; else they are only written. They are those
 * after the first `state_rows` rows of a sequence; later ones are padding. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/tensor.h"

struct trace_label;

enum {
    DELTA_CHUNK = 64,          /* rows from one stored state to the next */
    CONVOLUTION_KERNEL_MAX = 8 /* largest K */
};

/* Causal depthwise convolution: out[t, c] = silu(sum over j of weight[c, j] in[t - K + 1 + j, c]),
 * where rows before the document are 0. All but the weight and its gradient have one dtype. */
struct causal_convolution_forward_args {
    const struct tensor *out;        /* [B, T, C] */
    const struct tensor *tail;       /* optional [B, K - 1, C]: the last K - 1 rows of `in` */
    const struct tensor *in;         /* [B, T, J]: the first C columns are read */
    const struct tensor *weight;     /* [C, K] */
    const int32_t *first_keys;       /* optional [B, T] */
    int64_t state_rows;              /* with tail: 1..T */
    bool resumes;                    /* with tail */
    const struct trace_label *label; /* optional */
};

struct causal_convolution_backward_args {
    const struct tensor *din;        /* [B, T, J]: the first C columns are written */
    const struct tensor *dweight;    /* += [C, K] */
    const struct tensor *dout;       /* [B, T, C] */
    const struct tensor *in;         /* [B, T, J] */
    const struct tensor *weight;     /* [C, K] */
    const int32_t *first_keys;       /* optional [B, T] */
    const struct trace_label *label; /* optional */
};

/* For each row and value head, whose state S [Dk, Dv] is 0 before a document:
 *
 *     S = exp(g) S + k (beta (v - (exp(g) S)' k))',  out = S' q
 *
 * where g = -exp(A_log) softplus(a + dt_bias), beta = sigmoid(b), k = k / sqrt(k . k + 1e-6), and q
 * is the same divided by sqrt(Dk). A row of qkv has H_k heads of Dk values of q, as many of k, then
 * H_v of Dv of v; value head h reads query and key head h / (H_v / H_k). The tensors qkv, gates and
 * out have one dtype. Computed in chunks of up to DELTA_CHUNK rows of a document (section 3.3). */
struct delta_rule_forward_args {
    const struct tensor *out; /* [B, T, H_v Dv] */
    float *states;            /* optional [B, (T - 1) / DELTA_CHUNK, H_v, Dk, Dv], for the backward
                               * pass: the state before row t of a sequence is at index
                               * t / DELTA_CHUNK - 1, where a chunk begins at t and no document
                               * does. Not with state */
    float *state;             /* optional [B, H_v, Dk, Dv] */
    const struct tensor *qkv; /* [B, T, 2 H_k Dk + H_v Dv] */
    const struct tensor *gates;   /* [B, T, J], from gates_column on: b [H_v] | a [H_v] */
    const struct tensor *A_log;   /* [H_v] fp32 */
    const struct tensor *dt_bias; /* [H_v] fp32 */
    const int32_t *first_keys;    /* optional [B, T] */
    int64_t gates_column;
    int64_t state_rows; /* with state: 1..T */
    bool resumes;       /* with state */
    int key_heads;      /* H_k */
    int value_heads;    /* H_v: H_k divides it */
    int key_size;       /* Dk */
};

/* Gradients of q and k are sums over the value heads that read them, added in a fixed order. */
struct delta_rule_backward_args {
    const struct tensor *dqkv;     /* [B, T, 2 H_k Dk + H_v Dv] */
    const struct tensor *dgates;   /* [B, T, J], from gates_column on: of b | of a; other columns
                                    * stay */
    const struct tensor *dA_log;   /* += [H_v] */
    const struct tensor *ddt_bias; /* += [H_v] */
    const struct tensor *dout;     /* [B, T, H_v Dv] */
    const float *states;           /* of the forward pass */
    const struct tensor *qkv, *gates, *A_log, *dt_bias; /* as in the forward pass */
    const int32_t *first_keys;                          /* the same */
    int64_t gates_column;                               /* the same */
    int key_heads, value_heads, key_size;               /* the same */
    const struct trace_label *label;                    /* optional */
};
