/* Whole trainings by several ranks, which are threads of this process over the real MPI engine.
 * They give the answer of one rank, also in validations, and all ranks decide alike if one of them
 * has non-finite values. */
#include "kernels/collectives.h"
#include "model/config/config_check.h"
#include "test/model/trainer_fixture.h"
#include "test/ranks_world.h"

#include "model/task/evaluate.h"

TestSuite(trainer_ranks, .timeout = 300);

enum {
    STEPS = 6,
    MICROS = 12,             /* sum over all ranks */
    LARGE_VOCABULARY = 1200, /* large enough that the embedding's gradient is sent as rows */
};

struct run {
    int family;
    int vocabulary; /* 0: the rig's, whose gradient is sent whole */
    enum config_precision precision;
    enum config_shard shard;
    enum config_dtype wire_dtype;
    enum config_optimizer optimizer;
    bool given_order;       /* samples after the change of the batch are cut out beforehand */
    int bad_rank, bad_step; /* rank and step of non-finite weights; -1: never */
    struct step_report reports[WORLD_RANKS_MAX][STEPS];
    float *masters; /* rank 0's master weights after training */
    int64_t count, own[WORLD_RANKS_MAX];
};

static void open_rig(struct rig *rig, const struct run *run, const struct ranks *ranks,
                     int64_t micro_batch) {
    struct backend_options options = {.device = DEVICE_CPU, .threads = 1, .ranks = ranks};
    rig_config(&rig->config, run->precision);
    set_family(&rig->config, run->family);
    if (run->vocabulary) rig->config.model.vocab_size = run->vocabulary;
    rig->config.optimizer.lr = 3e-4;
    rig->config.train.micro_batch_size = micro_batch;
    rig->config.train.batch_tokens = MICROS * micro_batch * RIG_LENGTH;
    rig->config.ranks.shard = run->shard;
    rig->config.ranks.gradients = run->wire_dtype;
    rig->config.optimizer.name = run->optimizer;
    rig->config.optimizer.newton_schulz_dtype = CONFIG_NEWTON_SCHULZ_F32;
    world_requires(config_split_batch(&rig->config, ranks->size, &rig->error) == 0,
                   rig->error.text);
    rig_open_data(rig);
    world_requires(backend_open(&rig->be, &options, &rig->error) == 0, rig->error.text);
    world_requires(precision_resolve(&rig->precision, NULL, &rig->config, &rig->be, &rig->error) ==
                       0,
                   rig->error.text);
    world_requires(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                                TRAINER_INITIALIZED, &rig->error) == 0,
                   rig->error.text);
    bool rows = rig->trainer.optimizer.exchange.embedded_rows > 0;
    world_requires(rows == (ranks->size > 1 && run->vocabulary > 0),
                   "wte is sent in the wrong form");
}

/* The weight of one rank becomes NaN for one step, and with it only that rank's gradients. */
static void step(struct rig *rig, struct run *run, const struct ranks *ranks, int at) {
    struct model *model = &rig->trainer.model;
    bool sick = run->bad_rank == ranks->rank && run->bad_step == at;
    int64_t last = parameter_wte(model->list)->offset; /* in a table that every batch reads */
    float before[RIG_VOCABULARY], nan[RIG_VOCABULARY];
    for (int i = 0; i < RIG_VOCABULARY; i++) nan[i] = NAN;
    trainer_wait_for_weights(&rig->trainer);
    if (sick) {
        masters_download(&model->masters, model->be, before, last, RIG_VOCABULARY);
        masters_upload(&model->masters, model->be, nan, last, RIG_VOCABULARY);
        masters_refresh(&model->masters, model->be);
    }
    run->reports[ranks->rank][at] = rig_step(rig);
    trainer_wait_for_weights(&rig->trainer);
    if (!sick) return;
    masters_upload(&model->masters, model->be, before, last, RIG_VOCABULARY);
    masters_refresh(&model->masters, model->be);
}

