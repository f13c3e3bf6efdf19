/* Batches of which few targets count: the head reads these rows alone, and training is that of a
 * head that reads all rows. */
#include "test/model/trainer_fixture.h"
#include "test/scratch.h"

static struct error error;

static uint8_t mask[RIG_MASK_BYTES];

static void open(struct rig *rig, enum config_precision precision, bool counted, size_t chunk) {
    rig_config(&rig->config, precision);
    rig->config.train.micro_batch_size = 7; /* 224 rows: units of 32 */
    rig->config.masked_share = counted ? 0.92 : 0;
    rig_mask(mask);
    rig_open_data(rig);
    rig->tokens.shards[0].mask.bits = mask;
    rig_open_backend(rig, test_device(), 2);
    if (chunk > 0) rig->be.device.chunk_bytes = chunk;
    SUCCEEDS(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                          TRAINER_INITIALIZED, &error));
}

/* The largest relative differences of losses and norms over some steps. The sums of the weights'
 * gradients have other terms of 0, so their roundings differ. */
static void expect_alike(enum config_precision precision, size_t chunk, double bound) {
    struct rig all = {0}, counted = {0};
    open(&all, precision, false, chunk);
    open(&counted, precision, true, chunk);
    for (int i = 0; i < 6; i++) {
        const struct step_report a = rig_step(&all), b = rig_step(&counted);
        const struct batch_view *view = &counted.trainer.batches.view;
        cr_expect(view->counted > 0 && view->counted <= 64, "%d rows", (int)view->counted);
        cr_expect_eq(all.trainer.batches.view.counted, 0);
        cr_expect(fabs(a.loss / b.loss - 1) <= bound, "step %d: loss %.8g, %.8g", i, a.loss,
                  b.loss);
        cr_expect(fabs(a.gradient_norm / b.gradient_norm - 1) <= 10 * bound,
                  "step %d: norm %.8g, %.8g", i, a.gradient_norm, b.gradient_norm);
    }
    rig_close(&all);
    rig_close(&counted);
}

/* In 16 bit a sum that rounds otherwise moves weights by a rounding of theirs. */
Test(counted, training_is_that_of_all_rows) {
    expect_alike(CONFIG_PRECISION_FP32, 0, 1e-6);
    expect_alike(CONFIG_PRECISION_BF16, 0, 1e-4);
    expect_alike(CONFIG_PRECISION_FP16, 0, 1e-4);
}

Test(counted, in_chunks) {
    expect_alike(CONFIG_PRECISION_FP32, 64 * 64 * sizeof(float), 1e-6);
}

/* A chunk of logits has the rows that count of most batches. One with more has the same losses. */
Test(counted, chunks_have_few_rows) {
    struct rig all = {0}, counted = {0};
    open(&all, CONFIG_PRECISION_FP32, false, 0);
    open(&counted, CONFIG_PRECISION_FP32, true, 0);
    const struct model *few = &counted.trainer.model, *many = &all.trainer.model;
    cr_expect_eq(many->activations.logits.shape[0], 224);
    cr_expect_eq(few->activations.logits.shape[0], 64);
    cr_expect_geq(many->memory.activations - few->memory.activations, (224 - 64) * 64 * 4);
    for (int i = 0; i < RIG_MASK_BYTES; i++) mask[i] |= 0x25;
    for (int i = 0; i < 3; i++) {
        const struct step_report a = rig_step(&all), b = rig_step(&counted);
        const struct batch_view *view = &counted.trainer.batches.view;
        cr_expect(view->counted > 64, "%d rows", (int)view->counted);
        cr_expect(fabs(a.loss / b.loss - 1) <= 1e-6, "step %d: %.8g, %.8g", i, a.loss, b.loss);
        cr_expect(fabs(a.gradient_norm / b.gradient_norm - 1) <= 1e-5, "step %d", i);
    }
    rig_close(&all);
    rig_close(&counted);
}

/* Losses of tokens are the same, and 0 where none counts. */
Test(counted, losses_have_their_rows) {
    struct rig rig = {0};
    open(&rig, CONFIG_PRECISION_FP32, true, 0);
    struct batches *batches = &rig.trainer.batches;
    const int64_t rows = rig.trainer.model.capacity.rows;
    float *counted = malloc((size_t)rows * sizeof *counted), *all = malloc((size_t)rows * 4);
    SUCCEEDS(batches_put(batches, &rig.loader, 0, 7, NULL, &error));
    struct pass pass = batches_pass(batches, &rig.trainer.model, PASS_EVALUATE);
    cr_assert_gt(pass.batch.counted, 0);
    model_forward(&pass);
    for (int which = 0; which < 2; which++) {
        if (which == 1) pass.batch.counted = 0;
        objective_loss(&pass);
        backend_download(&rig.be, which ? all : counted, rig.trainer.model.activations.losses.data,
                         (size_t)rows * sizeof(float));
    }
    int64_t count = 0;
    const int32_t *targets = batches->slots[0].host.targets;
    for (int64_t i = 0; i < rows; i++) {
        cr_expect(fabsf(counted[i] - all[i]) <= 1e-6f * fabsf(all[i]), "row %d", (int)i);
        cr_expect_eq(counted[i] == 0, targets[i] < 0, "row %d", (int)i);
        count += counted[i] != 0;
    }
    cr_expect(count > 0 && count < rows / 4);
    free(counted), free(all);
    rig_close(&rig);
}

/* A batch lists its rows in their order, up to a whole number of units, or none if all are read. */
Test(counted, rows_are_listed) {
    enum { ROWS = 96, UNIT = 32 };
    struct rig rig = {0};
    struct batch batch;
    const struct batch_format format = {
        .batch = 3, .length = 32, .arrays = BATCH_TARGETS, .counted_unit = UNIT};
    rig_config(&rig.config, CONFIG_PRECISION_FP32);
    rig_open_backend(&rig, test_device(), 1);
    SUCCEEDS(batch_open(&batch, &rig.be, &format, &error));
    static const int numbers[] = {0, 1, 31, 32, 33, 64, 65, 96},
                     expected[] = {32, 32, 32, 32, 64, 64, 0, 0};
    for (size_t i = 0; i < COUNT(numbers); i++) {
        for (int r = 0; r < ROWS; r++) batch.host.targets[r] = r * 5 % ROWS < numbers[i] ? 3 : -1;
        batch_count(&batch);
        cr_expect_eq(batch.host.counted, expected[i], "%d", numbers[i]);
        cr_expect_eq(batch.sent.counted, expected[i]);
        for (int r = 0, last = -1; r < ROWS; r++) {
            const int row = batch.host.counted_rows[r];
            cr_expect(r < numbers[i] ? row > last && batch.host.targets[row] == 3 : row == -1);
            if (row >= 0) cr_expect_eq(batch.host.counted_places[row], r);
            else if (batch.host.targets[r] < 0) cr_expect_eq(batch.host.counted_places[r], -1);
            last = row;
        }
    }
    batch_close(&batch);
    backend_close(&rig.be);
}
