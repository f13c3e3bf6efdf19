/* The table of operations: everything a training step does to tensors.
 *
 * OPERATIONS lists the names. It generates the struct of function pointers, the prototypes cpu_NAME
 * and cuda_NAME, the tables of both backends, and loops over all operations (planning, profiling).
 * The contract of operation NAME is the comment and the fields of struct NAME_args: outputs come
 * first, "[N, C]" is a shape, "+=" marks an output that is added to. Unless a field says otherwise,
 * tensors may be fp32, fp16 or bf16; arithmetic is fp32 and results are rounded once, when stored.
 * An argument marked "optional" may be NULL.
 *
 * Model code calls OP(be, layernorm_backward, .din = &d, .dout = &e, ...);
 *
 * Every operation gives the same bits for the same arguments, device and thread count. On the CPU
 * neither the thread count nor the processor changes bits within a CPU level (kernels/cpu/level.h),
 * except in attention in bf16 (kernels/cpu/README.md) and in libraries: oneDNN may divide matmuls
 * by the thread count and the sizes of caches, and glibc's logarithms and powers differ on
 * processors with FMA. */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/adapter_args.h"
#include "kernels/decode_args.h"
#include "kernels/delta_rule_args.h"
#include "kernels/policy_args.h"
#include "kernels/preference_args.h"
#include "kernels/quantize_args.h"
#include "kernels/rounding.h"
#include "kernels/tensor.h"
#include "kernels/update_args.h"
#include "kernels/weight_format.h"

/* X(NAME), or S(NAME) for an operation with a second function on each backend, NAME_scratch. It is
 * called while planning, with the same arguments; it returns the bytes of scratch that NAME needs
 * (backend_workspace), and prepares NAME before step 0. */
#define OPERATIONS_BY_SCRATCH(X, S) \
    X(embedding_forward)            \
    S(embedding_backward)           \
    X(layernorm_forward)            \
    S(layernorm_backward)           \
    S(matmul)                       \
    X(gelu_forward)                 \
    S(gelu_backward)                \
    X(gated_forward)                \
    X(gated_backward)               \
    S(column_sums)                  \
    X(qk_norm_forward)              \
    S(qk_norm_backward)             \
    X(rope)                         \
    S(attention_forward)            \
    S(attention_decode)             \
    S(attention_backward)           \
    X(causal_convolution_forward)   \
    S(causal_convolution_backward)  \
    S(delta_rule_forward)           \
    S(delta_rule_backward)          \
    X(cross_entropy)                \
    X(distillation)                 \
    X(softcap)                      \
    X(cast)                         \
    X(dequantize)                   \
    S(quantize)                     \
    S(fake_quantize)                \
    X(dequantize_blocks)            \
    X(hadamard)                     \
    X(quantize_history)             \
    X(copy_last_columns)            \
    X(gather_rows)                  \
    X(dropout)                      \
    X(block_diagonal_forward)       \
    X(block_diagonal_backward)      \
    X(clear)                        \
    X(loss_sum)                     \
    X(policy)                       \
    X(preference)                   \
    X(gradient_squares)             \
    X(gradient_norm)                \
    X(update)                       \
    S(normalize)                    \
    X(weighted_sum)                 \
    X(loss_scale_update)

#define OPERATIONS(X) OPERATIONS_BY_SCRATCH(X, X)

struct backend;

/* Label of an operation's output, for observers (kernels/observer.h). Operations ignore it; the
 * caller defines its content. */
struct trace_label;

/* Largest absolute value of a tensor as stored (amax), in backend memory, for quantize. An
 * operation that writes the tensor can track it in the same pass: each field becomes the maximum of
 * its old value and the tensor's. The caller clears it before. */
struct amax {
    uint32_t largest;    /* largest finite magnitude as fp32 bits, ordered as the values are */
    uint32_t not_finite; /* 1 if there was an infinity or NaN, else 0 */
};

/* Values of a step that the host computes, in backend memory. Arguments of operations are the same
 * in every step, so that a recorded step can be repeated. */
struct step_inputs {
    double lr;
    int64_t step;            /* number of steps done before */
    struct rounding_key key; /* for moments in bf16 */
    float loss_weight;       /* 1 / (targets of the whole step that are not ignored) */
    int64_t first_row;       /* index of the batch's first row, of all rows of the run */
};

/* out[i] = token_scale * token_table[tokens[i]] + position_table[i % sequence_length], for N = B *
 * T rows; without a position table only the token's row. With a remainder the token table is split
 * master weights (kernels/rounding.h). */