static void train(const struct ranks *ranks, void *argument) {
    struct run *run = argument;
    struct rig rig = {0};
    open_rig(&rig, run, ranks, 1);
    for (int i = 0; i < STEPS; i++) step(&rig, run, ranks, i);
    run->own[ranks->rank] = rig.trainer.optimizer.exchange.shards.moment_count[0];
    exchange_masters(&rig.trainer.optimizer.exchange);
    if (ranks->rank == 0) {
        run->count = rig.trainer.model.count;
        run->masters = masters_values(&rig.trainer.model);
    }
    rig_close(&rig);
}

/* Replaces the text by its samples from `first` on, cut out in the documented order. */
static void use_samples_from(struct rig *rig, uint64_t first, uint64_t count) {
    const uint64_t tokens = rig->tokens.count, sequences = rig->loader.sequence_count;
    struct tokens samples = {0};
    world_requires(tokens % RIG_LENGTH != 1 && first < sequences && first + count > sequences,
                   "an epoch ends among the samples, and one of them is filled up");
    for (uint64_t k = first; k < first + count; k++) {
        uint64_t sequence =
            random_permute(rig->loader.options.seed, k / sequences, k % sequences, sequences);
        uint64_t start = sequence * RIG_LENGTH, left = tokens - start;
        rig_add_shard(&samples, rig, start, left < RIG_LENGTH + 1 ? left : RIG_LENGTH + 1);
    }
    rig_use_shards(rig, &samples);
    rig->trainer.state.next_sample = 0;
}

/* After half of the steps each one has four times the micro-batches. */
static void train_larger(const struct ranks *ranks, void *argument) {
    struct run *run = argument;
    struct rig rig = {0};
    open_rig(&rig, run, ranks, 1);
    for (int i = 0; i < STEPS; i++) {
        if (i == STEPS / 2) {
            const uint64_t first = STEPS / 2 * MICROS, count = 4 * first;
            rig.config.train.grad_accum_steps *= 4;
            if (run->given_order) use_samples_from(&rig, first, count);
        }
        run->reports[ranks->rank][i] = rig_step(&rig);
    }
    trainer_wait_for_weights(&rig.trainer);
    rig_close(&rig);
}

static struct run trained(int ranks, struct run run) {
    world_run(ranks, 4096, true, train, &run);
    return run;
}

static double distance(const struct run *a, const struct run *b) {
    double worst = 0;
    for (int64_t i = 0; i < a->count; i++)
        worst = fmax(worst, fabs((double)a->masters[i] - (double)b->masters[i]));
    return worst;
}

/* Losses of about 4 have units of 4.8e-7. A weight moves by at most lr = 3e-4 a step whatever
 * the size of its gradient, so weights whose gradient is rounding noise differ. On the whole
 * they must not: hence a fraction of the largest change in six steps. */
static void expect_same_answer(const struct run *one, const struct run *many, int ranks,
                               const char *what) {
    for (int i = 0; i < STEPS; i++)
        for (int rank = 0; rank < ranks; rank++)
            cr_expect_float_eq(many->reports[rank][i].loss, one->reports[0][i].loss, 5e-6,
                               "%s, %d ranks, step %d: loss %.9g, alone %.9g", what, ranks, i,
                               many->reports[rank][i].loss, one->reports[0][i].loss);
    cr_expect_lt(distance(one, many), 2e-4, "%s, %d ranks: masters differ by %g", what, ranks,
                 distance(one, many));
    int64_t all = 0;
    for (int rank = 0; rank < ranks; rank++) all += many->own[rank];
    cr_expect_eq(all, many->count, "%s: parts of %d ranks", what, ranks);
}

Test(trainer_ranks, all_families_match_one_rank) {
    struct rig names;
    for (int i = 0; i < 2 * FAMILIES; i++) {
        int family = i / 2;
        struct run run = {.family = family, .bad_rank = -1};
        run.vocabulary = i % 2 ? LARGE_VOCABULARY : 0;
        rig_config(&names.config, CONFIG_PRECISION_FP32);
        const char *name = set_family(&names.config, family);
        struct run one = trained(1, run);
        for (int ranks = 2; ranks <= 4; ranks++) {
            struct run many = trained(ranks, run);
            expect_same_answer(&one, &many, ranks, name);
            free(many.masters);
        }
        free(one.masters);
    }
}

