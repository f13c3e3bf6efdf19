/* The loss of steps and validations decides whether checkpoints are saved. */
#include <criterion/criterion.h>
#include <math.h>

#include "model/cli/saving.h"

Test(saving, only_a_step_ends_what_is_not_finite) {
    struct saving saving = {.warned = true};
    saving_watch_step(&saving, 2, 1);
    cr_expect_eq(saving.not_finite_since, 0);
    saving_watch_step(&saving, 3, NAN);
    saving_watch_step(&saving, 4, (double)INFINITY);
    cr_expect_eq(saving.not_finite_since, 3);
    saving_watch_validation(&saving, 4, 1);
    cr_expect_eq(saving.validated, 4);
    cr_expect_eq(saving.not_finite_since, 3, "a finite validation says nothing of the steps");
    saving_watch_step(&saving, 5, 1);
    cr_expect_eq(saving.not_finite_since, 0);
    saving_watch_validation(&saving, 5, NAN);
    cr_expect_eq(saving.not_finite_since, 5);
    saving_watch_step(&saving, 6, 1);
    cr_expect_eq(saving.not_finite_since, 0);
}
