/* Operands of 8 and 4 bits: what the library requires of them, and the layouts of their scales. */
#include "test/cuda_emulator/fake_product.h"
#include "test/cuda_emulator/machine.h"

#include <math.h>

namespace fake {

/* Layout of the 8-bit formats: sign, exponent, fraction. */
float from_eight_bits(uint8_t code, bool e4m3) {
    int bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, exponent = (code & 0x7f) >> bits;
    int fraction = code & ((1 << bits) - 1), top = e4m3 ? 15 : 31;
    float value = ldexpf((float)(fraction | (exponent ? 1 << bits : 0)),
                         (exponent ? exponent : 1) - bias - bits);
    if (e4m3 && (code & 0x7f) == 0x7f) value = NAN;
    if (!e4m3 && exponent == top) value = fraction ? NAN : INFINITY;
    return code & 0x80 ? -value : value;
}

/* Scales of blocks, on the GPUs that the library documents for their modes. */
static cublasStatus_t examine_modes(const problem &p) {
    const operation &op = *p.op;
    bool four = p.a.type == CUDA_R_4F_E2M1;
    int a = op.mode_a, b = op.mode_b, sm = emu::capability();
    SUPPORT(!four || a == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3, "operands of 4 bits otherwise");
    SUPPORT(op.pointers == CUBLASLT_POINTER_MODE_HOST ||
                op.pointers == CUBLASLT_POINTER_MODE_DEVICE,
            "a pointer mode that is not emulated");
    if (!is_mode_of_blocks(a) && !is_mode_of_blocks(b)) return CUBLAS_STATUS_SUCCESS;
    REQUIRE(op.scale_a && op.scale_b, "blocks without scales");
    REQUIRE((uintptr_t)op.scale_a % 16 == 0 && (uintptr_t)op.scale_b % 16 == 0,
            "misaligned scales of blocks");
    SUPPORT(!op.fast, "fast accumulation of blocks");
    switch (a) {
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3:
        SUPPORT(four && b == a && sm >= 100, "blocks of 16 of other operands or older GPUs");
        break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0:
        SUPPORT(!four && b == a && sm >= 100, "blocks of 32 of other operands or older GPUs");
        break;
    case CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F:
    case CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F:
        SUPPORT(b == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F ||
                    (b == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F && a != b),
                "two modes that do not go together");
        SUPPORT(!four && sm == 90, "blocks of 128 of other operands or on other GPUs");
        break;
    default: SUPPORT(false, "a mode of scales that is not emulated");
    }
    return CUBLAS_STATUS_SUCCESS;
}

/* Additional requirements of the library for operands of 8 or 4 bits. */
cublasStatus_t examine_narrow(const problem &p) {
    const operation &op = *p.op;
    const layout *all[] = {&p.a, &p.b, &p.c, &p.d};
    SUPPORT(emu::capability() >= 89, "operands of 8 bits on an older GPU");
    SUPPORT(is_narrow(p.a.type) && bits_of(p.a.type) == bits_of(p.b.type),
            "operands of other sizes of elements");
    SUPPORT(p.a.type != CUDA_R_8F_E5M2 || p.b.type != CUDA_R_8F_E5M2, "E5M2 times E5M2");
    SUPPORT(!is_narrow(p.d.type), "an output of 8 bits, which is not emulated");
    SUPPORT(op.transpose_a && !op.transpose_b, "operands of 8 bits that are not TN");
    SUPPORT(op.compute == CUBLAS_COMPUTE_32F, "operands of 8 bits not summed in fp32");
    uint64_t unit = NARROW_ALIGNMENT * 8 / bits_of(p.a.type);
    for (const layout *l : all)
        SUPPORT(l->rows % unit == 0 && l->columns % unit == 0 &&
                    (uint64_t)l->stride * bits_of(l->type) / 8 % NARROW_ALIGNMENT == 0,
                "operands of 8 or 4 bits whose sizes are no multiples of 16 bytes");
    SUPPORT(op.epilogue == FAKE_DEFAULT || op.epilogue == FAKE_BIAS,
            "an epilogue that is not for operands of 8 bits");
    int bias = p.d.type == CUDA_R_32F ? (int)CUDA_R_16BF : p.d.type;
    SUPPORT(!p.has_vector || p.vector_type == bias, "a bias of a type that this output has not");
    SUPPORT((uintptr_t)op.scale_a % NARROW_ALIGNMENT == 0 &&
                (uintptr_t)op.scale_b % NARROW_ALIGNMENT == 0,
            "misaligned scales of operands of 8 bits"); /* seen on an H200 with 13.1 */
    return examine_modes(p);
}

/* ---- scales of blocks: "1D Block Scaling Factors Layout" and "Scaling factors layouts" in the
 * library's documentation */

static uint64_t ceiling(uint64_t value, uint64_t divisor) {
    return (value + divisor - 1) / divisor;
}

static bool is_tiled(int32_t mode) {
    return mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3 ||
           mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0;
}
static uint64_t inners(int32_t mode, uint64_t k) {
    return ceiling(k, mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3   ? 16
                      : mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0 ? 32
                                                                         : 128);
}

size_t block_scale_bytes(int32_t mode, uint64_t outer, uint64_t k) {
    uint64_t inner = inners(mode, k);
    if (!is_mode_of_blocks(mode)) return sizeof(float);
    if (is_tiled(mode)) return ceiling(outer, 128) * ceiling(inner, 4) * 512;
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return outer * inner * sizeof(float);
    return ceiling(outer, 128) * ceiling(inner, 4) * 4 * sizeof(float);
}

float block_scale_of(const void *scales, int32_t mode, uint64_t outers, uint64_t ks, uint64_t outer,
                     uint64_t k) {
    uint64_t inner = inners(mode, k + 1) - 1, tiles = ceiling(inners(mode, ks), 4);
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F)
        return ((const float *)scales)[inner * outers + outer];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F)
        return ((const float *)scales)[outer / 128 * tiles * 4 + inner];
    uint64_t row = outer % 128, tile = inner / 4 + outer / 128 * tiles;
    int code = ((const uint8_t *)scales)[tile * 512 + row % 32 * 16 + row / 32 * 4 + inner % 4];
    if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3)
        return from_eight_bits((uint8_t)(code & 0x7f), true);
    return code == 255 ? NAN : ldexpf(1, code - 127);
}

bool block_scales_are_padded(const void *scales, int32_t mode, uint64_t outers, uint64_t ks) {
    uint64_t inner = inners(mode, ks);
    if (!is_tiled(mode)) return true;
    for (uint64_t at = 0; at < block_scale_bytes(mode, outers, ks); at++) {
        uint64_t tile = at / 512, offset = at % 512, across = ceiling(inner, 4);
        uint64_t outer = tile / across * 128 + offset % 16 / 4 * 32 + offset / 16;
        bool past = outer >= outers || tile % across * 4 + offset % 4 >= inner;
        if (past && ((const uint8_t *)scales)[at]) return false;
    }
    return true;
}

} // namespace fake
