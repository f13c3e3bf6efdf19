/* Loss of a text: every sequence counts once, for any batch size. */
#include "model/config/config_keys.h"
#include "test/model/trainer_fixture.h"

#include "model/task/evaluate.h"

/* A model opened for evaluation only, as by --eval, with the weights of the rig's trainer. */
struct eval_rig {
    struct config config;
    struct model model;
    struct batches batches;
    struct step_state *state;
    float *results;
    struct evaluator evaluator;
};

static void eval_open(struct eval_rig *eval, struct rig *rig, int64_t batch) {
    struct backend *be = &rig->be;
    struct model *model = &eval->model;
    struct config *config = &eval->config;
    *config = rig->config;
    config->train.micro_batch_size = batch;
    cr_assert_eq(model_open(model, config, &rig->precision, be, PURPOSE_EVALUATION, &rig->error),
                 0);
    backend_plan_begin(be);
    evaluate_plan(model, config);
    cr_assert_eq(backend_plan_end(be, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(model_allocate(model, &rig->error), 0, "%s", rig->error.text);
    float *weights = masters_values(&rig->trainer.model);
    masters_put(model, weights);
    free(weights);
    cr_assert_eq(batches_open(&eval->batches, model, config, &rig->error), 0);
    eval->state = backend_allocate(be, sizeof *eval->state);
    eval->results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *eval->results);
    eval->evaluator = (struct evaluator){
        .model = model,
        .batches = &eval->batches,
        .state = eval->state,
        .results = {eval->results, eval->results + 1},
    };
}

static void eval_close(struct eval_rig *eval, struct rig *rig) {
    batches_close(&eval->batches);
    backend_host_release(&rig->be, eval->results);
    backend_release(&rig->be, eval->state);
    model_close(&eval->model);
}

static double eval_loss(struct rig *rig, int64_t batch, int64_t sequences) {
    struct eval_rig eval;
    double loss = -1;
    eval_open(&eval, rig, batch);
    cr_assert_eq(evaluate(&eval.evaluator, &loss, &rig->loader, sequences, &rig->error), 0, "%s",
                 rig->error.text);
    eval_close(&eval, rig);
    return loss;
}

/* Evaluation shares activations and has no gradients, yet gives the same bits. */
Test(evaluate, the_loss_of_training_without_its_memory) {
    for (size_t p = 0; p < COUNT(rig_precisions); p++) {
        struct rig rig = {0};
        struct eval_rig eval;
        double expected, loss;
        rig_config(&rig.config, rig_precisions[p]);
        rig_open(&rig, 1);
        rig_steps(&rig, 3);
        cr_assert_eq(trainer_evaluate(&rig.trainer, &expected, &rig.loader, 12, &rig.error), 0);
        eval_open(&eval, &rig, 2);
        cr_expect_lt(memory_total(&eval.model.memory), memory_total(&rig.trainer.model.memory) / 2);
        cr_assert_eq(evaluate(&eval.evaluator, &loss, &rig.loader, 12, &rig.error), 0);
        cr_expect_eq(loss, expected, "%s: %.17g, in training %.17g",
                     config_precision_name(rig_precisions[p]), loss, expected);
        eval_close(&eval, &rig);
        rig_close(&rig);
    }
}

/* 7 sequences one by one, in twos and a remainder, or as one batch that is not full. Sums of
 * fp32 in another order: the difference is some 2^-24 of the loss. */
Test(evaluate, the_last_batch_may_be_smaller) {
    struct rig rig = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    rig_steps(&rig, 3);
    double one_by_one = 0;
    for (int64_t n = 1; n <= 7; n++) {
        double mean = eval_loss(&rig, 1, n), sum = mean * (double)n;
        cr_expect_gt(sum, one_by_one, "sequence %d added nothing", (int)n);
        one_by_one = sum;
    }
    one_by_one /= 7;
    for (int64_t batch = 2; batch <= 9; batch++)
        cr_expect_float_eq(eval_loss(&rig, batch, 7), one_by_one, 1e-6 * one_by_one,
                           "batches of %d", (int)batch);
    rig_close(&rig);
}

/* The mean over the targets that count is the same for all batch sizes, even if some batches
 * have none. */
Test(evaluate, only_what_counts_is_averaged) {
    struct rig rig = {0};
    uint8_t mask[RIG_MASK_BYTES] = {0};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    rig_steps(&rig, 3);
    rig.loader.options.shuffle = false;
    double all = eval_loss(&rig, 1, 7), first = eval_loss(&rig, 1, 1), two = eval_loss(&rig, 2, 2);
    rig.tokens.shards[0].mask.bits = mask;
    memset(mask, 0xff, sizeof mask);
    cr_expect_eq(eval_loss(&rig, 1, 7), all, "all count");
    memset(mask, 0, sizeof mask);
    struct eval_rig none;
    double ignored;
    eval_open(&none, &rig, 2);
    cr_expect_eq(evaluate(&none.evaluator, &ignored, &rig.loader, 7, &rig.error), -1);
    cr_expect_not_null(strstr(rig.error.text, "no token of the first 7 sequences"));
    eval_close(&none, &rig);
    for (int i = 1; i <= RIG_LENGTH; i++) mask[i / 8] |= (uint8_t)(1 << i % 8);
    for (int64_t batch = 1; batch <= 8; batch++)
        cr_expect_float_eq(eval_loss(&rig, batch, 7), first, 1e-6 * first, "the first sequence");
    for (int i = 1; i <= RIG_LENGTH / 2; i++) mask[i / 8] &= (uint8_t) ~(1 << i % 8);
    double half = eval_loss(&rig, 1, 1);
    cr_expect_gt(fabs(half - first), 1e-3 * first);
    for (int i = RIG_LENGTH + 1; i <= 2 * RIG_LENGTH; i++) mask[i / 8] |= (uint8_t)(1 << i % 8);
    double expected = (half * RIG_LENGTH / 2 + (2 * two - first) * RIG_LENGTH) / (1.5 * RIG_LENGTH);
    for (int64_t batch = 1; batch <= 8; batch++)
        cr_expect_float_eq(eval_loss(&rig, batch, 7), expected, 1e-6 * expected, "%d: %g, %g",
                           (int)batch, eval_loss(&rig, batch, 7), expected);
    rig.tokens.shards[0].mask.bits = NULL;
    rig_close(&rig);
}

Test(evaluate, stops_when_asked) {
    struct rig rig = {0};
    struct eval_rig eval;
    volatile sig_atomic_t stop = 2;
    double loss = -1;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    eval_open(&eval, &rig, 2);
    eval.evaluator.stop = &stop;
    cr_expect_eq(evaluate(&eval.evaluator, &loss, &rig.loader, 4, &rig.error), RESULT_STOPPED);
    cr_expect_eq(loss, -1);
    eval_close(&eval, &rig);
    rig_close(&rig);
}

/* A token outside the vocabulary is bad data; the error names it. */
Test(evaluate, bad_data_is_an_error) {
    struct rig rig = {0};
    struct eval_rig eval;
    double loss;
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open(&rig, 1);
    rig.loader.options.shuffle = false;
    rig.tokens.shards[0].owned[2 * RIG_LENGTH + 5] = RIG_VOCABULARY;
    eval_open(&eval, &rig, 2);
    cr_expect_eq(evaluate(&eval.evaluator, &loss, &rig.loader, 4, &rig.error), -1);
    cr_expect_not_null(strstr(rig.error.text, "outside the vocabulary"), "%s", rig.error.text);
    eval_close(&eval, &rig);
    rig_close(&rig);
}
