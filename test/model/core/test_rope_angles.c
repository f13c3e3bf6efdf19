/* Angles of each kind of rope scaling compared with transformers' (test/golden/rope.py). */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>

#include "model/core/rope.h"
#include "test/model/core/golden_model.h"

/* The same cases as in test/golden/rope.py. dynamic: the file's positions are the original ones. */
static const struct angles_case {
    const char *name;
    int64_t length;
    struct model_shape shape;
} angles_cases[] = {
    {"none", 64, {.head_dim = 8, .rope_theta = 1e4, .n_positions = 64}},
    {"linear",
     96,
     {.head_dim = 8,
      .rope_theta = 1e4,
      .n_positions = 96,
      .rope_scaling = ROPE_LINEAR,
      .rope_factor = 4}},
    {"linear_odd",
     96,
     {.head_dim = 10,
      .rope_theta = 5e5,
      .n_positions = 96,
      .rope_scaling = ROPE_LINEAR,
      .rope_factor = 2.7}},
    {"dynamic_within",
     96,
     {.head_dim = 16,
      .rope_theta = 1e4,
      .n_positions = 384,
      .rope_scaling = ROPE_DYNAMIC,
      .rope_factor = 4,
      .rope_original_positions = 96}},
    {"dynamic",
     96,
     {.head_dim = 16,
      .rope_theta = 1e4,
      .n_positions = 128,
      .rope_scaling = ROPE_DYNAMIC,
      .rope_factor = 4,
      .rope_original_positions = 32}},
    {"dynamic_odd",
     71,
     {.head_dim = 10,
      .rope_theta = 5e5,
      .n_positions = 79,
      .rope_scaling = ROPE_DYNAMIC,
      .rope_factor = 3.3,
      .rope_original_positions = 24}},
    {"yarn",
     160,
     {.head_dim = 32,
      .rope_theta = 1e4,
      .n_positions = 160,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 4,
      .rope_original_positions = 40,
      .rope_beta_fast = 32,
      .rope_beta_slow = 1,
      .rope_truncate = true}},
    {"yarn_long",
     160,
     {.head_dim = 32,
      .rope_theta = 1e6,
      .n_positions = 512,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 8,
      .rope_original_positions = 4096,
      .rope_attention_factor = 0.8,
      .rope_beta_fast = 16,
      .rope_beta_slow = 2,
      .rope_truncate = true}},
    {"yarn_exact",
     96,
     {.head_dim = 10,
      .rope_theta = 1e4,
      .n_positions = 96,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 2.5,
      .rope_original_positions = 32,
      .rope_beta_fast = 32,
      .rope_beta_slow = 1,
      .rope_truncate = false}},
    {"yarn_mscale", /* the quotient of 0.1 ln(40) mscale + 1 for both */
     96,
     {.head_dim = 16,
      .rope_theta = 1e4,
      .n_positions = 96,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 40,
      .rope_original_positions = 48,
      .rope_attention_factor = 1.258221562 / 1.479554330,
      .rope_beta_fast = 32,
      .rope_beta_slow = 1,
      .rope_truncate = true}},
    {"yarn_no_range",
     64,
     {.head_dim = 8,
      .rope_theta = 1e4,
      .n_positions = 64,
      .rope_scaling = ROPE_YARN,
      .rope_factor = 4,
      .rope_original_positions = 4,
      .rope_beta_fast = 32,
      .rope_beta_slow = 1,
      .rope_truncate = true}},
    {"llama3",
     96,
     {.head_dim = 32,
      .rope_theta = 5e5,
      .n_positions = 96,
      .rope_scaling = ROPE_LLAMA3,
      .rope_factor = 8,
      .rope_original_positions = 48,
      .rope_low_freq_factor = 1,
      .rope_high_freq_factor = 4}},
};

enum { ANGLES_CASES = sizeof angles_cases / sizeof *angles_cases };

Test(rope_angles, are_those_of_transformers) {
    struct fixture fixture;
    fixture_open(&fixture, "test/golden/rope.safetensors");
    cr_assert_eq(fixture.file.count, (int)ANGLES_CASES);
    for (int i = 0; i < (int)ANGLES_CASES; i++) {
        const struct angles_case *given = &angles_cases[i];
        const int64_t count = given->length * given->shape.head_dim;
        const float *expected = data_in(&fixture, given->name, SAFETENSORS_F32);
        float *angles = malloc((size_t)count * sizeof *angles);
        /* Frequencies of llama3 are computed in fp64 and rounded once, those of transformers after
         * each operation: the last bit of an angle up to 96 is 8e-6. */
        const double bound = given->shape.rope_scaling == ROPE_LLAMA3 ? 8e-6 : 1e-6;
        double largest = 0;
        cr_assert_not_null(expected, "%s", given->name);
        rope_angles(angles, &given->shape, given->length);
        for (int64_t k = 0; k < count; k++)
            largest = fmax(largest, fabs((double)angles[k] - (double)expected[k]));
        cr_expect_leq(largest, bound, "%s: %g", given->name, largest);
        free(angles);
    }
    fixture_close(&fixture);
}