struct embedding_forward_args {
    const struct tensor *out;            /* [N, C] */
    const int32_t *tokens;               /* [N], each in 0..V-1 */
    const struct tensor *token_table;    /* [V, C]; bf16 if token_remainder is given */
    const int16_t *token_remainder;      /* optional [V, C] */
    const struct tensor *position_table; /* optional [T or more, C] */
    const int32_t *positions;            /* optional [N]: rows of position_table. NULL: i % T */
    int64_t sequence_length;             /* T */
    float token_scale;                   /* factor of the token's row, usually 1 */
    const struct trace_label *label;     /* optional */
};

/* Gradients of both tables; rows are added in a fixed order. */
struct embedding_backward_args {
    const struct tensor *dtoken_table;    /* += [V, C] */
    const struct tensor *dposition_table; /* optional += [T or more, C] */
    const struct tensor *dout;            /* [N, C] */
    const int32_t *tokens;                /* [N] */
    const int32_t *positions;             /* optional [N], as in the forward pass */
    int64_t sequence_length;              /* T */
    float token_scale;                    /* as in the forward pass */
};

/* sum = in + residual; out = (sum - mean) * rstd * (weight + weight_offset) + bias, along rows.
 * Without residual, sum is in itself and is not written. Ba, Kiros, Hinton 2016. Without mean and
 * bias it is RMS norm, where rstd is computed with a mean of zero. Zhang, Sennrich 2019. */
struct layernorm_forward_args {
    const struct tensor *out;      /* [N, C] */
    const struct tensor *sum;      /* optional [N, C]; may be in or residual itself */
    float *mean;                   /* optional [N]; given exactly when bias is */
    float *rstd;                   /* [N], 1 / sqrt(mean of (sum - mean)^2 + epsilon) */
    const struct tensor *in;       /* [N, C] */
    const struct tensor *residual; /* optional [N, C]; given exactly when sum is */
    const struct tensor *weight;   /* [C] fp32 */
    const struct tensor *bias;     /* optional [C] fp32 */
    float weight_offset;           /* the factor is weight + weight_offset: 0, or 1 as in Gemma */
    struct amax *track_amax;       /* optional, of out */
    float epsilon;
    const struct trace_label *label; /* optional */
};

/* din = dresidual + (gradient of the layer norm for dout); din_lower is the same, rounded to the
 * dtype that the next matrix product reads. din may be dresidual or dout itself. */
struct layernorm_backward_args {
    const struct tensor *din;         /* [N, C] */
    const struct tensor *din_lower;   /* optional [N, C] */
    const struct tensor *dweight;     /* += [C] */
    const struct tensor *dbias;       /* optional += [C]; given exactly when mean is */
    const struct tensor *dout;        /* [N, C] */
    const struct tensor *in;          /* [N, C], the normalized tensor of the forward pass */
    const float *mean, *rstd;         /* [N]; mean optional */
    const struct tensor *weight;      /* [C] fp32 */
    float weight_offset;              /* as in the forward pass */
    const struct tensor *dresidual;   /* optional [N, C] */
    struct amax *track_amax;          /* optional, of din_lower, or of din without it */
    const struct tensor *column_sums; /* optional += [C], of the same tensor as stored: the gradient
                                         of the bias of the previous addition to the residual */
    const struct trace_label *label;  /* optional */
};

/* The last step of a matmul. A B + bias may be rounded to the dtype of out before it. */
enum matmul_epilogue {
    MATMUL_STORE, /* out = A B + bias */
    MATMUL_GELU,  /* pre_activation = A B + bias; out = gelu of the sum; the library chooses whether
                   * to round the sum first, except with 8-bit operands: rounded */
    MATMUL_DGELU  /* out = A B * gelu'(pre_activation) */
};

/* Blocks of an operand of codes, as fake_quantize writes them. */
struct matmul_blocks {
    struct tensor scales;          /* [R, S] codes of the scales */
    struct quantize_format format; /* format of the operand as stored */
};

/* out = A B + bias with fp32 accumulation, where A is a or its transpose, and B is b or its
 * transpose; then the epilogue. A GPU's library may round A B to 16 bits before it is added to an
 * out of 16 bits, or before the bias of a GELU. The dtypes of a and b may differ; the product is
 * then computed as if both were fp32. If one operand is quantized (kernels/dtype.h), both are, and
 * at most one is E5M2. With scales, which operands in bf16 and codes in blocks may have and other
 * quantized operands need, out = (A B) * (scale of a * scale of b) + bias; matmul_scales_sums has
 * to be true. Operands are in blocks only where backend_multiplies_blocks is true for their
 * formats. */
