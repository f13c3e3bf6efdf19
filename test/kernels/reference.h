/* Scalar functions in fp64 that several tests compare with. */
#pragma once

/* The tanh form of GELU in kernels.h, and its derivative. */
double reference_gelu(double x);
double reference_gelu_derivative(double x);

/* Returns how much gelu' changes when tanh, 1 - tanh^2 and the argument of tanh are each off by
 * one fp32 rounding, in such roundings: the magnitude of gelu' for check_close. */
double reference_gelu_sensitivity(double x);
