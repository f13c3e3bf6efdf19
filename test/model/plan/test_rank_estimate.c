/* The traffic of the estimate is compared with collectives that count bytes; its memory and work
 * are compared with small calculations. */
#include "kernels/collectives.h"
#include "model/config/config_check.h"
#include "test/model/trainer_fixture.h"

#include "model/plan/rank_estimate.h"

enum { RANKS = 4, MOST = 64 };

/* Counted calls, in their order. */
struct count {
    int scattered, gathered;
    double scatters[MOST], gathers[MOST]; /* bytes of the arrays */
};

static uint64_t count_scatter(const struct collectives *c, void *data, enum dtype dtype,
                              int64_t count) {
    struct count *counts = c->state;
    (void)data;
    cr_assert_lt(counts->scattered, MOST);
    counts->scatters[counts->scattered++] = (double)count * (double)dtype_bytes(dtype);
    return 0;
}

static uint64_t count_gather(const struct collectives *c, void *data, size_t bytes, int64_t count) {
    struct count *counts = c->state;
    struct rank_part own = ranks_part(count, RANKS, 0);
    cr_assert_lt(counts->gathered, MOST);
    for (int rank = 1; rank < RANKS; rank++) { /* as if all ranks had the data of this one */
        struct rank_part other = ranks_part(count, RANKS, rank);
        memcpy((char *)data + (size_t)other.first * bytes, data, (size_t)own.count * bytes);
    }
    counts->gathers[counts->gathered++] = (double)count * (double)bytes;
    return 0;
}

static void no_wait(const struct collectives *c, uint64_t ticket) {
    (void)c, (void)ticket;
}

static void no_close(const struct collectives *c) {
    (void)c;
}

/* Takes a training step as rank 0 of RANKS, without the others. */
static void count_step(struct count *counts, struct rig *rig) {
    static const struct collective_functions functions = {count_scatter, count_gather, no_wait,
                                                          no_close, NULL};
    struct ranks ranks = {.rank = 0, .size = RANKS, .local_size = 1};
    struct collectives counting = {&ranks, &functions, counts, "counts"};
    const struct collectives *own = rig->be.collectives;
    *counts = (struct count){0};
    rig->be.collectives = &counting;
    rig_open_data(rig);
    cr_assert_eq(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                              TRAINER_INITIALIZED, &rig->error),
                 0, "%s", rig->error.text);
    rig_step(rig);
    trainer_wait_for_weights(&rig->trainer);
    trainer_close(&rig->trainer);
    loader_close(&rig->loader);
    tokens_close(&rig->tokens);
    rig->be.collectives = own;
}

static struct rank_estimate estimate_of(struct rig *rig, int ranks, double flops, double link) {
    struct rank_estimate estimate;
    struct rank_request request = {&rig->config, &rig->be, ranks, flops, link};
    const struct collectives *before = rig->be.collectives;
    cr_assert_eq(rank_estimate_open(&estimate, &request, &rig->error), 0, "%s", rig->error.text);
    cr_expect_eq(rig->be.collectives, before);
    return estimate;
}

static double sum(const double *values, int count) {
    double total = 0;
    for (int i = 0; i < count; i++) total += values[i];
    return total;
}

