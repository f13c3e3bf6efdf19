/* Fixtures of whole models (test/golden/fixtures.md), and how far a run may be from them. */
#pragma once

#include <stddef.h>

#include "model/config/config.h"
#include "test/model/core/golden_model.h"

/* How far a precision may be from PyTorch's run of the same precision.
 *
 * fp32: both sum in their own order, over 16 to 128 terms: some units of 2^-24 = 6e-8.
 * 16 bit: both round every activation to the same dtype, but not at the same place in every sum, so
 * an activation that PyTorch rounds up we may round down; PyTorch also rounds weight gradients to
 * 16 bit and ours are kept in fp32. One unit of bf16 is 2^-8, of fp16 2^-11; the bounds are a few
 * units for single tensors, less for means over tokens, where roundings average out. Adam divides
 * by the size of a gradient, so the relative error of small ones shows in full in the final
 * weights. The gradient of qwen2's biases of keys is small for its terms: of a bias softmax sees
 * only what the rotation makes of it. transformers rounds what Qwen3's heads are normalized to
 * before the weight, where ours are rounded after the rotation only; of their weights' gradients
 * the terms cancel more. It rounds Gemma 2's scores and logits three times on their way through the
 * caps, ours once, and the caps make all logits small. OLMo 3's norms after branches keep what is
 * rounded in a branch as large as it is: a loss was 7e-4 off in fp16, and 8 times that in bf16. A
 * loss of 4 has units of 4.8e-7; short documents were 5 of them off. The order of sums is another
 * with every level of instructions, ours and oneDNN's: the bounds leave at least a third beyond the
 * largest difference that was seen with any of them. Adapters: there are ten times as many logits,
 * whose largest difference is larger; and PEFT rounds an adapter's product, the scaled product and
 * its sum with the layer's, where ours is rounded when it is added. fp8: the reference rounds where
 * we round, and sums of products of 8-bit values are exact, so that logits and first gradients are
 * equal to 2e-7, until something near a tie is rounded to the other side: that is a sixteenth, and
 * moves scales and with them everything. Perturbing the reference's weights by 1e-5 of themselves
 * does it too, and moves logits by up to 0.075: hence the bounds, and beside them that most recipes
 * are equal to the reference. In 4 bits a value near a tie moves by up to a third of itself. Muon's
 * iteration in bf16 rounds each of 15 products to 2^-9, and their sums have another order. Tensor
 * cores add 8-bit products with 13 bits, so that nothing is equal there; the bounds hold. A Gated
 * DeltaNet's norm divides by what may be small, and PyTorch in bf16 rounds the convolution before
 * its SiLU, beta and the norm's factors, which ours does not store: its losses are 5e-3 from those
 * in fp64. One element of Phi-3's first gradients is 7e-8, rounding that Adam makes a step of. */
struct bounds {
    const char *fixture;
    enum family family;
    enum config_precision precision;
    double logits;      /* largest difference / largest logit */
    double loss;        /* absolute */
    double norm;        /* relative */
    double gradient;    /* |difference| / |gradient|, Euclidean, of each tensor */
    double movement;    /* |difference of final weights| / |what PyTorch's training changed| */
    const char *base;   /* the fixture with the initial weights and the tokens, if it is another */
    const char *recipe; /* fp8 only */
    const char *lora;   /* targets of adapters, or NULL */
};

