/* Steps small enough to check by hand: an operation takes a second, and so does a byte. */
#include <criterion/criterion.h>

#include <math.h>

#include <stb/stb_ds.h>

#include "data/util/random.h"

#include "model/plan/rank_timeline.h"

#define NEAR(a, b) cr_expect_float_eq(a, b, 1e-9 * (1 + fabs(b)), "%.12g, not %.12g", a, b)

static const struct rank_machine slow = {.ranks = 3, .flops = 1, .memory = 1, .link = 1};

static struct rank_load load(int layer, double gradients, double weights) {
    return (struct rank_load){layer, layer, gradients, weights, 1, 1, 0};
}

/* One layer, wte and vectors: nothing can be hidden.
 *     0  weights are sent: wte is ready at 2, the layer at 6, the vectors at 7
 *     7  forward 1, head 3, backward 2: at 13 the gradients of layer, wte and vectors are sent
 *    26  after 8 + 4 + 1 all gradients are ready */
Test(rank_timeline, one_layer) {
    struct rank_times times;
    struct rank_step step = {
        .layers = 1, .micros = 1, .forward = 1, .backward = 2, .head = 3, .recompute = 100};
    arrput(step.loads, load(-1, 4, 2));
    arrput(step.loads, load(0, 8, 4));
    arrput(step.loads, load(-1, 1, 1));
    rank_timeline(&times, &step, &slow);
    NEAR(times.alone, 6.0);
    NEAR(times.step, 26.0);
    NEAR(times.waiting[RANK_GRADIENTS], 13.0);
    NEAR(times.waiting[RANK_WEIGHTS], 7.0);
    NEAR(times.bytes[RANK_GRADIENTS], 13.0);
    NEAR(times.sending[RANK_WEIGHTS], 7.0);
    NEAR(times.sending[RANK_SUMS], 0.0);
    NEAR(rank_efficiency(&times), 6.0 / 26);
    arrfree(step.loads);
}

/* The 8 s of layer 1 overlap with the 20 s of layer 0; the 8 s of layer 0 and 2 s of wte come after
 * the backward pass. wte's weights are ready at 1 and those of layer 0 at 5; those of layer 1
 * overlap with the 10 s of layer 0. */
Test(rank_timeline, two_layers_hide_one) {
    struct rank_times times;
    struct rank_step step = {.layers = 2, .micros = 1, .forward = 10, .backward = 20, .head = 5};
    arrput(step.loads, load(-1, 2, 1));
    arrput(step.loads, load(0, 8, 4));
    arrput(step.loads, load(1, 8, 4));
    rank_timeline(&times, &step, &slow);
    NEAR(times.alone, 65.0);
    NEAR(times.waiting[RANK_GRADIENTS], 10.0);
    NEAR(times.waiting[RANK_WEIGHTS], 5.0);
    NEAR(times.step, 80.0);
    NEAR(rank_hidden(times.sending[RANK_GRADIENTS], times.waiting[RANK_GRADIENTS]), 8.0 / 18);

    step.micros = 4;    /* gradients are sent once per step */
    step.recompute = 7; /* for one of the two layers */
    rank_timeline(&times, &step, &slow);
    NEAR(times.alone, 4 * 72.0);
    NEAR(times.step, 4 * 72.0 + 15);
    NEAR(times.bytes[RANK_GRADIENTS], 18.0);
    arrfree(step.loads);
}

/* An untied head's gradients are sent before the backward pass of the layers, and its weights are
 * needed only after their forward pass. */
Test(rank_timeline, an_untied_head_is_hidden) {
    struct rank_times times;
    struct rank_step step = {.layers = 1, .micros = 1, .forward = 10, .backward = 20, .head = 5};
    arrput(step.loads, load(1, 20, 10));
    rank_timeline(&times, &step, &slow);
    NEAR(times.step, 35.0);
    NEAR(times.sending[RANK_GRADIENTS], 20.0);
    NEAR(times.sending[RANK_WEIGHTS], 10.0);
    step.loads[0] = load(1, 21, 12);
    rank_timeline(&times, &step, &slow);
    NEAR(times.step, 38.0);
    arrfree(step.loads);
}

/* wte's gradients are sent after the head, and the layer hides 15 of their 20 s. Then the
 * embedding's rows (3 s) and the vectors (2 s) follow one another. wte's weights (10 s) are needed
 * first. */