struct matmul_args {
    const struct tensor *out;               /* [M, N]; += if accumulate */
    const struct tensor *a;                 /* [M, K], or [K, M] if transpose_a */
    const struct tensor *b;                 /* [K, N], or [N, K] if transpose_b */
    const struct stored_matrices *b_stored; /* optional: their values, rounded to its dtype, are
                                             * those of b [N, K], which is not read; K is even and M
                                             * at most the device's stored_rows */
    const struct tensor *bias;              /* optional [N], same dtype as b or fp32 */
    const struct tensor *pre_activation;    /* [M, N], given exactly with MATMUL_GELU, which writes
                                             * it, and MATMUL_DGELU, which reads it */
    const struct tensor *column_sums; /* optional += [N], of out as stored, with MATMUL_DGELU only:
                                       * the gradient of the bias before the gelu */
    const struct tensor *a_scales;    /* fp32, both or neither: as quantize or fake_quantize writes
                                       * them for a, or for b; of codes that are not in blocks
                                       * aligned to MATMUL_SCALE_ALIGNMENT */
    const struct tensor *b_scales;
    const struct matmul_blocks *a_blocks; /* both or neither: a and b are codes in blocks */
    const struct matmul_blocks *b_blocks;
    struct amax *track_amax; /* optional, of out; only with scales and pre_activation */
    enum matmul_epilogue epilogue;
    bool transpose_a, transpose_b, accumulate;
    bool fast_accumulation; /* 8-bit operands on tensor cores: faster sums with fewer bits */
    const struct trace_label *label; /* optional */
};

/* On tensor cores 8-bit operands are a [M, K] and b [N, K] in memory, and all sizes are multiples
 * of this. Other operands are transposed first, or multiplied as bf16. */
enum { EIGHT_BIT_UNIT = 16 };

/* Alignment of an operand's scales, in bytes. With less cuBLASLt refuses to run a matmul that its
 * heuristics accepted. */
enum { MATMUL_SCALE_ALIGNMENT = 16 };

/* True if the operands have scales. */
static inline bool matmul_scales(const struct matmul_args *args) {
    return args->a_scales != NULL;
}

/* True if scales can multiply sums: A has one, or one for each row, B one, or one for each column.
 * True without scales. */
static inline bool matmul_scales_sums(const struct matmul_args *args) {
    if (!matmul_scales(args)) return true;
    const struct tensor *a = args->a_scales, *b = args->b_scales;
    int64_t of_rows = args->transpose_a ? tensor_columns(a) : tensor_rows(a);
    int64_t of_columns = args->transpose_b ? tensor_rows(b) : tensor_columns(b);
    return tensor_count(a) == of_rows && (of_rows == 1 || of_rows == tensor_rows(args->out)) &&
           tensor_count(b) == of_columns &&
           (of_columns == 1 || of_columns == tensor_columns(args->out));
}

/* Returns the tensor that holds A B + bias, before an activation. */
static inline const struct tensor *matmul_sum(const struct matmul_args *args) {
    return args->epilogue == MATMUL_GELU ? args->pre_activation : args->out;
}

/* Asserts what holds for the epilogue of every matmul. */
static inline void matmul_check_epilogue(const struct matmul_args *args) {
    assert(!args->pre_activation == (args->epilogue == MATMUL_STORE));
    assert(!(args->accumulate && args->pre_activation));
    assert(!args->column_sums || args->epilogue == MATMUL_DGELU);
    assert(!args->track_amax || (matmul_scales(args) && args->pre_activation));
}

/* gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))). Hendrycks, Gimpel 2016. */
struct gelu_forward_args {
    const struct tensor *out; /* same count as in */
    const struct tensor *in;
    struct amax *track_amax;         /* optional, of out */
    const struct trace_label *label; /* optional */
    bool relu2;                      /* max(x, 0)^2 (So et al. 2021) in place of gelu(x) */
};

struct gelu_backward_args {
    const struct tensor *din; /* dout * gelu'(in); may be dout itself */
    const struct tensor *dout;
    const struct tensor *in;
    struct amax *track_amax;          /* optional, of din */
    const struct tensor *column_sums; /* optional += [C], of din [N, C] as stored */
    const struct trace_label *label;  /* optional */
    bool relu2;                       /* as in the forward pass */
};

