/* Shared by the tests of model, sample, trainer and report: a tiny model on tokens made in memory.
 * Its vocabulary is padded inside; its tokens have a pattern, so that training lowers the loss. */
#pragma once

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/error.h"
#include "data/util/random.h"
#include "data/util/sha256.h"
#include "kernels/collectives.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_keys.h"
#include "model/optimize/trainer.h"
#include "model/pass/forward.h"
#include "model/task/objective.h"
#include "model/task/sample.h"
#include "test/device.h"
#include "test/model/families.h"
#include "test/model/masters.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum { RIG_VOCABULARY = 61, RIG_LENGTH = 32, RIG_TOKENS = 4000, RIG_MASK_BYTES = RIG_TOKENS / 8 };

struct rig {
    struct config config;
    struct precision precision;
    struct backend be;
    struct tokens tokens;
    struct loader loader;
    struct trainer trainer;
    struct error error;
};

static inline void rig_config(struct config *config, enum config_precision precision) {
    config_defaults(config);
    strcpy(config->name, "rig");
    config->precision = precision;
    config->model.n_layer = 2;
    config->model.n_head = 2;
    config->model.n_embd = 32;
    config->model.n_positions = RIG_LENGTH;
    config->model.vocab_size = RIG_VOCABULARY;
    config->data.seq_len = RIG_LENGTH;
    config->train.steps = 20;
    config->train.micro_batch_size = 2;
    config->train.grad_accum_steps = 2;
    config->optimizer.lr = 3e-3;
    config->loss_scale.init_scale = 1024;
}

static inline void rig_open_data(struct rig *rig) {
    int32_t *tokens = malloc(RIG_TOKENS * sizeof *tokens);
    int vocabulary = (int)rig->config.model.vocab_size, last = 0;
    for (int i = 0; i < RIG_TOKENS; i++) {
        bool jump = random_uniform(7, 1, (uint64_t)i) < 0.2;
        last = jump ? (int)(random_bits(7, 2, (uint64_t)i) % (uint64_t)vocabulary)
                    : (last * 3 + 1) % vocabulary;
        tokens[i] = last;
    }
    struct loader_options options = {.seq_len = (int)rig->config.data.seq_len,
                                     .seed = 5,
                                     .shuffle = true,
                                     .vocab_size = vocabulary};
    cr_assert_eq(tokens_from_memory(&rig->tokens, tokens, RIG_TOKENS, "rig", &rig->error), 0, "%s",
                 rig->error.text);
    cr_assert_eq(loader_open(&rig->loader, &rig->tokens, &options, &rig->error), 0, "%s",
                 rig->error.text);
}

/* Appends tokens first .. first + count - 1 of the rig's text as a shard. */
static inline void rig_add_shard(struct tokens *shards, struct rig *rig, uint64_t first,
                                 uint64_t count) {
    struct tokens one;
    int32_t *tokens = malloc(count * sizeof *tokens);
    cr_assert_eq(token_shard_read(&rig->tokens.shards[0], tokens, first, count, &rig->error), 0);
    cr_assert_eq(tokens_from_memory(&one, tokens, count, "part", &rig->error), 0);
    arrput(shards->shards, one.shards[0]);
    shards->count += count;
    arrfree(one.shards);
}

/* Replaces the rig's text by these shards, whose sequences are read in order. */
static inline void rig_use_shards(struct rig *rig, const struct tokens *shards) {
    struct loader_options options = rig->loader.options;
    options.shuffle = false;
    loader_close(&rig->loader);
    tokens_close(&rig->tokens);
    rig->tokens = *shards;
    cr_assert_eq(loader_open(&rig->loader, &rig->tokens, &options, &rig->error), 0, "%s",
                 rig->error.text);
}

/* A mask of the rig's text that has few tokens count, and of the first step's sequences different
 * numbers. */
