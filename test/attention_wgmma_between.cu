/* The gradient of attention on Hopper with its other order of waits, which gpu_bench_between
 * measures. */
#define ATTENTION_WAIT_BETWEEN 1
#include "kernels/cuda/attention_wgmma_backward.cu"