/* The samples after a change of the batch are those that follow, on any number of ranks. */
Test(trainer_ranks, a_larger_batch_continues_with_the_next_sample) {
    struct run given = {.given_order = true, .bad_rank = -1}, one = {.bad_rank = -1};
    world_run(1, 4096, true, train_larger, &given);
    world_run(1, 4096, true, train_larger, &one);
    for (int i = 0; i < STEPS; i++)
        cr_expect_eq(one.reports[0][i].loss, given.reports[0][i].loss, "step %d", i);
    for (int ranks = 2; ranks <= 3; ranks++) {
        struct run many = {.bad_rank = -1};
        world_run(ranks, 4096, true, train_larger, &many);
        for (int i = 0; i < STEPS; i++)
            for (int rank = 0; rank < ranks; rank++)
                cr_expect_float_eq(many.reports[rank][i].loss, given.reports[0][i].loss, 5e-6,
                                   "%d ranks, step %d: loss %.9g, in the given order %.9g", ranks,
                                   i, many.reports[rank][i].loss, given.reports[0][i].loss);
    }
}

/* Ranks orthogonalize the matrices that overlap their parts. */
Test(trainer_ranks, other_optimizers_match_one_rank) {
    for (int i = 0; i < 2 * FAMILIES; i++) {
        struct run run = {.family = i / 2, .bad_rank = -1};
        run.optimizer = i % 2 ? CONFIG_OPTIMIZER_MUON : CONFIG_OPTIMIZER_SGD;
        struct run one = trained(1, run);
        for (int ranks = 2; ranks <= 3; ranks++) {
            struct run many = trained(ranks, run);
            expect_same_answer(&one, &many, ranks, i % 2 ? "muon" : "sgd");
            free(many.masters);
        }
        free(one.masters);
    }
}

Test(trainer_ranks, an_optimizer_that_is_not_divided_gives_the_same_bits) {
    for (size_t i = 0; i < 2 * COUNT(rig_precisions); i++) {
        struct run run = {.precision = rig_precisions[i / 2], .bad_rank = -1};
        run.optimizer = i % 2 ? CONFIG_OPTIMIZER_MUON : CONFIG_OPTIMIZER_ADAMW;
        run.vocabulary = LARGE_VOCABULARY;
        struct run divided = trained(3, run);
        run.shard = CONFIG_SHARD_NONE;
        struct run whole = trained(3, run);
        cr_expect_eq(
            memcmp(divided.masters, whole.masters, (size_t)divided.count * sizeof *divided.masters),
            0, "precision %zu", i / 2);
        cr_expect_eq(whole.own[2], whole.count);
        free(divided.masters);
        free(whole.masters);
    }
}

Test(trainer_ranks, gradients_sent_in_16_bit_are_near) {
    struct run run = {.precision = CONFIG_PRECISION_BF16, .bad_rank = -1};
    run.vocabulary = LARGE_VOCABULARY;
    struct run exact = trained(2, run);
    run.wire_dtype = CONFIG_DTYPE_LOWER;
    struct run lower = trained(2, run);
    bool same = true;
    for (int i = 0; i < STEPS; i++) {
        float a = exact.reports[0][i].gradient_norm, b = lower.reports[0][i].gradient_norm;
        same = same && a == b;
        /* Each gradient is off by at most 2^-9 of itself for each rank. */
        cr_expect_lt(fabsf(a / b - 1), 0x1p-7f, "step %d: norms %g and %g", i, a, b);
    }
    cr_expect_not(same, "nothing was rounded");
    free(exact.masters);
    free(lower.masters);
}

Test(trainer_ranks, an_infinite_gradient_on_one_rank_is_skipped_on_all) {
    for (size_t i = 0; i < COUNT(rig_precisions); i++) {
        struct run run = {.precision = rig_precisions[i], .bad_rank = 1, .bad_step = 2};
        run.optimizer = i % 2 ? CONFIG_OPTIMIZER_MUON : CONFIG_OPTIMIZER_ADAMW;
        struct run sick = trained(3, run);
        for (int at = 0; at < STEPS; at++)
            for (int rank = 0; rank < 3; rank++) {
                const struct step_report *report = &sick.reports[rank][at];
                cr_expect_eq(report->skipped, at == 2, "precision %zu, rank %d, step %d", i, rank,
                             at);
                cr_expect_eq(report->loss_scale, sick.reports[0][at].loss_scale);
            }
        free(sick.masters);
    }
}

