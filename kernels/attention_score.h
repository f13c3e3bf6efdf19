/* Scores of attention, for both backends: with x = q . k they are s x or, with a soft cap c,
 * c tanh(s x / c), as in Gemma 2. Kernels keep x as the score or, with a cap, the tanh alone, and
 * divide where the score itself is needed. */
#pragma once

#include <assert.h>

struct attention_score {
    double divisor; /* of what is kept: 1 / s; with a cap 1 / c */
    float scale;    /* s; the derivative by x is s or, with a cap, s (1 - tanh^2) */
    float inner;    /* s / c, the factor of x in the tanh; 0: no cap */
};

/* scale, softcap: as in struct attention_forward_args. */
static inline struct attention_score attention_score(double scale, float softcap) {
    double divisor = 1 / scale, cap = softcap;
    assert(scale > 0);
    struct attention_score score = {divisor, (float)(1 / divisor), 0};
    if (softcap == 0) return score;
    score.inner = (float)(1 / (divisor * cap));
    score.divisor = 1 / cap;
    return score;
}