/* silu(x) = x sigmoid(x), the gelu above, or sigmoid(x) = 1 / (1 + exp(-x)). */
enum gate_function { GATE_SILU, GATE_GELU, GATE_SIGMOID };

/* out = f(gate) * up, where f is the gate function: a gated linear unit. A row of gate_up is gate |
 * up; if up is a tensor of its own, a gate that begins at gate_column. Shazeer 2020. */
struct gated_forward_args {
    const struct tensor *out;        /* [N, I] */
    const struct tensor *gate_up;    /* [N, 2 I]; with up [N, J] */
    const struct tensor *up;         /* optional [N, I], the same dtype */
    int64_t gate_column;             /* only with up */
    enum gate_function gate;         /* f */
    struct amax *track_amax;         /* optional, of out */
    const struct trace_label *label; /* optional */
};

struct gated_backward_args {
    const struct tensor *dgate_up;   /* as gate_up, which it may be; other columns stay */
    const struct tensor *dup;        /* [N, I], given exactly with up; may be dout or up itself */
    const struct tensor *dout;       /* [N, I] */
    const struct tensor *gate_up;    /* [N, 2 I]; with up [N, J] */
    const struct tensor *up;         /* optional [N, I], as in the forward pass */
    int64_t gate_column;             /* the same */
    enum gate_function gate;         /* f */
    struct amax *track_amax;         /* optional, of dgate_up, and of dup */
    const struct trace_label *label; /* optional */
};

/* The gradient of a bias, if no other operation computes it in the same pass. */
struct column_sums_args {
    const struct tensor *sums; /* += [C] */
    const struct tensor *in;   /* [N, C] */
};

/* Rotates the first D columns of the first `heads` heads of each row, in place. In row i, at
 * position t = i % sequence_length, or positions[i], columns j and j + D/2 of a head become
 *
 *     x[j] cos[t, j] - x[j + D/2] sin[t, j]  and  x[j + D/2] cos[t, j] + x[j] sin[t, j].
 *
 * Su et al. 2021, with the pairs of Llama. inverse: rotates by the opposite angles, which is the
 * gradient. */
struct rope_args {
    const struct tensor *inout;        /* [N, at least heads head_dim] */
    const struct tensor *angles;       /* [T or more, D] fp32: cosines, then sines, of D/2 angles */
    const int32_t *positions;          /* optional [N], in backend memory: rows of angles */
    const struct tensor *query_angles; /* optional: angles of the first query_heads heads */
    int64_t sequence_length;           /* T */
    int heads, query_heads;
    int head_dim; /* size of a head, of which columns from D on stay; 0: D */
    bool inverse;
    bool neighbours; /* pairs are columns 2 j and 2 j + 1 */
};

/* RMS norm of each head of q and k, in place: the first (H + H_kv) groups of D columns of each row
 * are each divided by the root of their mean square + epsilon, and multiplied by the weight of
 * queries or of keys, plus weight_offset. Henry et al. 2020, as in Qwen3. With angles the result is
 * rotated as by rope, without rounding in between. With H_kv = 0 these are heads of any kind, and
 * k_weight is q_weight. */
struct qk_norm_forward_args {
    const struct tensor *inout; /* [N, at least (H + H_kv) D] */
    const struct tensor *raw;   /* [N, (H + H_kv) D], written: the input of the norm; same dtype */
    const struct tensor *q_weight, *k_weight; /* [D] fp32 */
    const struct tensor *angles;              /* optional, as for rope; D is then even */
    const int32_t *positions;                 /* optional, as for rope */
    int64_t sequence_length;                  /* T */
    int heads;                                /* H */
    int kv_heads;                             /* H_kv */
    float epsilon;
    float weight_offset;             /* as in layernorm_forward */
    const struct trace_label *label; /* optional */
};

/* Replaces the gradient of the result by the gradient of the input, in place. */
struct qk_norm_backward_args {
    const struct tensor *dinout;                /* [N, at least (H + H_kv) D] */
    const struct tensor *dq_weight, *dk_weight; /* += [D]; dk_weight: NULL if H_kv is 0 */
    const struct tensor *raw;                   /* [N, (H + H_kv) D] */
    const struct tensor *q_weight, *k_weight;   /* [D] fp32 */
    const struct tensor *angles;                /* optional, as for rope */
    int64_t sequence_length;                    /* T */
    int heads;                                  /* H */
    int kv_heads;                               /* H_kv */
    float epsilon;
    float weight_offset; /* as in the forward pass */
};

