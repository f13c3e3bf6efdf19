/* The linear layers of a block, forward and backward. In fp8 and other quantized precisions their
 * operands are quantized first (model/core/quantization.h). Adapters add to either kind of matmul.
 */
#pragma once

#include "model/pass/pass.h"

/* out = in weight + bias, or its MATMUL_GELU. */
struct linear_forward_args {
    enum autocast_site site; /* the linear layer */
    int64_t layer;           /* index of the block */
    const struct tensor *out, *in, *weight;
    const struct tensor *bias; /* rank 0 if the model has none */
    enum matmul_epilogue epilogue;
    const struct tensor *pre_activation; /* with MATMUL_GELU: in weight + bias, written */
    struct amax *track_amax; /* optional, of out, with MATMUL_GELU and quantized operands only */
    const struct trace_label *label;
};

/* Computes dweight and dbias, then din. */
struct linear_backward_args {
    enum autocast_site site;
    int64_t layer;
    const struct tensor *dweight; /* replaced if pass->first, else += */
    const struct tensor *dbias;   /* optional +=; NULL: the operation that wrote dout computed it */
    const struct tensor *din;     /* times gelu'(pre_activation) with MATMUL_DGELU */
    const struct tensor *dout, *in, *weight; /* din may be written over in */
    enum matmul_epilogue epilogue;
    const struct tensor *pre_activation; /* with MATMUL_DGELU */
    const struct tensor *din_sums; /* optional += column sums of din, with MATMUL_DGELU only */
    struct amax *track_amax; /* optional, of din, with MATMUL_DGELU and quantized operands only */
    const struct trace_label *label; /* label of din */
};

void linear_forward(const struct pass *pass, const struct linear_forward_args *args);
void linear_backward(const struct pass *pass, const struct linear_backward_args *args);
