/* All dtypes, as tables. kernels/dtype.h has their functions. */
#pragma once

/* Each dtype: X(NAME, name in configs, bits, name in config.json of Hugging Face's models, name in
 * cuBLAS). Safetensors uses NAME. */
#define DTYPES(X)                             \
    X(F32, "fp32", 32, "float32", CUDA_R_32F) \
    X(F16, "fp16", 16, "float16", CUDA_R_16F) \
    X(BF16, "bf16", 16, "bfloat16", CUDA_R_16BF)

/* Quantized operands of matrix products, with separate scales; never computed in and never in a
 * file. Micikevicius et al. 2022: E4M3 (its variant without infinities) and E5M2. The last columns
 * are those of struct f8_format (kernels/float8.h). */
#define DTYPES_QUANTIZED(X)                                      \
    X(E4M3, "e4m3", 8, CUDA_R_8F_E4M3, 3, 7, 0x7e, 0x7f, 448.0f) \
    X(E5M2, "e5m2", 8, CUDA_R_8F_E5M2, 2, 15, 0x7b, 0x7c, 57344.0f)

/* Codes of stored weights and of their scales (kernels/code_value.h), and of blocks that share a
 * scale (kernels/block_scale.h): X(NAME, name, bits). */
#define DTYPES_CODES(X)        \
    X(NF4, "nf4", 4)           \
    X(DYNAMIC8, "dynamic8", 8) \
    X(E2M1, "e2m1", 4)         \
    X(E8M0, "e8m0", 8)

enum dtype {
#define X(NAME, ...) DTYPE_##NAME,
    DTYPES(X) DTYPES_QUANTIZED(X) DTYPES_CODES(X)
#undef X
};

/* Lengths of the first list, and of all. */
#define X(...) +1
enum { DTYPE_COUNT = DTYPES(X), DTYPE_ALL_COUNT = DTYPE_COUNT DTYPES_QUANTIZED(X) DTYPES_CODES(X) };
#undef X