Test(rank_timeline, a_tied_head_is_sent_early) {
    struct rank_times times;
    struct rank_step step = {.layers = 1, .micros = 1, .forward = 10, .backward = 15, .head = 5};
    step.embedded_bytes = 3;
    step.embedded_messages = 1;
    arrput(step.loads, load(-1, 20, 10));
    arrput(step.loads, load(-1, 2, 0));
    step.loads[0].sent_after = 1;
    rank_timeline(&times, &step, &slow);
    NEAR(times.bytes[RANK_GRADIENTS], 25.0);
    NEAR(times.waiting[RANK_GRADIENTS], 5.0 + 3 + 2);
    NEAR(times.waiting[RANK_WEIGHTS], 10.0);
    NEAR(times.step, 30.0 + 10 + 10);
    arrfree(step.loads);
}

/* A later update hides the weights of an earlier one: the first 5 of 6 + 6 s. */
Test(rank_timeline, updates_hide_weights) {
    struct rank_times times;
    struct rank_step step = {.layers = 1, .micros = 1, .forward = 1, .backward = 1, .head = 1};
    arrput(step.loads, load(-1, 0, 6));
    arrput(step.loads, load(-1, 0, 6));
    step.loads[0].update_bytes = step.loads[1].update_bytes = 5;
    rank_timeline(&times, &step, &slow);
    NEAR(times.alone, 13.0);
    NEAR(times.waiting[RANK_WEIGHTS], 7.0);
    arrfree(step.loads);
}

/* Two messages around a ring of three are four hops, during which nothing else is sent. */
Test(rank_timeline, all_wait_for_the_sums) {
    struct rank_times times;
    struct rank_machine machine = slow;
    struct rank_step step = {.layers = 1,
                             .micros = 1,
                             .forward = 1,
                             .backward = 1,
                             .head = 1,
                             .sum_bytes = 4,
                             .sum_messages = 2};
    machine.latency = 0.5;
    rank_timeline(&times, &step, &machine);
    NEAR(times.waiting[RANK_SUMS], 6.0);
    NEAR(times.step, 9.0);
    NEAR(rank_hidden(times.sending[RANK_SUMS], times.waiting[RANK_SUMS]), 0.0);
    NEAR(rank_hidden(0, 0), 1.0);
}

static struct rank_step random_step(uint64_t seed) {
    struct rank_step step = {.layers = 5, .micros = 1 + (int64_t)(seed % 3)};
    double *work[] = {&step.forward, &step.backward, &step.recompute, &step.head, &step.sum_bytes};
    for (uint64_t i = 0; i < 5; i++) *work[i] = 10 * random_uniform(seed, 1, i);
    for (int i = 0; i < 8; i++) {
        struct rank_load next = load(i % 7 - 1, 20 * random_uniform(seed, 2, (uint64_t)i),
                                     20 * random_uniform(seed, 3, (uint64_t)i));
        next.update_bytes = random_uniform(seed, 4, (uint64_t)i);
        arrput(step.loads, next);
    }
    return step;
}

/* A faster link is never worse. An infinitely fast link costs nothing; a very slow link dominates,
 * and the part that computation hides is negligible. */
Test(rank_timeline, slow_and_fast_links) {
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct rank_step step = random_step(seed);
        double before = INFINITY;
        for (double link = 1e-9; link < 1e10; link *= 3) {
            struct rank_machine machine = slow;
            struct rank_times times;
            machine.link = link;
            rank_timeline(&times, &step, &machine);
            double sending = 0;
            for (int i = 0; i < RANK_TRAFFIC; i++) sending += times.sending[i];
            cr_expect_leq(times.step, before * (1 + 1e-12));
            cr_expect_geq(times.step, times.alone);
            cr_expect_geq(times.step, sending * (1 - 1e-12), "the link is one queue");
            cr_expect_leq(times.step, (times.alone + sending) * (1 + 1e-12));
            if (link < 1e-8) cr_expect_float_eq(times.step / sending, 1, 1e-6);
            if (link > 1e9) cr_expect_float_eq(rank_efficiency(&times), 1, 1e-6);
            before = times.step;
        }
        arrfree(step.loads);
    }
}
