/* Shared by the tests of model/checkpoint: a run directory and a trainer of a tiny model. Its
 * vocabulary has padding, and its sizes are odd where possible. */
#pragma once

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "data/util/random.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_directory.h"
#include "test/model/masters.h"
#include "test/notes.h"
#include "test/scratch.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

struct subject {
    struct config config;
    struct precision precision;
    struct backend be;
    struct trainer trainer;
};

static inline void subject_config(struct config *config, enum config_precision precision) {
    config_defaults(config);
    strcpy(config->name, "subject");
    config->precision = precision;
    config->model.n_layer = 2;
    config->model.n_head = 3;
    config->model.n_embd = 24;
    config->model.n_positions = 16;
    config->model.vocab_size = 300;
    config->data.seq_len = 13;
    config->train.steps = 100;
    config->train.micro_batch_size = 2;
    config->train.grad_accum_steps = 2;
}

/* Opens a subject with subject->config. */
static inline void subject_open_with(struct subject *subject, enum trainer_memory memory) {
    struct error reason = {0};
    cr_assert_eq(backend_open(&subject->be,
                              &(const struct backend_options){DEVICE_CPU, .threads = 1}, &reason),
                 0, "%s", reason.text);
    cr_assert_eq(
        precision_resolve(&subject->precision, NULL, &subject->config, &subject->be, &reason), 0,
        "%s", reason.text);
    cr_assert_eq(trainer_open(&subject->trainer, &subject->config, &subject->precision,
                              &subject->be, memory, &reason),
                 0, "%s", reason.text);
}

static inline void subject_open(struct subject *subject) {
    subject_open_with(subject, TRAINER_INITIALIZED);
}

static inline void subject_open_tiny(struct subject *subject, enum config_precision precision) {
    subject_config(&subject->config, precision);
    subject_open(subject);
}

static inline void subject_open_moments(struct subject *subject, enum config_moments moments) {
    subject_config(&subject->config, CONFIG_PRECISION_BF16);
    subject->config.optimizer.moments = moments;
    subject->config.optimizer.min_8bit_size = 0; /* matrices of a tiny model too */
    subject_open(subject);
}

static inline void subject_close(struct subject *subject) {
    trainer_close(&subject->trainer);
    backend_close(&subject->be);
}

