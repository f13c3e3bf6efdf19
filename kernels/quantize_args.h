/* Operations of quantized operands: their arguments, as in kernels/kernels.h, which includes this.
 */
#pragma once

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>

#include "kernels/quantize_format.h"
#include "kernels/rounding.h"
#include "kernels/tensor.h"

struct amax;
struct step_inputs;
struct step_state;

/* Statistics of the tensors that quantize has processed since this was cleared, in backend
 * memory. */
struct quantize_record {
    float amax;         /* largest finite magnitude */
    int32_t not_finite; /* tensors with a value that is not finite */
    int32_t zero;       /* tensors of zeros only */
};

/* out = in * s, rounded to out's dtype (f8_from_f32), where s = max / amax: the dtype's largest
 * value over the largest finite magnitude of the block. If amax is 0, s = 1; s is at most 2^126,
 * and then rounded by scale_rounding. in * s is rounded to fp32 first. scales = 1 / s, the factors
 * of matmul.
 *
 * The shape of scales gives the blocks (kernels/quantize_format.h). CUDA has those of a
 * tensor, 1 x n and m x 1, the CPU all. transposed has the same values in the order in which
 * tensor cores read an operand of a matmul that reduces over rows. */
struct quantize_args {
    const struct tensor *out;        /* [N, C], quantized; optional if transposed is given */
    const struct tensor *transposed; /* optional [C, N], with one scale or one for each column */
    const struct tensor *scales;     /* fp32 [1, 1], [N, 1], [1, C], or [R, S] that divide N, C */
    const struct tensor *in;         /* [N, C] */
    const float *amax;       /* optional [1], with one scale only: replaces in's own amax if > 0 */
    struct amax *track_amax; /* optional, of in, with one scale only: input if found, else updated;
                                merged into record */
    struct quantize_record *record; /* optional, of in: updated */
    enum scale_rounding scale_rounding;
    bool found; /* track_amax already holds the amax of in, which saves a pass over in */
};

/* Returns the tensor that has the dtype of the result. */
static inline const struct tensor *quantize_result(const struct quantize_args *args) {
    return args->out ? args->out : args->transposed;
}

/* Asserts what holds on every backend. */
static inline void quantize_check(const struct quantize_args *args) {
    const struct tensor *in = args->in, *scales = args->scales;
    const int64_t count = tensor_count(in);
    assert(dtype_is_f8(quantize_result(args)->dtype) && scales->dtype == DTYPE_F32);
    assert(!args->out || tensor_count(args->out) == count);
    assert(!args->transposed || tensor_count(args->transposed) == count);
    assert(tensor_rows(in) % tensor_rows(scales) == 0);
    assert(tensor_columns(in) % tensor_columns(scales) == 0);
    assert(!args->transposed ||
           (tensor_rows(scales) == 1 &&
            (tensor_columns(scales) == 1 || tensor_columns(scales) == tensor_columns(in))));
    assert(!(args->amax || args->track_amax) || tensor_count(scales) == 1);
    assert(!args->found || args->track_amax);
    (void)in, (void)scales, (void)count;
}

/* out = in as rounded to a format of blocks (kernels/block_scale.h): its elements times the scales
 * of their blocks, exact in bf16, as operand of a matmul in bf16; or codes of elements and, apart,
 * of scales, from which dequantize_blocks makes the same. The blocks at the right and lower edges
 * may be smaller. A block with a value that is not finite becomes NaN. Draws of stochastic rounding
 * depend on the row of the run and the column. */
struct fake_quantize_args {
    const struct tensor *out; /* [N, C] bf16, may be in; or the element's dtype: codes, with an even
                                 C if they have 4 bits */
    const struct tensor *block_scales; /* given exactly for codes: [R, S], of the scale's dtype, as
                                          quantize_format_scales */
    const struct tensor *scales;    /* fp32 [1, 1], of a format with a tensor scale: that, which is
                                       not part of out, a factor of matmul */
    const struct tensor *in;        /* [N, C] */
    struct quantize_format format;  /* sizes of a block are powers of two up to 128 */
    struct amax *track_amax;        /* optional, with scales only: as in quantize */
    struct quantize_record *record; /* optional, of in: updated */
    const struct step_inputs *inputs; /* given with stochastic rounding: first_row is read */
    struct rounding_key key;          /* key of stochastic rounding */
    bool found;                       /* as in quantize */
};

/* Asserts what holds on every backend. */
static inline void fake_quantize_check(const struct fake_quantize_args *args) {
    const struct quantize_format *format = &args->format;
    assert(tensor_count(args->out) == tensor_count(args->in));
    assert(args->out->dtype == (args->block_scales ? format->element : DTYPE_BF16));
    assert(args->out->dtype != DTYPE_E2M1 || tensor_columns(args->out) % 2 == 0);
    assert(quantize_format_in_blocks(format));
    assert(format->rows > 0 && format->rows <= 128 && !(format->rows & (format->rows - 1)));
    assert(format->columns > 0 && format->columns <= 128 &&
           !(format->columns & (format->columns - 1)));
    assert(quantize_format_has_tensor_scale(format) == (args->scales != NULL));
    assert((!args->track_amax || args->scales) && (!args->found || args->track_amax));
    (void)format;
}

/* out = the values of codes that fake_quantize has written. */
struct dequantize_blocks_args {
    const struct tensor *out;          /* [N, C] bf16 */
    const struct tensor *codes;        /* [N, C] */
    const struct tensor *block_scales; /* [R, S] */
    struct quantize_format format;
};

/* out = in with each 16 rows multiplied by H diag(signs) / 4, H the 16 x 16 Hadamard matrix of
 * Sylvester, H[i][j] = (-1)^(number of bits set in i & j). It is orthogonal, so that a matmul that
 * reduces over the rows of two such operands has the product of the originals, but large values
 * are spread over 16 elements. Rows after the last whole 16 are copied. */
struct hadamard_args {
    const struct tensor *out; /* [N, C] bf16 */
    const struct tensor *in;  /* [N, C] */
    uint32_t signs;           /* bit k: element k of each 16 is negated first */
    struct amax *track_amax;  /* optional, of out */
};

/* Ends a step of quantizations: sums of all records go into state. With a history, the largest amax
 * of each tensor goes into its row step % length, and amax becomes the largest of the whole
 * history, times margin. */
struct quantize_history_args {
    struct step_state *state;              /* quantized_not_finite and quantized_zero are set */
    float *amax;                           /* [count]; NULL without a history */
    float *history;                        /* [length, count] */
    const struct quantize_record *records; /* [ranks, each], of which count are read */
    const struct step_inputs *inputs;      /* given with a history: step is read */
    int64_t ranks, each, count, length;
    float margin;
};