/* Causal self-attention, softmax in fp32; the T x T scores are never stored. A row of qkv has
 * H heads of D values of q, then H_kv of k, then H_kv of v. Query head h reads the keys and values
 * of head h / (H / H_kv). Shazeer 2019; Ainslie et al. 2023. A score is x = scale * (q . k) or,
 * with a soft cap c, c tanh(x / c), as in Gemma 2; keys are masked after it. */
struct attention_forward_args {
    const struct tensor *out;  /* [B, T, H D] */
    float *lse;                /* [B, H, T]: log of the sum of exponentials of the scores */
    const struct tensor *qkv;  /* [B, T, (H + 2 H_kv) D] */
    const int32_t *first_keys; /* optional [B, T], in backend memory: row t of a sequence attends to
                                * keys first_keys[t]..t; each is in 0..t and at least the one
                                * before. NULL: all are 0 */
    int64_t window;            /* the first key is at least t - window + 1; 0: no window */
    double scale;              /* of the scores, usually 1 / sqrt(D) */
    float softcap;             /* c; 0: none */
    struct amax *track_amax;   /* optional, of out */
    int heads;                 /* H */
    int kv_heads;              /* H_kv: H is a multiple of it */
    const struct trace_label *label; /* optional */
};

/* Gradients of a key and a value are sums over the query heads that read them, added in a fixed
 * order. */
struct attention_backward_args {
    const struct tensor *dqkv;        /* [B, T, (H + 2 H_kv) D] */
    const struct tensor *dout;        /* [B, T, H D] */
    const struct tensor *qkv;         /* [B, T, (H + 2 H_kv) D] */
    const struct tensor *out;         /* [B, T, H D], of the forward pass */
    const float *lse;                 /* [B, H, T] */
    const int32_t *first_keys;        /* optional [B, T], as in the forward pass */
    int64_t window;                   /* the same */
    double scale;                     /* the same */
    float softcap;                    /* the same */
    const struct tensor *column_sums; /* optional += [(H + 2 H_kv) D], of dqkv as stored */
    struct amax *track_amax;          /* optional, of dqkv */
    int heads;                        /* H */
    int kv_heads;                     /* H_kv */
    const struct trace_label *label;  /* optional */
};

/* losses[i] = -log softmax(logits[i, 0..vocab_size-1])[targets[i]]. With a loss_scale, logits
 * become their own gradient times (*loss_scale * loss_weight * weights[i]), and 0 in the padding
 * columns. If the target is negative it is ignored: the loss and the row of the gradient are 0, for
 * any logits. */
struct cross_entropy_args {
    float *losses;                    /* [N] */
    const struct tensor *logits;      /* [N, V padded] in, and out if loss_scale is given */
    const int32_t *targets;           /* [N], each in 0..vocab_size-1, or negative: ignored */
    const float *loss_scale;          /* optional, backend memory */
    const struct step_inputs *inputs; /* given with loss_scale: loss_weight is read */
    const float *weights;             /* optional [N], with loss_scale; NULL: all are 1 */
    const int32_t *places; /* optional [N]: losses, targets and weights of row i are in place
                            * places[i]; negative: ignored, and no loss is written */
    int64_t vocab_size;
    float softcap; /* the logits are results of softcap with this cap, and the gradient is that of
                    * its input; 0: none */
    const struct trace_label *label; /* optional */
};

/* Cross entropy and the divergence from a teacher (Hinton et al. 2015). With x the logits of row i
 * and q the softmax of its teacher_logits / T over their K tokens, losses[i] = alpha T^2 sum over K
 * of q log(q / softmax(x / T)) + (1 - alpha) cross entropy where softmax(x / T) covers the
 * vocabulary. The gradient, the padding and ignored rows are as in cross_entropy; the teacher's
 * values of ignored rows are not read. */
enum { DISTILLATION_TOP_MAX = 1024 };
struct distillation_args {
    float *losses;                       /* [N] */
    const struct tensor *logits;         /* [N, V padded] in, and out if loss_scale is given */
    const int32_t *targets;              /* [N], each in 0..vocab_size-1, or negative: ignored */
    const int32_t *teacher_tokens;       /* [N, K], in 0..vocab_size-1, different in a row */
    const struct tensor *teacher_logits; /* [N, K] in fp16, up to a constant of each row. -inf: the
                                          * probability is 0; one at least is finite */
    float alpha, temperature;            /* 0..1; T > 0 */
    const float *loss_scale;             /* optional, backend memory */
    const struct step_inputs *inputs;    /* given with loss_scale: loss_weight is read */
    const int32_t *places;               /* as in cross_entropy, also of the teacher's rows */
    int64_t vocab_size;
    float softcap;                   /* as in cross_entropy */
    const struct trace_label *label; /* optional */
};