/* Split master weights keep the upper half of a NaN, which makes it quiet. */
static inline float any_bits(uint64_t random) {
    uint32_t bits = (uint32_t)random;
    float value;
    if ((bits & 0x7fffffff) > 0x7f800000) bits = (bits | 0x400000) & 0xffff0000;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Sets every weight, both moments and the state values to bits that depend on step alone. NaN
 * and infinities are included, because a file must keep them all. Uses no threads, so a forked
 * child may call it. */
static inline void subject_fill(struct subject *subject, int64_t step) {
    struct model *model = &subject->trainer.model;
    struct optimizer *optimizer = &subject->trainer.optimizer;
    for (size_t a = 0; a < 3; a++) {
        float *values = calloc((size_t)model->count, sizeof *values);
        for (ptrdiff_t i = 0; i < arrlen(model->list); i++)
            for (int64_t k = 0; k < parameter_count(&model->list[i]); k++)
                values[model->list[i].offset + k] =
                    any_bits(random_bits((uint64_t)step, a * 1000 + (size_t)i, (uint64_t)k));
        if (a == 0) masters_put(model, values);
        else optimizer_upload(optimizer, (int)a - 1, values, 0, model->count);
        free(values);
    }
    struct training_state *state = &subject->trainer.state;
    state->step = step;
    state->tokens = step * 52;
    state->next_sample = step * 4;
    state->scaler = (struct step_state){
        .loss_scale = subject->precision.scale_loss ? 65537.5f : 1,
        .growth_tracker = subject->precision.scale_loss ? 17 : 0,
        .updates = (int32_t)(step / 2),
        .skipped = 3,
        .skipped_in_row = 2,
        .at_floor = 1,
    };
    trainer_restore_scaler(&subject->trainer);
}

static inline void expect_same_bytes(const struct tensor *a, const struct tensor *b,
                                     const char *what) {
    if (!a->data && !b->data) return;
    cr_expect_eq(memcmp(a->data, b->data, tensor_bytes(a)), 0, "%s differ", what);
}

static inline void expect_same_masters(const struct model *a, const struct model *b) {
    float *left = masters_values(a), *right = masters_values(b);
    cr_expect_eq(memcmp(left, right, (size_t)a->count * sizeof *left), 0, "weights differ");
    free(left);
    free(right);
}

/* Hashes all that a step reads: whole arrays, so padding too. */
static inline void expect_same(const struct subject *a, const struct subject *b) {
    const struct model *left = &a->trainer.model, *right = &b->trainer.model;
    expect_same_masters(left, right);
    for (ptrdiff_t i = 0; i < arrlen(left->masters.groups); i++)
        expect_same_bytes(&left->masters.groups[i].copy, &right->masters.groups[i].copy,
                          "16-bit weights");
    const struct optimizer *of_a = &a->trainer.optimizer, *of_b = &b->trainer.optimizer;
    for (int moment = 0; moment < 2; moment++) {
        expect_same_bytes(&of_a->moments[moment], &of_b->moments[moment], "moments");
        expect_same_bytes(&of_a->codes[moment], &of_b->codes[moment], "codes of moments");
        expect_same_bytes(&of_a->scales[moment], &of_b->scales[moment], "scales of moments");
    }
    const struct training_state *p = &a->trainer.state, *q = &b->trainer.state;
    cr_expect_eq(p->step, q->step);
    cr_expect_eq(p->tokens, q->tokens);
    cr_expect_eq(p->next_sample, q->next_sample);
    cr_expect_eq(memcmp(&p->scaler, &q->scaler, sizeof p->scaler), 0, "scaler states differ");
    cr_expect_eq(memcmp(a->trainer.optimizer.state, b->trainer.optimizer.state, sizeof p->scaler),
                 0, "scalers differ");
}

/* Writes the files of a tokenizer that checkpoints look for. The second file contains every byte
 * value. */
static inline const struct tokenizer *toy_tokenizer(void) {
    static char all[256];
    static struct tokenizer tokenizer = {
        .kind = TOKENIZER_GPT2,
        .vocab_size = 300,
        .end_of_text = 299,
        .stop = 299,
        .eos = 299,
        .roles = {-1, -1, -1, -1, -1, -1},
        .files = {{"vocab.json", "{}", 2, ""}, {"merges.txt", all, sizeof all, ""}},
        .file_count = 2,
    };
    for (int i = 0; i < 256; i++) all[i] = (char)i;
    return &tokenizer;
}

static inline void save_step(struct subject *subject, const char *run, int64_t step, char *path) {
    struct error reason = {0};
    subject_fill(subject, step);
    cr_assert_eq(checkpoint_save(&subject->trainer, run, path, &reason), 0, "%s", reason.text);
}

/* Opens a tiny subject, and saves it as the checkpoint of a step in the test's folder. */
static inline void subject_open_saved(struct subject *subject, enum config_precision precision,
                                      int64_t step, char *path) {
    subject_open_tiny(subject, precision);
    save_step(subject, folder, step, path);
}

/* Returns "RUN/checkpoints/NAME" in one of a few buffers used in turn. */
static inline const char *in_checkpoints(const char *run, const char *name) {
    static char paths[4][256];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, sizeof *paths, "%s/checkpoints/%s", run, name);
    return path;
}

/* Returns the names in a directory of the folder, sorted, each followed by a space. */
static inline const char *names_in(const char *directory) {
    static char text[2000];
    struct dirent **entries;
    text[0] = '\0';
    int count = scandir(in_folder("%s", directory), &entries, NULL, alphasort);
    cr_assert_geq(count, 0);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        size_t used = strlen(text);
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            snprintf(text + used, sizeof text - used, "%s ", name);
        free(entries[i]);
    }
    free(entries);
    return text;
}

/* Returns the text of a file in the checkpoint at path, to be freed. */
static inline char *read_text(const char *path, const char *name, size_t *size) {
    char *text, file[FILE_PATH_MAX + 64];
    snprintf(file, sizeof file, "%s/%s", path, name);
    SUCCEEDS(file_read_all(&text, size, file, 1 << 20, &error));
    return text;
}

/* Returns the step of the newest checkpoint, -1 for none; warnings as text, to be freed. */
static inline int64_t newest_step(const char *run, char **warnings) {
    char path[FILE_PATH_MAX];
    struct error reason = {0};
    size_t size;
    FILE *out = open_memstream(warnings, &size);
    int status = checkpoint_newest(path, run, CHECKPOINT_WHOLE, out, &reason);
    fclose(out);
    unfold(*warnings);
    cr_assert_neq(status, -1, "%s", reason.text);
    return status ? -1 : strtoll(strrchr(path, '-') + 1, NULL, 10);
}

/* Expects the checkpoint of a step to be the newest, and no warnings. */
static inline void expect_newest(const char *run, int64_t step) {
    char *warnings;
    cr_expect_eq(newest_step(run, &warnings), step);
    cr_expect_str_eq(warnings, "");
    free(warnings);
}

static inline void expect_text(const char *text, const char *part) {
    cr_expect_not_null(strstr(text, part), "\"%s\" is not in: %s", part, text);
}
