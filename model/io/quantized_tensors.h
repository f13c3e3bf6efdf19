/* Weights that other programs stored in fewer bits, read as if their files held fp32. The
 * quantization_config of config.json names the format:
 *
 *     quant_method         tensors of a layer                       an element
 *     fp8, mxfp8           weight F8_E4M3, weight_scale_inv         code * scale
 *     fbgemm_fp8           weight F8_E4M3, weight_scale             code * scale
 *     compressed-tensors   weight F8_E4M3 or I8, weight_scale       code * scale, rounded to the
 *                                                                   dtype of the scales
 *                          weight_packed U8, weight_scale F8_E4M3,  code * (scale / global scale),
 *                          weight_global_scale (NVFP4)              rounded to bf16
 *                          weight_packed U8, weight_scale U8        code * 2^(scale - 127)
 *                          (MXFP4)
 *     bitsandbytes         weight U8, weight.absmax, quant_map,     map[code] * absmax, rounded to
 *                          quant_state, nested_* (nf4, fp4)         the dtype in quant_state
 *                          weight I8, SCB                           code * SCB / 127
 *
 * These are the bits of the dequantization of transformers, compressed-tensors and bitsandbytes.
 * Scales are of a tensor, of rows, or of blocks, which may be cut off at the edges; they are F32,
 * F16, BF16, or exponents in U8 or F8_E8M0. Only tensors decide which layers are quantized, so the
 * lists of modules that are not need not be read. Scales of activations are left out: training
 * chooses its own. */
#pragma once

#include <stdint.h>

#include "data/util/error.h"
#include "model/io/tensor_files.h"

struct cJSON;

/* Fails if the model of a config.json is quantized in a way that cannot be read; the message says
 * how to convert it. root: the file's object. */
int quantization_check(const struct cJSON *root, const char *where, struct error *error);

/* Replaces the tensors of quantized layers among files->tensors, as DIRECTORY/config.json says, by
 * F32 weights with their usual names. Fails as above, and if scales are missing, without a weight,
 * or of a shape that does not fit. After a failure the files are open as before. */
int quantized_tensors_open(struct tensor_files *files, const char *directory, struct error *error);

/* Computes elements first .. first + count - 1 of a quantized weight. Thread-safe. Fails on a scale
 * that is not finite, and like safetensors_read. */
int quantized_tensor_widen(float *values, const struct quantized_tensor *tensor, int64_t first,
                           int64_t count, struct error *error);

/* Reads the scales of blocks of `block` consecutive elements, [count], with which a weight is
 * stored in E4M3 with the codes of its file. Returns RESULT_NONE if its codes are others, or if
 * such blocks have no scale each: a block of the file spans rows, or its end is none of theirs. */
int quantized_tensor_scales(float *scales, const struct quantized_tensor *tensor, int64_t block,
                            int64_t count, struct error *error);
