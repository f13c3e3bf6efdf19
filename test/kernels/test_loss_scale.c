#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "test/kernels/golden.h"

struct rule {
    bool dynamic;
    float growth, backoff, floor;
    int32_t interval;
};

static const struct rule usual = {true, 2, 0.5f, 1, 3};

/* One update in backend memory; all fields that it does not own must keep their bits. */
static struct step_state update(struct check *c, struct step_state before, struct rule rule) {
    before.loss = 3;
    before.gradient_norm = 4;
    before.clip_factor = 5;
    struct step_state after, *place = check_memory(c, CHECK_WRITE, &before, sizeof before);
    CHECK_OP(c, loss_scale_update, .state = place, .dynamic = rule.dynamic,
             .growth_factor = rule.growth, .backoff_factor = rule.backoff, .min_scale = rule.floor,
             .growth_interval = rule.interval);
    backend_download(&c->be, &after, place, sizeof after);
    cr_assert(after.loss == 3 && after.gradient_norm == 4 && after.clip_factor == 5 &&
              after.found_inf == before.found_inf);
    return after;
}

static void check_state(struct step_state s, float scale, int tracker, int updates, int skipped,
                        int in_row, int at_floor) {
    cr_assert_eq(s.loss_scale, scale, "scale %g, expected %g", (double)s.loss_scale, (double)scale);
    cr_assert_eq(s.growth_tracker, tracker, "tracker %d, expected %d", s.growth_tracker, tracker);
    cr_assert_eq(s.updates, updates, "updates %d, expected %d", s.updates, updates);
    cr_assert_eq(s.skipped, skipped, "skipped %d, expected %d", s.skipped, skipped);
    cr_assert_eq(s.skipped_in_row, in_row, "in a row %d, expected %d", s.skipped_in_row, in_row);
    cr_assert_eq(s.at_floor, at_floor, "at floor %d, expected %d", s.at_floor, at_floor);
}

static void growth(struct check *c, const void *given) {
    (void)given;
    struct step_state s = {.loss_scale = 1024};
    s = update(c, s, usual);
    check_state(s, 1024, 1, 1, 0, 0, 0);
    s = update(c, s, usual);
    check_state(s, 1024, 2, 2, 0, 0, 0);
    s = update(c, s, usual);
    check_state(s, 2048, 0, 3, 0, 0, 0);
    s = update(c, s, usual);
    check_state(s, 2048, 1, 4, 0, 0, 0);
}
Test(loss_scale, grows_after_the_interval) {
    check_everywhere(growth, NULL);
}

static void backoff(struct check *c, const void *given) {
    (void)given;
    struct step_state s = {.loss_scale = 1024, .growth_tracker = 2, .updates = 5, .found_inf = 1};
    s = update(c, s, usual);
    check_state(s, 512, 0, 5, 1, 1, 0);
    s = update(c, s, usual);
    check_state(s, 256, 0, 5, 2, 2, 0);
    s.found_inf = 0;
    s = update(c, s, usual);
    check_state(s, 256, 1, 6, 2, 0, 0);
}
Test(loss_scale, backs_off_and_restarts_the_interval) {
    check_everywhere(backoff, NULL);
}

/* at_floor counts steps that were skipped although the scale could not fall further. */
static void floor_of(struct check *c, const void *given) {
    (void)given;
    struct rule rule = usual;
    rule.floor = 3;
    struct step_state s = {.loss_scale = 8, .found_inf = 1};
    s = update(c, s, rule);
    check_state(s, 4, 0, 0, 1, 1, 0);
    s = update(c, s, rule);
    check_state(s, 3, 0, 0, 2, 2, 0); /* 2 would be below */
    s = update(c, s, rule);
    check_state(s, 3, 0, 0, 3, 3, 1);
    s.found_inf = 0;
    s = update(c, s, rule);
    check_state(s, 3, 1, 1, 3, 0, 0);
}
Test(loss_scale, stops_at_the_floor) {
    check_everywhere(floor_of, NULL);
}

static void ceiling(struct check *c, const void *given) {
    (void)given;
    struct rule rule = usual;
    rule.interval = 1;
    struct step_state s = {.loss_scale = 0x1p126f};
    s = update(c, s, rule);
    check_state(s, 0x1p127f, 0, 1, 0, 0, 0);
    s = update(c, s, rule);
    check_state(s, 0x1p127f, 0, 2, 0, 0, 0);
}
Test(loss_scale, never_grows_to_infinity) {
    check_everywhere(ceiling, NULL);
}

/* fp32 and bf16: the scale stays, skipped steps are still counted. */
static void not_dynamic(struct check *c, const void *given) {
    (void)given;
    struct rule rule = usual;
    rule.dynamic = false;
    struct step_state s = {.loss_scale = 1};
    for (int i = 0; i < 5; i++) s = update(c, s, rule);
    check_state(s, 1, 0, 5, 0, 0, 0);
    s.found_inf = 1;
    s = update(c, s, rule);
    s = update(c, s, rule);
    cr_assert(s.loss_scale == 1 && s.updates == 5 && s.skipped == 2 && s.skipped_in_row == 2);
}
Test(loss_scale, static_scale) {
    check_everywhere(not_dynamic, NULL);
}

static void golden(struct check *c, const void *given) {
    (void)given;
    const int32_t *found_inf, *tracker;
    golden_tokens(c, "scaler.found_inf", &found_inf);
    golden_tokens(c, "scaler.tracker", &tracker);
    double *scale = golden_values(c, "scaler.scale");
    struct step_state s = {.loss_scale = 1024};
    for (int step = 0; step < 16; step++) {
        s.found_inf = found_inf[step];
        s = update(c, s, usual);
        cr_assert(s.loss_scale == scale[step] && s.growth_tracker == tracker[step], "step %d",
                  step);
    }
}
Test(loss_scale, golden) {
    check_everywhere(golden, NULL);
}
