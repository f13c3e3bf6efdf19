/* Qualifier of inline functions that both backends use, in headers of C and CUDA:
 *
 *     static ON_HOST_AND_DEVICE int f(int x) { ... } */
#pragma once

#ifdef __CUDACC__
#define ON_HOST_AND_DEVICE __host__ __device__ __forceinline__
#else
#define ON_HOST_AND_DEVICE inline
#endif
