/* Scalar functions in fp64 that several tests compare with. */
#ifndef TEST_KERNELS_REFERENCE_H
#define TEST_KERNELS_REFERENCE_H

/* The tanh form of kernels.h, and its derivative. */
double reference_gelu(double x);
double reference_gelu_derivative(double x);

/* What an fp32 error of one unit in the argument of tanh and in 1 - tanh^2 does to gelu', for the
 * magnitudes of check_close; multiplied by nothing yet. */
double reference_gelu_sensitivity(double x);

#endif
