/* Shared by the tests of ./train --audit: a tiny model and its runs. */
#pragma once

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/lab/audit/audit.h"
#include "test/model/masters.h"
#include "test/scratch.h"

#define BIT(id)      (1u << SITE_##id)
#define COUNT(array) (sizeof(array) / sizeof *(array))

static const volatile sig_atomic_t not_stopped = 0;
static const bool both[AUDIT_FORMATS] = {true, true};
static const bool only_fp16[AUDIT_FORMATS] = {[AUDIT_FP16] = true};

static struct config config;     /* at first a tiny one */
static char path[FILE_PATH_MAX]; /* the last checkpoint */

static inline void tiny_config(void) {
    config_defaults(&config);
    strcpy(config.name, "tiny");
    config.device = DEVICE_CPU;
    config.threads = 1;
    config.precision = CONFIG_PRECISION_FP16;
    config.model.n_layer = 2;
    config.model.n_head = 2;
    config.model.n_embd = 32;
    config.model.n_positions = 32;
    config.model.vocab_size = 256;
    strcpy(config.data.train, "tales");
    config.data.seq_len = 32;
    config.train.steps = 200;
    config.train.micro_batch_size = 2;
    config.train.grad_accum_steps = 1;
    config.optimizer.lr = 3e-3;
    config.optimizer.warmup_steps = 5;
}

static inline void set_up_audit(void) {
    make_folder();
    tiny_config();
}

/* Opens a separate trainer as a run does. */
struct run {
    struct config config;
    struct backend be;
    struct source text;
    struct trainer trainer;
};

static inline void open_run(struct run *run) {
    struct precision precision;
    run->config = config;
    cr_assert_eq(setup_backend(&run->be, &config, NULL, NULL, &error), 0, "%s", error.text);
    cr_assert_eq(precision_resolve(&precision, NULL, &config, &run->be, &error), 0, "%s",
                 error.text);
    cr_assert_eq(source_open(&run->text, &config, config.data.train, SOURCE_TRAINING, &error), 0,
                 "%s", error.text);
    cr_assert_eq(trainer_open(&run->trainer, &run->config, &precision, &run->be,
                              TRAINER_INITIALIZED, &error),
                 0, "%s", error.text);
}

static inline void close_run(struct run *run) {
    trainer_close(&run->trainer);
    source_close(&run->text);
    backend_close(&run->be);
}

static inline struct step_report step(struct run *run) {
    struct step_report report;
    cr_assert_eq(trainer_begin_step(&run->trainer, &run->text.loader, &error), 0, "%s", error.text);
    cr_assert_eq(trainer_end_step(&run->trainer, &report, &error), 0, "%s", error.text);
    return report;
}

static inline void save(struct run *run) {
    cr_assert_eq(checkpoint_save(&run->trainer, in_folder("run"), path, &error), 0, "%s",
                 error.text);
}

struct setting {
    const char *parameter;
    float value; /* new value of all elements */
    float times; /* if not 0, elements are multiplied by this instead */
};

static inline void set(struct model *model, const struct setting *setting) {
    for (int i = 0; i < (int)arrlen(model->list); i++) {
        if (strcmp(model->list[i].name, setting->parameter) != 0) continue;
        float *all = masters_values(model), *values = all + model->list[i].offset;
        for (int64_t k = 0; k < parameter_count(&model->list[i]); k++)
            values[k] = setting->times != 0 ? values[k] * setting->times : setting->value;
        masters_put(model, all);
        free(all);
        return;
    }
    cr_assert_fail("no parameter %s", setting->parameter);
}

/* Trains `steps` steps, sets parameters and saves. */
static inline void make_checkpoint(int steps, const struct setting *settings, int count) {
    struct run run;
    open_run(&run);
    for (int i = 0; i < steps; i++) step(&run);
    for (int i = 0; i < count; i++) set(&run.trainer.model, &settings[i]);
    save(&run);
    close_run(&run);
}

static inline struct audit *audit_of(const char *from, const bool wanted[AUDIT_FORMATS],
                                     int repetitions) {
    struct audit *audit = calloc(1, sizeof *audit);
    cr_assert_not_null(audit);
    cr_assert_eq(audit_run(audit, &config, from, wanted, repetitions, &not_stopped, &error), 0,
                 "%s", error.text);
    return audit;
}

static inline void close_audit(struct audit *audit) {
    audit_free(audit);
    free(audit);
}

/* The result is valid until the next call. */
static inline const char *id_text(int id) {
    static char label[TENSOR_ID_LABEL_MAX];
    return tensor_id_label(label, id, -1);
}