/* x becomes cap * tanh(x / cap), in place: small values hardly change, and none exceeds the cap.
 * Bello et al. 2016, as in Gemma 2. */
struct softcap_args {
    const struct tensor *inout;
    float cap;                       /* > 0 */
    const struct trace_label *label; /* optional */
};

/* out = in, rounded to out's dtype; same count. With `masters`, in is master weights, rounded as in
 * kernels/rounding.h. */
struct cast_args {
    const struct tensor *out, *in;
    bool masters;
    struct amax *track_amax;         /* optional, of out; not with masters */
    const struct trace_label *label; /* optional */
};

/* Row i of out is row rows[i] of in, or 0 if that is negative. */
struct gather_rows_args {
    const struct tensor *out, *in;   /* [N, C], [M, C], same dtype */
    const int32_t *rows;             /* [N], each less than M */
    const struct trace_label *label; /* optional */
};

/* Sets bytes to zero. */
struct clear_args {
    void *data;
    size_t bytes;
};

/* Sums over a step besides its loss, as its objective defines them (model/task/objective.h). */
struct step_sums {
    float values[16];
};

/* State that determines the update of a step, in backend memory so that a GPU never waits for the
 * host. */
struct step_state {
    float loss_scale;       /* factor of this step's gradients; 1 unless fp16 */
    float loss;             /* mean loss of the step's tokens */
    float gradient_norm;    /* norm of the unscaled gradients, before clipping */
    float clip_factor;      /* min(1, grad_clip / (norm + 1e-6)), 1 when clipping is off */
    int32_t found_inf;      /* 1 if an unscaled gradient is not finite: the step is skipped */
    int32_t growth_tracker; /* finite steps since the scale last changed */
    int32_t updates;        /* optimizer steps taken: Adam's t for the bias correction */
    int32_t skipped;        /* steps skipped since the start of training */
    int32_t skipped_in_row; /* steps skipped since the last update */
    int32_t at_floor;       /* the same, but only steps whose scale was already at min_scale */
    int32_t quantized_not_finite; /* tensors quantized in this step with infinity or NaN */
    int32_t quantized_zero;       /* tensors quantized in this step of zeros only */
    struct step_sums sums;        /* of the step */
};

/* *total += loss_weight * sum of losses, in fixed order. */
struct loss_sum_args {
    float *total;
    const float *losses; /* [count] */
    int64_t count;
    const struct step_inputs *inputs; /* optional: loss_weight is read, 1 without */
};

/* squares[i] = sum of squares of the i-th chunk of the unscaled gradients, accurate as if added in
 * fp64. The inverse scale is computed in fp64 and rounded to fp32. A sum is infinite or NaN if and
 * only if an unscaled gradient is; PyTorch tests before unscaling. */
struct gradient_squares_args {
    double *squares;                /* [backend_squares(be, gradients)] */
    const struct tensor *gradients; /* [P], scaled */
    const struct step_state *state; /* loss_scale is read */
};

/* Sets gradient_norm, found_inf and clip_factor of state from all squares, added in fixed order. A
 * norm beyond fp32 counts as infinite too: it would clip every gradient to zero. */
struct gradient_norm_args {
    struct step_state *state;
    const double *squares; /* [count] */
    int64_t count;
    float grad_clip; /* 0: no clipping */
};

/* Ends a step. If found_inf: skipped and skipped_in_row += 1, tracker = 0 and, if dynamic,
 * at_floor += 1 if the scale is min_scale already, and scale = max(scale * backoff_factor,
 * min_scale). Else updates += 1, skipped_in_row = at_floor = 0 and, if dynamic, tracker += 1; when
 * it reaches growth_interval the scale grows (if still finite) and the tracker restarts. */
struct loss_scale_update_args {
    struct step_state *state;
    bool dynamic;
    float growth_factor, backoff_factor, min_scale;
    int32_t growth_interval;
};

struct operations {
#define X(name) void (*name)(struct backend * be, const struct name##_args *args);
    OPERATIONS(X)
#undef X
};

/* Arguments of a function NAME that takes a struct NAME_args. */
#define ARGS(name, ...)   (&(const struct name##_args){__VA_ARGS__})
#define OP(be, name, ...) (be)->op->name((be), ARGS(name, __VA_ARGS__))
