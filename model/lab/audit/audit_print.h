/* What an audit found: on the terminal, as a page and as JSON. */
#pragma once

#include <stdio.h>

#include "model/lab/audit/advice.h"

/* Tables with the worst layer of each kind, then the advice, within 80 columns. */
void audit_print_text(FILE *out, const struct audit *audit, const struct advice *advice);

/* audit.html: every layer, and the histograms of exponents (the picture of Micikevicius et al.
 * 2018). */
void audit_print_html(FILE *out, const struct audit *audit, const struct advice *advice);

/* Prints audit.json: all that an audit found, every layer.
 *
 *     {
 *       "config", "from", "step", "repetitions", "micro_batch_size", "seq_len", "device",
 *       "loss_scale": in force, "loss_scale_of_run": whether an fp16 run has it at "step",
 *           else it is loss_scale.init_scale,
 *       "gradient_noise": of a micro-batch, relative to the mean gradient,
 *       "loss": {"fp32", "bf16", "fp16"},
 *       "formats": {"fp16": {"usable", "fit", "gradient_error", "loss_scale": of its pass,
 *                            "given", "needed", "advised": words of autocast.float32,
 *                            "predicted_scale", "safe_scale": of fp16, exponents of two,
 *                            "trials": {"qkv": {"gradient_error", "removes"}, ...}}, ...},
 *       "tensors": [{"name": "layer 0 d(qkv)", "tensor": "d(qkv)", "layer": null for the whole
 *                    model, "gradient": bool, "stored": {"fp16": "fp16" or "fp32", ...},
 *                    "error": {"bf16", "fp16"}, and the figures of values below}, ...],
 *       "parameters": [{"name", "error": {...}, figures of the gradient,
 *                       "weights": {figures of the weights},
 *                       "update": {"changed", "lost": {"bf16", "fp16"},
 *                                  "decibel": {"bf16", "fp16"}}}, ...],
 *       "update": {"step", "lr", "typical", the same figures of all},
 *       "advice": {"format", "tolerance", "texts": [...], "configs": {"fp16": {...}, ...}}
 *     }
 *
 * Figures of values, as they are in fp32 (nothing is multiplied by a loss scale): "values",
 * "zeros", "infinite", "largest", "exponents": {"first": e, "counts": [...]}, where counts[i]
 * values have 2^(e+i) <= |v| < 2^(e+i+1); and what fp16 would make of them, as shares of what is
 * neither zero nor infinite, at scale 1 and, for gradients, at the smallest power of two that is
 * not below the scale in force: "unscaled" and "scaled": {"zero", "subnormal", "room"}. Shares and
 * errors are parts of 1; null is infinite. Prints nothing but an error
 * into `out` (ferror) when there is no memory. */
void audit_print_json(FILE *out, const struct audit *audit, const struct advice *advice);