static inline void rig_mask(uint8_t mask[RIG_MASK_BYTES]) {
    memset(mask, 0, RIG_MASK_BYTES);
    for (int i = 0; i < RIG_TOKENS; i++)
        if (random_uniform(7, 3, (uint64_t)i) < 0.08) mask[i / 8] |= (uint8_t)(1 << i % 8);
}

static inline void rig_open_backend(struct rig *rig, enum device device, int threads) {
    struct backend_options options = {
        .device = device, .threads = threads, .graphs = rig->config.cuda_graphs};
    cr_assert_eq(backend_open(&rig->be, &options, &rig->error), 0, "%s", rig->error.text);
    cr_assert_eq(precision_resolve(&rig->precision, NULL, &rig->config, &rig->be, &rig->error), 0,
                 "%s", rig->error.text);
}

/* Opens the device, data and trainer of rig->config. */
static inline void rig_open_on(struct rig *rig, enum device device, int threads) {
    rig_open_data(rig);
    rig_open_backend(rig, device, threads);
    cr_assert_eq(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                              TRAINER_INITIALIZED, &rig->error),
                 0, "%s", rig->error.text);
}

/* The same on a backend whose memory is not the host's: a CPU is told so. */
static inline void rig_open_separate(struct rig *rig, int threads) {
    rig_open_data(rig);
    rig_open_backend(rig, test_device(), threads);
    rig->be.device.host_memory = false;
    cr_assert_eq(trainer_open(&rig->trainer, &rig->config, &rig->precision, &rig->be,
                              TRAINER_INITIALIZED, &rig->error),
                 0, "%s", rig->error.text);
}

static inline void rig_open(struct rig *rig, int threads) {
    rig_open_on(rig, test_device(), threads);
}

static inline void rig_close(struct rig *rig) {
    trainer_close(&rig->trainer);
    backend_close(&rig->be);
    loader_close(&rig->loader);
    tokens_close(&rig->tokens);
}

static inline struct step_report rig_step(struct rig *rig) {
    struct step_report report;
    cr_assert_eq(trainer_begin_step(&rig->trainer, &rig->loader, &rig->error), 0, "%s",
                 rig->error.text);
    cr_assert_eq(trainer_end_step(&rig->trainer, &report, &rig->error), 0, "%s", rig->error.text);
    return report;
}

static inline struct step_report rig_steps(struct rig *rig, int count) {
    struct step_report report = {0};
    for (int i = 0; i < count; i++) report = rig_step(rig);
    return report;
}

/* A batch of these tokens, and these targets unless they are NULL, each [count, length]. */
static inline struct batch rig_batch(struct backend *be, const int32_t *tokens,
                                     const int32_t *targets, int64_t count, int64_t length) {
    struct error failure = {0};
    struct batch batch;
    const struct batch_format format = {
        .batch = count, .length = length, .arrays = BATCH_INPUTS | (targets ? BATCH_TARGETS : 0)};
    const size_t bytes = (size_t)(count * length) * sizeof *tokens;
    cr_assert_eq(batch_open(&batch, be, &format, &failure), 0, "%s", failure.text);
    memcpy(batch.host.tokens, tokens, bytes);
    if (targets) memcpy(batch.host.targets, targets, bytes);
    batch_upload(&batch);
    return batch;
}

/* Runs a forward pass on the batch of rig_batch, with losses if there are targets. */
static inline void rig_evaluate(struct model *model, const int32_t *tokens, const int32_t *targets,
                                int64_t count, int64_t length) {
    struct batch batch = rig_batch(model->be, tokens, targets, count, length);
    const struct pass pass = {
        .model = model, .kind = PASS_EVALUATE, .batch = batch.sent, .rows = count * length};
    model_forward(&pass);
    if (targets) objective_loss(&pass);
    batch_close(&batch);
}

/* Generates texts with a sampler of its own. */
static inline int sample_tokens(struct model *model, struct sample_result *result,
                                const struct sample_options *options, struct error *failure) {
    struct sampler sampler;
    if (sampler_open(&sampler, model, options, failure)) return -1;
    int status = sampler_generate(&sampler, result, failure);
    sampler_close(&sampler);
    return status;
}

