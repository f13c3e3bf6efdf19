#include "model/task/objective.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model/config/config_keys.h"

static struct config config_of(enum config_objective objective) {
    struct config config;
    config_defaults(&config);
    config.train.objective = objective;
    return config;
}

static const struct objective_figure *find(const struct objective *objective, const char *name) {
    for (const struct objective_figure *f = objective->figures; f && f->name; f++)
        if (strcmp(f->name, name) == 0) return f;
    return NULL;
}

/* Figures read sums that ranks add up, each by its own name, and columns have a factor. */
Test(objective, figures_are_of_sums) {
#define X(NAME, name, ...) CONFIG_OBJECTIVE_##NAME,
    static const enum config_objective all[] = {OBJECTIVES(X)};
#undef X
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct config config = config_of(all[i]);
        const struct objective *objective = objective_of(&config);
        cr_assert_leq((size_t)objective->sums, sizeof(struct step_sums) / sizeof(float));
        cr_expect_eq(objective->figures != NULL, objective->sums > 0);
        for (const struct objective_figure *f = objective->figures; f && f->name; f++) {
            const int indices[] = {f->sum, f->count, f->less_sum, f->less_count};
            for (int k = 0; k < 4; k++)
                cr_expect(indices[k] >= 0 && indices[k] < objective->sums, "%s", f->name);
            cr_expect_eq(find(objective, f->name), f, "%s is there twice", f->name);
            cr_expect(f->factor != 0 || !(f->label || f->title), "%s", f->name);
            cr_expect_eq(f->label != NULL, f->unit != NULL, "%s", f->name);
        }
    }
}

/* Means of 4 pairs, of which 3 are right; without answers of a side they are unknown. */
Test(objective, values_are_means) {
    const struct config config = config_of(CONFIG_OBJECTIVE_DPO);
    const struct objective *dpo = objective_of(&config);
    struct step_sums sums = {{0}};
    struct preference_sums *pairs = (struct preference_sums *)&sums;
    *pairs = (struct preference_sums){
        .pairs = 4, .sides = {4, 4}, .rewards = {2, -6}, .p = {-8, -12}, .accurate = 3};
    cr_expect_eq(objective_value(find(dpo, "rewards_chosen"), &sums, 1), 0.5);
    cr_expect_eq(objective_value(find(dpo, "rewards_rejected"), &sums, 1), -1.5);
    cr_expect_eq(objective_value(find(dpo, "rewards_margins"), &sums, 1), 2);
    cr_expect_eq(objective_value(find(dpo, "logps_rejected"), &sums, 1), -3);
    cr_expect_eq(objective_value(find(dpo, "rewards_accuracies"), &sums, 1), 0.75);
    cr_expect_eq(objective_value(find(dpo, "rewards_accuracies"), &sums, 100), 75);
    pairs->sides[PREFERENCE_REJECTED] = pairs->rewards[PREFERENCE_REJECTED] = 0;
    cr_expect(isnan(objective_value(find(dpo, "rewards_margins"), &sums, 1)));
    cr_expect_eq(objective_value(find(dpo, "rewards_chosen"), &sums, 1), 0.5);
}

/* A teacher's logits make language another row once their number is known. */
Test(objective, distillation_is_language_with_a_teacher) {
    struct config config = config_of(CONFIG_OBJECTIVE_LANGUAGE);
    size_t extra = 0, memory = 0;
    cr_expect_eq(objective_of(&config), &objective_language);
    strcpy(config.distill.logits, "teacher");
    cr_expect_eq(objective_of(&config), &objective_language, "as in a dry run without the files");
    config.distill_top = 8;
    cr_assert_eq(objective_of(&config), &objective_distillation);
    objective_distillation.bytes(&config, 6, &extra, &memory);
    cr_expect(extra == 6 * 8 * (4 + 2) && memory == 0);
}