/* Compares bytes and messages of a step, and the order of buckets. */
static void expect_counted(struct rig *rig, const char *what) {
    struct count counts;
    const double part = (double)(RANKS - 1) / RANKS;
    config_resolve(&rig->config);
    cr_assert_eq(config_split_batch(&rig->config, 1, &rig->error), 0);
    rig_open_backend(rig, test_device(), 1);
    struct rank_estimate estimate = estimate_of(rig, RANKS, 0, 0);
    const struct rank_step *step = &estimate.step;
    count_step(&counts, rig);
    bool divided = rig->config.ranks.shard == CONFIG_SHARD_OPTIMIZER;
    double gradients = sum(counts.scatters, counts.scattered);
    double others = sum(counts.gathers, counts.gathered);
    if (!divided) gradients *= 2, others -= gradients / 2;
    double embedded = step->embedded_bytes / part;
    gradients += embedded, others -= embedded;
    cr_expect_float_eq(estimate.times.bytes[RANK_GRADIENTS], part * gradients, 0.5,
                       "%s: %g, not %g", what, estimate.times.bytes[RANK_GRADIENTS],
                       part * gradients);
    double said = estimate.times.bytes[RANK_SUMS] + estimate.times.bytes[RANK_WEIGHTS];
    cr_expect_float_eq(said, part * others, 0.5, "%s: %g, not %g", what, said, part * others);
    cr_expect_eq(estimate.times.bytes[RANK_WEIGHTS] > 0, divided, "%s", what);
    int at = 0, messages = step->embedded_messages + step->sum_messages;
    for (int64_t turn = step->layers; turn >= -1; turn--)
        for (ptrdiff_t i = 0; i < arrlen(step->loads); i++) {
            const struct rank_load *load = &step->loads[i];
            if (load->sent_after != turn) continue;
            double bytes = part * counts.scatters[at++] * (divided ? 1 : 2);
            cr_expect_float_eq(load->gradient_bytes, bytes, 0.5, "%s: %d: %g, not %g", what, at,
                               load->gradient_bytes, bytes);
            messages += load->weight_messages + load->gradient_messages - 1;
        }
    cr_expect_eq(at, counts.scattered, "%s", what);
    cr_expect_eq(messages, counts.gathered, "%s: %d, not %d", what, messages, counts.gathered);
    cr_expect_float_eq(step->embedded_bytes,
                       part * sum(counts.gathers, divided ? step->embedded_messages : 0), 0.5, "%s",
                       what);
    at = step->embedded_messages + step->sum_messages;
    for (ptrdiff_t i = 0; divided && i < arrlen(step->loads); i++) {
        double bytes = sum(&counts.gathers[at], step->loads[i].weight_messages);
        cr_expect_float_eq(step->loads[i].weight_bytes, part * bytes, 0.5, "%s: %d", what, (int)i);
        at += step->loads[i].weight_messages;
    }
    rank_estimate_close(&estimate);
    backend_close(&rig->be);
}

Test(rank_estimate, sends_what_training_sends) {
    static const enum config_copy copies[] = {CONFIG_COPY_SPLIT, CONFIG_COPY_KEPT,
                                              CONFIG_COPY_CAST};
    for (size_t p = 0; p < COUNT(rig_precisions); p++)
        for (size_t copy = 0; copy < COUNT(copies); copy++) {
            struct rig rig = {0};
            char what[64];
            bool splits = rig_precisions[p] == CONFIG_PRECISION_BF16;
            if (copies[copy] == CONFIG_COPY_SPLIT && !splits) continue;
            rig_config(&rig.config, rig_precisions[p]);
            rig.config.weights.copy = copies[copy];
            snprintf(what, sizeof what, "precision %zu, copy %zu", p, copy);
            expect_counted(&rig, what);
        }
}

Test(rank_estimate, sends_what_training_sends_with_other_settings) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.ranks.gradients = CONFIG_DTYPE_LOWER;
    expect_counted(&rig, "gradients that travel in 16 bit");
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.gradients.dtype = CONFIG_DTYPE_LOWER;
    expect_counted(&rig, "gradients in 16 bit");
    rig_config(&rig.config, CONFIG_PRECISION_FP16);
    rig.config.ranks.shard = CONFIG_SHARD_NONE;
    expect_counted(&rig, "an optimizer that is not divided");
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    set_family(&rig.config, 1);
    expect_counted(&rig, "a Llama, with a head of its own");
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.model.vocab_size = 2 * RANKS * 2 * RIG_LENGTH + 100;
    expect_counted(&rig, "a vocabulary beside which the rows of a micro-batch are few");
    rig_config(&rig.config, CONFIG_PRECISION_BF16);
    rig.config.optimizer.name = CONFIG_OPTIMIZER_MUON;
    expect_counted(&rig, "Muon, whose momentum is gathered");
}

/* Sizes without padding: matrices of 12 W^2 in a layer, wte of 128 rows, wpe of 32; vectors of 13 W
 * a layer and 2 W at the end. In fp32 all gradients and weights have 4 bytes. */
