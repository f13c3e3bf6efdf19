/* Operations of adapters, of frozen weights and on parts of rows: their arguments, as in
 * kernels/kernels.h, which includes this. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/decode_args.h"
#include "kernels/rounding.h"
#include "kernels/tensor.h"
#include "kernels/weight_format.h"

struct amax;
struct step_inputs;
struct trace_label;

/* out = the values of a stored matrix (kernels/weight_format.h), rounded to out's dtype. out has
 * fewer than 2^32 elements. */
struct dequantize_args {
    const struct tensor *out; /* [N, C] fp32, fp16 or bf16 */
    const struct quantized_weight *in;
};

/* out = 0 with the given probability, else in / (1 - probability), for each element (Srivastava et
 * al. 2014). What is dropped is a function of the key, the row of the run and the column alone
 * (kernels/dropout.h). */
struct dropout_args {
    const struct tensor *out;         /* [N, C]; += with accumulate; may be in without */
    const struct tensor *in;          /* [N, C] */
    const struct step_inputs *inputs; /* first_row is read */
    struct rounding_key key;          /* one for each use of dropout in the model */
    double probability;               /* below 1 */
    double scale;                     /* another factor of what is kept; 0 stands for 1 */
    bool accumulate;
    struct amax *track_amax;         /* optional, of out, without accumulate only */
    const struct trace_label *label; /* optional */
};

/* Part of a block-diagonal matrix: rows first_row.. of the matrix, and as many columns as the part
 * has, after those of the parts before. */
struct diagonal_block {
    struct tensor part; /* [rows, columns] fp32 in the forward pass */
    int64_t first_row;
};
enum { DIAGONAL_BLOCKS_MAX = 4 };

/* out = scale * the matrix that has the parts at their places, and zeros elsewhere. One matmul then
 * serves linear layers that share their input, such as the adapters of q, k and v. */
struct block_diagonal_forward_args {
    const struct tensor *out; /* [M, all columns of the parts] */
    struct diagonal_block blocks[DIAGONAL_BLOCKS_MAX];
    int count;
    float scale;
};

/* Gradient of each part: scale * its place in dout; += with accumulate, else =. */
struct block_diagonal_backward_args {
    struct diagonal_block dblocks[DIAGONAL_BLOCKS_MAX];
    const struct tensor *dout; /* [M, all columns of the parts] fp32 */
    int count;
    float scale;
    bool accumulate;
};

/* Each row of out = the last C columns of that row of in. With keys, row i of in is stored at the
 * row of the last key of keys[i]; several rows may share one if they are equal. */
struct copy_last_columns_args {
    const struct tensor *out;       /* [N, C], or [R, C] with keys */
    const struct tensor *in;        /* [N, C or more], same dtype */
    const struct decode_keys *keys; /* optional: [N], in backend memory */
    int64_t stride;                 /* as in struct attention_decode_args */
};
