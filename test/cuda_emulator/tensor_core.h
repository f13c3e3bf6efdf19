/* Sums of products as tensor cores of the Hopper generation make them. */
#ifndef TEST_CUDA_EMULATOR_TENSOR_CORE_H
#define TEST_CUDA_EMULATOR_TENSOR_CORE_H

#include <stddef.h>

namespace emu {

enum tensor_core_format { E4M3, E5M2, F16, BF16, TF32 };

/* True with CUDA_EMULATOR_TENSOR_CORES=truncate. Otherwise products are added one by one in fp32,
 * so that tests can have the tolerances of fp32. */
bool tensor_cores_truncate();

/* sums[i] += the sum over k < terms of a[k * a_stride + i] * b[k], for i < count. a and b hold
 * values of their formats, which have equal widths.
 *
 * A tensor core adds a block of exact products and the previous sum at once. It shifts them to the
 * largest exponent among them, drops the bits below the last one that it keeps, adds, and truncates
 * the result:
 * - 8 bits: 32 products, 13 bits kept below the largest exponent, and as many of the result
 * - 16 bits: 16 products, 25 bits, result in fp32
 * - TF32: 8 products, 25 bits, result in fp32
 * The exponent of a product is the sum of its factors' exponents, also where the product of their
 * fractions is 2 or more; a subnormal factor has the least exponent of its format.
 *
 * Source: Khattak and Mikaitis, "Accurate Models of NVIDIA Tensor Cores", ACM TACO 23(3), 2026,
 * doi:10.1145/3830409. The sums that they recorded on an H100 are these, bit for bit: of 32
 * products of 8 bits (wgmma), 16 of 16 bits (wmma), 4 of TF32. For 8 bits it is also what the
 * package mmaemu 0.1.0 computes for cuBLASLt on an H100. An A100 adds 8 products of 16 bits with 24
 * bits, and Ada 16 products of 8 bits with 13. */
void tensor_core_add(float *sums, size_t count, const float *a, size_t a_stride,
                     tensor_core_format a_format, const float *b, tensor_core_format b_format,
                     size_t terms);

/* tanh.approx.f32: truncated such that the relative error is up to 2^-11, the bound of the PTX
 * ISA. */
float tanh_approx(float x);

} // namespace emu

#endif
