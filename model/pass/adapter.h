/* Adapters of linear layers (LoRA), forward and backward; see model/architecture/adapters.h.
 *
 * The adapters of a site run as one: with A [R, inputs], the A of all its targets, and the
 * block-diagonal B [outputs, R], which includes the scale,
 *
 *     h = in A',  out += h B'                    forward
 *     dB = dout' h,  dh = dout B,  dA = dh' in,  din += dh A    backward
 *
 * With dropout, in is replaced by dropout(in); the adapters of a site share what is dropped.
 *
 * The sums go into out and din by the matmul itself. h is computed again in the backward pass,
 * which costs less than 1 % of the layer. A and B are rounded from fp32 to the site's dtype when
 * they are read, as autocast does. */
#pragma once

#include "model/pass/pass.h"

/* A linear layer's tensors. Both passes take in [N, inputs]; forward adds to out [N, outputs]. */
struct adapter_args {
    enum autocast_site site;
    int64_t layer;
    const struct tensor *out; /* forward: += */
    const struct tensor *in, *dout;
    const struct tensor *din;        /* adapter_input_backward: += */
    const struct trace_label *label; /* optional, of out or din */
};

void adapter_forward(const struct pass *pass, const struct adapter_args *args);

/* Computes the gradients of A and B, replaced if pass->first and else added to, and dh. */
void adapter_weight_backward(const struct pass *pass, const struct adapter_args *args);

/* Adds to din, after adapter_weight_backward of the same site and layer, whose A and dh it reads.
 */
void adapter_input_backward(const struct pass *pass, const struct adapter_args *args);
