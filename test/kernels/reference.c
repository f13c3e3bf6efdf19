#include "test/kernels/reference.h"

#include <math.h>

static const double SQRT_2_OVER_PI = 0.79788456080286535588;

static double inner(double x) {
    return SQRT_2_OVER_PI * (x + 0.044715 * x * x * x);
}

static double slope(double x) {
    return SQRT_2_OVER_PI * (1 + 3 * 0.044715 * x * x);
}

/* x / 2 (1 + tanh(z)) = x / (1 + exp(-2 z)), without the cancellation for negative x. */
double reference_gelu(double x) {
    return x / (1 + exp(-2 * inner(x)));
}

double reference_gelu_derivative(double x) {
    double share = 1 / (1 + exp(-2 * inner(x)));
    double sech2 = 4 * share / (1 + exp(2 * inner(x))); /* 1 - tanh^2 */
    return share + x / 2 * sech2 * slope(x);
}

double reference_gelu_sensitivity(double x) {
    double t = tanh(inner(x)), sech2 = 1 - t * t;
    return 1 + fabs(x) * slope(x) * (fabs(inner(x)) * sech2 + fabs(t) * (sech2 > 1e-9));
}