/* A copy of backend memory on the host, to be freed. */
static inline void *rig_copy(struct backend *be, const struct tensor *tensor) {
    void *copy = malloc(tensor_bytes(tensor) + 1);
    backend_download(be, copy, tensor->data, tensor_bytes(tensor));
    return copy;
}

/* The tensor's values as fp32, to be freed. */
static inline float *rig_floats(struct backend *be, const struct tensor *tensor) {
    size_t count = (size_t)tensor_count(tensor);
    void *raw = rig_copy(be, tensor);
    float *values = malloc((count + 1) * sizeof *values);
    const float *wide = dtype_widen(values, raw, tensor->dtype, 0, count);
    if (wide != values) memcpy(values, wide, count * sizeof *values);
    free(raw);
    return values;
}

static inline void rig_hash(struct sha256 *hash, struct backend *be, const struct tensor *tensor) {
    if (!tensor->data) return;
    void *bytes = rig_copy(be, tensor);
    sha256_add(hash, bytes, tensor_bytes(tensor));
    free(bytes);
}

static inline void rig_hash_masters(struct sha256 *hash, const struct model *model) {
    float *masters = masters_values(model);
    sha256_add(hash, masters, (size_t)model->count * sizeof *masters);
    free(masters);
}

static inline void rig_hash_moments(struct sha256 *hash, const struct optimizer *optimizer) {
    for (int moment = 0; moment < 2; moment++) {
        rig_hash(hash, optimizer->model->be, &optimizer->moments[moment]);
        rig_hash(hash, optimizer->model->be, &optimizer->codes[moment]);
        rig_hash(hash, optimizer->model->be, &optimizer->scales[moment]);
    }
}

static inline void rig_hash_copies(struct sha256 *hash, const struct model *model) {
    for (ptrdiff_t i = 0; i < arrlen(model->masters.groups); i++)
        rig_hash(hash, model->be, &model->masters.groups[i].copy);
}

struct digest {
    char hex[SHA256_HEX_MAX];
};

/* Expects a message that contains `text` from a run on so many ranks, which opens no connection
 * before it is refused. */
static inline void rig_expect_refused(const struct config *config, bool host_memory, int size,
                                      const char *text) {
    struct rig rig = {.config = *config};
    rig_open_data(&rig);
    rig_open_backend(&rig, DEVICE_CPU, 1);
    const struct collectives *one = rig.be.collectives;
    const struct ranks ranks = {.size = size};
    struct collectives several = *one;
    several.ranks = &ranks;
    rig.be.collectives = &several;
    rig.be.device.host_memory = host_memory;
    cr_expect_eq(trainer_open(&rig.trainer, &rig.config, &rig.precision, &rig.be,
                              TRAINER_INITIALIZED, &rig.error),
                 -1);
    cr_expect(strstr(rig.error.text, text), "%s", rig.error.text);
    rig.be.collectives = one;
    rig_close(&rig);
}

/* Weights, their 16-bit copy and both moments, to the bit. */
static inline struct digest rig_digest(struct rig *rig) {
    struct digest digest;
    struct sha256 hash;
    struct model *model = &rig->trainer.model;
    sha256_begin(&hash);
    rig_hash_masters(&hash, model);
    rig_hash_copies(&hash, model);
    rig_hash_moments(&hash, &rig->trainer.optimizer);
    sha256_end(digest.hex, &hash);
    return digest;
}

static inline void expect_same_digest(struct digest a, struct digest b, const char *what) {
    cr_expect_str_eq(a.hex, b.hex, "%s: weights or moments differ", what);
}

static const enum config_precision rig_precisions[] = {
    CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16,  CONFIG_PRECISION_FP16,
    CONFIG_PRECISION_FP8,  CONFIG_PRECISION_MXFP8, CONFIG_PRECISION_NVFP4};