enum { VALIDATED = 9, MICRO_BATCHES = 8 };

struct validation {
    int64_t micro_batch;
    double alone[VALIDATED], targets[VALIDATED]; /* loss and number of targets of a sequence */
    double all[WORLD_RANKS_MAX][VALIDATED];      /* loss of the first 1, 2 .. sequences */
    double one[WORLD_RANKS_MAX][VALIDATED];      /* the same with eval.batches 1 */
};

static double validate(struct rig *rig, uint64_t sequences, int64_t batches) {
    double loss = -1;
    rig->config.eval.batches = batches;
    rig->loader.sequence_count = sequences;
    int64_t count = evaluate_sequences(&rig->config, &rig->loader);
    world_requires(trainer_evaluate(&rig->trainer, &loss, &rig->loader, count, &rig->error) == 0,
                   rig->error.text);
    return loss;
}

/* Masks all targets but those of one sequence. */
static void measure_alone(struct rig *rig, struct validation *v, const uint8_t *whole) {
    for (int sequence = 0; sequence < VALIDATED; sequence++) {
        uint8_t mask[RIG_MASK_BYTES] = {0};
        v->targets[sequence] = 0;
        for (int t = sequence * RIG_LENGTH + 1; t <= (sequence + 1) * RIG_LENGTH; t++) {
            mask[t / 8] |= whole[t / 8] & (uint8_t)(1 << t % 8);
            v->targets[sequence] += whole[t / 8] >> t % 8 & 1;
        }
        rig->tokens.shards[0].mask.bits = mask;
        v->alone[sequence] = validate(rig, VALIDATED, VALIDATED);
    }
}

static void validate_on_ranks(const struct ranks *ranks, void *argument) {
    struct validation *v = argument;
    struct run run = {.bad_rank = -1};
    struct rig rig = {0};
    uint8_t mask[RIG_MASK_BYTES];
    open_rig(&rig, &run, ranks, v->micro_batch);
    rig.loader.options.shuffle = false;
    rig_mask(mask);
    for (int i = 0; i < VALIDATED; i++)
        mask[(i * RIG_LENGTH + 8) / 8] |= 1; /* none has no target */
    if (ranks->size == 1 && v->micro_batch == 1) measure_alone(&rig, v, mask);
    rig.tokens.shards[0].mask.bits = mask;
    for (int i = 0; i < VALIDATED; i++) {
        v->all[ranks->rank][i] = validate(&rig, (uint64_t)i + 1, VALIDATED);
        v->one[ranks->rank][i] = validate(&rig, (uint64_t)i + 1, 1);
    }
    rig.tokens.shards[0].mask.bits = NULL;
    rig_close(&rig);
}

static double mean_of(const struct validation *v, int64_t sequences) {
    double total = 0, targets = 0;
    for (int64_t i = 0; i < sequences; i++) {
        total += v->alone[i] * v->targets[i];
        targets += v->targets[i];
    }
    return total / targets;
}

/* Sums of fp32 in another order: the difference is some 2^-24 of the loss. */
Test(trainer_ranks, validation_counts_each_sequence_once_for_any_batch) {
    struct validation v = {.micro_batch = 1};
    for (int ranks = 1; ranks <= 3; ranks++)
        for (v.micro_batch = 1; v.micro_batch <= MICRO_BATCHES; v.micro_batch++) {
            world_run(ranks, 4096, true, validate_on_ranks, &v);
            for (int i = 0; i < ranks * VALIDATED; i++) {
                int rank = i / VALIDATED, last = i % VALIDATED;
                int64_t most = last < 8 ? last + 1 : 8; /* whatever the micro-batch */
                cr_expect_float_eq(v.all[rank][last], mean_of(&v, last + 1), 2e-6,
                                   "%d sequences, micro-batch %d, %d ranks: %.9g, not %.9g",
                                   last + 1, (int)v.micro_batch, ranks, v.all[rank][last],
                                   mean_of(&v, last + 1));
                cr_expect_float_eq(v.one[rank][last], mean_of(&v, most), 2e-6);
            }
        }
}