Test(rank_estimate, bytes_by_hand) {
    enum { WIDTH = 128, LAYERS = 2, VOCABULARY = 128, RANK_COUNT = 8 };
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_embd = WIDTH;
    rig.config.model.n_layer = LAYERS;
    rig.config.model.vocab_size = VOCABULARY;
    rig_open_backend(&rig, test_device(), 1);
    struct rank_estimate estimate = estimate_of(&rig, RANK_COUNT, 0, 0);
    double all =
        LAYERS * (12 * WIDTH * WIDTH + 13 * WIDTH) + 2 * WIDTH + (VOCABULARY + RIG_LENGTH) * WIDTH;
    cr_expect_eq(estimate.times.bytes[RANK_GRADIENTS], 4 * all * 7 / 8);
    cr_expect_eq(estimate.times.bytes[RANK_WEIGHTS], 4 * all * 7 / 8);
    cr_expect_eq(arrlen(estimate.step.loads), LAYERS + 3);
    cr_expect_eq((double)estimate.alone.moments, 8 * all);
    /* The vectors are 28 blocks of 128 elements: three for each rank, and four more for the last.
     * All other tensors are divided evenly. */
    cr_expect_eq((double)estimate.each.moments, 8 * ((all - 28 * 128) / 8 + 7 * 128));
    cr_expect_eq(estimate.each.master, estimate.alone.master);
    cr_expect_eq(estimate.each.activations, estimate.alone.activations);
    cr_expect_gt(estimate.each.exchange, 0);
    cr_expect_eq(estimate.step_tokens, RANK_COUNT * 2 * 2 * RIG_LENGTH);
    rank_estimate_close(&estimate);
    backend_close(&rig.be);
}

/* Six operations per matrix parameter and token, plus attention. One process spends no time on
 * anything else except the update. */
Test(rank_estimate, work_by_hand) {
    enum { WIDTH = 128, LAYERS = 3, VOCABULARY = 256, TOKENS_OF_MICRO = 2 * RIG_LENGTH };
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig.config.model.n_embd = WIDTH;
    rig.config.model.n_layer = LAYERS;
    rig.config.model.vocab_size = VOCABULARY;
    rig_open_backend(&rig, test_device(), 1);
    struct rank_estimate estimate = estimate_of(&rig, 2, 1e9, 1e9);
    double matrices = LAYERS * 12 * WIDTH * WIDTH + VOCABULARY * WIDTH;
    /* Scores and values: half of the positions on average, 2 x 2 operations; backward 2.5 times. */
    double attention = 3.5 * LAYERS * 4 * (0.5 * RIG_LENGTH) * WIDTH;
    double operations = 2 * TOKENS_OF_MICRO * (6 * matrices + attention);
    double seconds = operations / 1e9;
    cr_expect_float_eq(estimate.times.alone / seconds, 1, 1e-4);
    cr_expect_gt(estimate.times.step, estimate.times.alone);
    double bytes = estimate.times.bytes[RANK_GRADIENTS];
    cr_expect_float_eq(estimate.times.sending[RANK_GRADIENTS],
                       bytes / 1e9 + (double)arrlen(estimate.step.loads) * RANK_LATENCY, 1e-9);
    rank_estimate_close(&estimate);

    rig.config.train.recompute = CONFIG_RECOMPUTE_LAYER;
    struct rank_estimate longer = estimate_of(&rig, 2, 1e9, 1e9);
    cr_expect_gt(longer.times.alone, 1.1 * seconds);
    cr_expect_lt(longer.times.alone, 4.0 / 3 * seconds);
    rank_estimate_close(&longer);
    backend_close(&rig.be);
}

Test(rank_estimate, assumes_and_refuses) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open_backend(&rig, test_device(), 1);
    struct rank_estimate estimate = estimate_of(&rig, 2, 0, 0);
    cr_expect_eq(estimate.machine.flops, 40e12);
    cr_expect_eq(estimate.machine.link, 50e9);
    rank_estimate_close(&estimate);
    rig.config.precision = CONFIG_PRECISION_FP16;
    estimate = estimate_of(&rig, 2, 0, 0);
    cr_expect_eq(estimate.machine.flops, 400e12);
    rank_estimate_close(&estimate);

    rig.config.train.batch_tokens = 6 * 2 * RIG_LENGTH; /* six micro-batches */
    estimate = estimate_of(&rig, 3, 0, 0);
    cr_expect_eq(estimate.config.train.grad_accum_steps, 2);
    cr_expect_eq(estimate.step.micros, 2);
    cr_expect_eq(estimate.step_tokens, 6 * 2 * RIG_LENGTH);
    rank_estimate_close(&estimate);
    struct rank_request uneven = {&rig.config, &rig.be, 4, 0, 0};
    cr_expect_eq(rank_estimate_open(&estimate, &uneven, &rig.error), -1);
    cr_expect_not_null(strstr(rig.error.text, "train.batch_tokens"));
    rank_estimate_close(&estimate);
    backend_close(&rig.be);
}