static const struct bounds all_bounds[] = {
    {"test/golden/gpt_fp32.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 2e-6, 5e-5,
     NULL, NULL, NULL},
    {"test/golden/gpt_bf16.safetensors", GPT2, CONFIG_PRECISION_BF16, 2e-2, 3e-3, 5e-3, 2e-2, 0.06,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_fp16.safetensors", GPT2, CONFIG_PRECISION_FP16, 2.5e-3, 5e-4, 1e-3, 2.5e-3,
     0.03, "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 2e-6,
     5e-5, NULL, NULL, NULL},
    {"test/golden/llama_bf16.safetensors", LLAMA, CONFIG_PRECISION_BF16, 2e-2, 5e-3, 5e-3, 3e-2,
     0.06, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_fp16.safetensors", LLAMA, CONFIG_PRECISION_FP16, 2.5e-3, 1e-3, 1e-3, 4e-3,
     0.03, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/qwen2_fp32.safetensors", QWEN2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     5e-5, NULL, NULL, NULL},
    {"test/golden/qwen3_fp32.safetensors", QWEN3, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     5e-5, NULL, NULL, NULL},
    {"test/golden/qwen3_bf16.safetensors", QWEN3, CONFIG_PRECISION_BF16, 3e-2, 5e-3, 1e-2, 4e-2,
     0.06, "test/golden/qwen3_fp32.safetensors", NULL, NULL},
    {"test/golden/qwen3_fp16.safetensors", QWEN3, CONFIG_PRECISION_FP16, 2.5e-3, 1e-3, 2e-3, 6e-3,
     0.03, "test/golden/qwen3_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_masked_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     2e-6, 5e-5, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_fp8_tensor.safetensors", GPT2, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", "tensor", NULL},
    {"test/golden/gpt_fp8_e4m3.safetensors", GPT2, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", "e4m3", NULL},
    {"test/golden/gpt_fp8_delayed.safetensors", GPT2, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", "delayed", NULL},
    {"test/golden/gpt_fp8_row.safetensors", GPT2, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", "row", NULL},
    {"test/golden/llama_fp8_tensor.safetensors", LLAMA, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2,
     0, "test/golden/llama_fp32.safetensors", "tensor", NULL},
    {"test/golden/llama_fp8_delayed.safetensors", LLAMA, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2,
     0, "test/golden/llama_fp32.safetensors", "delayed", NULL},
    {"test/golden/llama_fp8_row.safetensors", LLAMA, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/llama_fp32.safetensors", "row e4m3", NULL},
    {"test/golden/gpt_lora_fp32.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     5e-5, NULL, NULL, "c_attn c_fc c_proj"},
    {"test/golden/llama_lora_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     5e-6, 5e-5, NULL, NULL, "all-linear"},
    {"test/golden/llama_lora_bf16.safetensors", LLAMA, CONFIG_PRECISION_BF16, 5e-2, 4e-3, 5e-3,
     5e-2, 0.08, "test/golden/llama_lora_fp32.safetensors", NULL, "all-linear"},
    {"test/golden/llama_lora_fp16.safetensors", LLAMA, CONFIG_PRECISION_FP16, 6e-3, 5e-4, 1e-3,
     7e-3, 0.03, "test/golden/llama_lora_fp32.safetensors", NULL, "all-linear"},
    {"test/golden/qwen2_lora_fp32.safetensors", QWEN2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     5e-6, 5e-5, NULL, NULL, "k_proj v_proj up_proj down_proj"},
    {"test/golden/qwen2_lora_bf16.safetensors", QWEN2, CONFIG_PRECISION_BF16, 5e-2, 4e-3, 5e-3,
     5e-2, 0.08, "test/golden/qwen2_lora_fp32.safetensors", NULL,
     "k_proj v_proj up_proj down_proj"},
    {"test/golden/qwen2_lora_fp16.safetensors", QWEN2, CONFIG_PRECISION_FP16, 6e-3, 5e-4, 1e-3,
     7e-3, 0.03, "test/golden/qwen2_lora_fp32.safetensors", NULL,
     "k_proj v_proj up_proj down_proj"},
    {"test/golden/gpt_isolated_fp32.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     2e-6, 0, "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_isolated_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 4e-6, 3e-6,
     2e-6, 0, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/mistral_window_fp32.safetensors", MISTRAL, CONFIG_PRECISION_FP32, 2e-6, 2e-6,
     1e-6, 2e-6, 0, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_mxfp8.safetensors", GPT2, CONFIG_PRECISION_MXFP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_mxfp8.safetensors", LLAMA, CONFIG_PRECISION_MXFP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_mxfp4.safetensors", GPT2, CONFIG_PRECISION_MXFP4, 0.3, 0.15, 0.25, 0.5, 0,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_mxfp4.safetensors", LLAMA, CONFIG_PRECISION_MXFP4, 0.3, 0.15, 0.25, 0.5, 0,
     "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_fp8_block.safetensors", GPT2, CONFIG_PRECISION_FP8, 0.1, 0.04, 0.06, 0.2, 0,
     "test/golden/gpt_fp32.safetensors", "block", NULL},
    {"test/golden/gpt_nvfp4.safetensors", GPT2, CONFIG_PRECISION_NVFP4, 0.3, 0.15, 0.25, 0.5, 0,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_nvfp4.safetensors", LLAMA, CONFIG_PRECISION_NVFP4, 0.3, 0.15, 0.25, 0.5, 0,
     "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_muon.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 2e-6, 2e-6, 5e-5,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_muon_bf16.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-4, 2e-4, 2e-6,
     0.02, "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_lion.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 2e-6, 2e-6, 5e-5,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/gpt_sgd.safetensors", GPT2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 2e-6, 2e-6, 5e-5,
     "test/golden/gpt_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_muon.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 2e-6, 2e-6,
     5e-5, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_linear_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     2e-6, 0, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_dynamic_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     2e-6, 0, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/llama_yarn_fp32.safetensors", LLAMA, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6,
     2e-6, 0, "test/golden/llama_fp32.safetensors", NULL, NULL},
    {"test/golden/gemma2_fp32.safetensors", GEMMA2, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     1e-4, NULL, NULL, NULL},
    {"test/golden/gemma2_bf16.safetensors", GEMMA2, CONFIG_PRECISION_BF16, 4e-2, 5e-3, 1e-2, 6e-2,
     0, "test/golden/gemma2_fp32.safetensors", NULL, NULL},
    {"test/golden/gemma2_fp16.safetensors", GEMMA2, CONFIG_PRECISION_FP16, 5e-3, 1e-3, 2e-3, 6e-3,
     0, "test/golden/gemma2_fp32.safetensors", NULL, NULL},
    {"test/golden/gemma3_fp32.safetensors", GEMMA3, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     1e-4, NULL, NULL, NULL},
    {"test/golden/gemma3_bf16.safetensors", GEMMA3, CONFIG_PRECISION_BF16, 3e-2, 5e-3, 1e-2, 4e-2,
     0, "test/golden/gemma3_fp32.safetensors", NULL, NULL},
    {"test/golden/gemma3_fp16.safetensors", GEMMA3, CONFIG_PRECISION_FP16, 2.5e-3, 1e-3, 2e-3, 6e-3,
     0, "test/golden/gemma3_fp32.safetensors", NULL, NULL},
    {"test/golden/gemma3_isolated_fp32.safetensors", GEMMA3, CONFIG_PRECISION_FP32, 2e-6, 4e-6,
     3e-6, 5e-6, 0, "test/golden/gemma3_fp32.safetensors", NULL, NULL},
    {"test/golden/olmo3_fp32.safetensors", OLMO3, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     1e-4, NULL, NULL, NULL},
    {"test/golden/olmo3_bf16.safetensors", OLMO3, CONFIG_PRECISION_BF16, 3e-2, 8e-3, 1e-2, 4e-2, 0,
     "test/golden/olmo3_fp32.safetensors", NULL, NULL},
    {"test/golden/olmo3_fp16.safetensors", OLMO3, CONFIG_PRECISION_FP16, 2.5e-3, 1e-3, 2e-3, 6e-3,
     0, "test/golden/olmo3_fp32.safetensors", NULL, NULL},
    {"test/golden/hyperclovax_fp32.safetensors", HYPERCLOVAX, CONFIG_PRECISION_FP32, 2e-6, 2e-6,
     1e-6, 5e-6, 0, NULL, NULL, NULL},
    {"test/golden/hyperclovax_bf16.safetensors", HYPERCLOVAX, CONFIG_PRECISION_BF16, 3e-2, 5e-3,
     1e-2, 4e-2, 0, "test/golden/hyperclovax_fp32.safetensors", NULL, NULL},
    {"test/golden/qwen3_5_fp32.safetensors", QWEN3_5, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     0, NULL, NULL, NULL},
    {"test/golden/qwen3_5_bf16.safetensors", QWEN3_5, CONFIG_PRECISION_BF16, 3e-2, 9e-3, 1e-2, 5e-2,
     0, "test/golden/qwen3_5_fp32.safetensors", NULL, NULL},
    {"test/golden/deltanet_fp32.safetensors", DELTANET, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 4e-6,
     5e-6, 0, NULL, NULL, NULL},
    {"test/golden/deltanet_bf16.safetensors", DELTANET, CONFIG_PRECISION_BF16, 8e-2, 1e-2, 5e-2,
     0.12, 0, "test/golden/deltanet_fp32.safetensors", NULL, NULL},
    {"test/golden/exaone4_fp32.safetensors", EXAONE4, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 1e-6, 5e-6,
     0, NULL, NULL, NULL},
    {"test/golden/phi3_fp32.safetensors", PHI3, CONFIG_PRECISION_FP32, 2e-6, 2e-6, 2e-6, 5e-6, 0,
     NULL, NULL, NULL},
};
