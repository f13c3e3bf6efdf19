#include "model/lab/evaluation/run_agreement.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/fraction.h"
#include "data/util/min_max.h"
#include "data/util/program.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "data/util/table.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/pass/forward.h"
#include "model/session/sample_model.h"
#include "model/session/setup.h"

enum { SAMPLES = 8, TOKENS = 64 };

/* Limits of the mean KL divergence of a token. bf16 engines differ from bf16 trainers by the order
 * of 1e-3 at the start of reinforcement learning, which already biases long runs (Qi et al. 2025,
 * Defeating the Training-Inference Mismatch via FP16); 0.01 is the limit that Tinker's
 * documentation recommends. */
#define KL_SAFE  1e-3
#define KL_LIMIT 1e-2

/* Texts that were sampled in one precision, and the predictions that they were drawn from. */
struct rollout {
    int64_t texts, tokens, vocabulary; /* tokens: of each text, after those it begins with */
    int32_t *first;                    /* stb_ds array: the tokens that all texts begin with */
    int32_t *drawn;                    /* [tokens, texts] */
    float *logits;                     /* [tokens, texts, vocabulary] */
    double seconds;
    const char *precision; /* name of the precision that they were sampled in */
};

static const struct section differences = {
    .title = "Sampler and trainer",
    .note = "Of tokens drawn at temperature 1, the difference of their log-probabilities in the "
            "sampler and in the training forward pass, in nats: mean, median, 99th percentile and "
            "largest; the mean KL divergence of the predictions; the share of tokens with another "
            "rank among all tokens; equal: predictions with the same bits.",
    .columns = {{"precision", "name"},
                {"mean", "mean", SHOW_SMALL},
                {"median", "median", SHOW_SMALL},
                {"99 %", "percentile_99", SHOW_SMALL},
                {"largest", "largest", SHOW_SMALL},
                {"KL", "kl", SHOW_SMALL},
                {"rank", "rank_changed", SHOW_SHARE},
                {"equal", "same_bits", SHOW_SHARE},
                {"tokens/s", "tokens_per_s", SHOW_NUMBER}}};

void agreement_print(FILE *out, const struct cJSON *row, bool exact) {
    const char *name = json_text_at(row, "name");
    double kl = json_number_at(row, "kl");
    const char *scales = "; scales of whole tensors depend on all tokens of a batch: try ";
    const char *other = strcmp(name, "fp8") == 0     ? "fp8.recipe=row or mxfp8"
                        : strcmp(name, "nvfp4") == 0 ? "mxfp4 or mxfp8"
                                                     : NULL;
    if (json_number_at(row, "same_bits") == 1)
        text_print(out, 4, "%s: the same bits; samples are on-policy", name);
    else if (kl < KL_SAFE)
        text_print(out, 4, "%s: safe for on-policy training (KL below %g)", name, KL_SAFE);
    else if (kl < KL_LIMIT)
        text_print(out, 4, "%s: correct for it with importance sampling (KL from %g to %g)", name,
                   KL_SAFE, KL_LIMIT);
    else
        text_print(out, 4, "%s: not for on-policy training (KL above %g)%s%s", name, KL_LIMIT,
                   other ? scales : "",
                   other   ? other
                   : exact ? ""
                           : "; try sample.exact");
}

static void print_report(FILE *out, const cJSON *report) {
    const cJSON *row;
    bool exact = cJSON_IsTrue(json_at(report, "exact"));
    text_print(out, 2, "Agreement of sampler and trainer: %.0f texts of %.0f tokens, decoded %s",
               json_number_at(report, "texts"), json_number_at(report, "tokens"),
               exact ? "by the training forward pass (sample.exact)" : "with the key-value cache");
    section_print(out, &differences, json_at(report, "precisions"));
    cJSON_ArrayForEach(row, json_at(report, "precisions")) agreement_print(out, row, exact);
}

/* ---- figures */

/* Returns the logarithm of the sum of exponentials. */
static double log_sum(const float *logits, int64_t count) {
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++)
        if ((double)logits[i] > largest) largest = (double)logits[i];
    for (int64_t i = 0; i < count; i++) sum += exp((double)logits[i] - largest);
    return largest + log(sum);
}

void agreement_add(struct agreement *agreement, const float *sampler, const float *trainer,
                   int64_t vocabulary, int token) {
    double sampler_log = log_sum(sampler, vocabulary), trainer_log = log_sum(trainer, vocabulary);
    double kl = 0;
    int64_t moves = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        double log_p = (double)sampler[i] - sampler_log, log_q = (double)trainer[i] - trainer_log;
        if (log_p > -INFINITY) kl += exp(log_p) * (log_p - log_q);
        moves += (sampler[i] > sampler[token]) - (trainer[i] > trainer[token]);
    }
    arrput(agreement->differences,
           fabs(((double)trainer[token] - trainer_log) - ((double)sampler[token] - sampler_log)));
    agreement->kl += kl;
    agreement->rank_changed += moves != 0;
    agreement->same_bits += memcmp(sampler, trainer, (size_t)vocabulary * sizeof *sampler) == 0;
}

static int ascending(const void *a, const void *b) {
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

/* Returns the difference that a share of the sorted differences do not exceed. */
static double percentile(const double *sorted, double share) {
    int64_t index = fraction_of(share, arrlen(sorted), FRACTION_UP) - 1;
    return sorted[MAX(index, 0)];
}

void agreement_report(cJSON *row, struct agreement *agreement) {
    double *sorted = agreement->differences, sum = 0, tokens = (double)arrlen(sorted);
    qsort(sorted, arrlenu(sorted), sizeof *sorted, ascending);
    for (ptrdiff_t i = 0; i < arrlen(sorted); i++) sum += sorted[i];
    JSON_NUMBERS(row, {"mean", sum / tokens}, {"median", percentile(sorted, 0.5)},
                 {"percentile_99", percentile(sorted, 0.99)}, {"largest", percentile(sorted, 1)},
                 {"kl", agreement->kl / tokens},
                 {"rank_changed", (double)agreement->rank_changed / tokens},
                 {"same_bits", (double)agreement->same_bits / tokens});
}

/* ---- passes */

/* Samples the texts. Texts do not end early, so all have the same length. */
static int sample(struct rollout *rollout, const struct config *config, const char *from,
                  uint64_t seed, const volatile sig_atomic_t *stop, struct error *error) {
    struct sample_model sampled;
    struct sampler sampler;
    const struct sample_options options = {
        .temperature = 1, .top_p = 1, .seed = seed, .exact = config->sample.exact};
    if (sample_model_open(&sampled, config, from, error)) return -1;
    rollout->precision = config_precision_name(precision_setting(&sampled.model.precision, config));
    int status = sampler_open(&sampler, &sampled.model, &options, error);
    if (status == 0) {
        double began = progress_clock();
        sampler_read(&sampler, rollout->first, arrlen(rollout->first));
        for (int64_t t = 0; status == 0 && t < rollout->tokens; t++) {
            int32_t *drawn = rollout->drawn + t * rollout->texts;
            float *logits = rollout->logits + t * rollout->texts * rollout->vocabulary;
            for (int64_t i = 0; i < rollout->texts; i++)
                memcpy(logits + i * rollout->vocabulary,
                       sampler.logits + i * sampled.model.shape.padded_vocab,
                       (size_t)rollout->vocabulary * sizeof *logits);
            status = sampler_draw(&sampler, drawn, error);
            if (status == 0 && t + 1 < rollout->tokens) sampler_append(&sampler, drawn);
            if (status == 0 && *stop) status = RESULT_STOPPED;
        }
        rollout->seconds = progress_clock() - began;
        sampler_close(&sampler);
        if (status == 0 && sampled.be.failure.text[0])
            status = fail(error, "%s", sampled.be.failure.text);
    }
    sample_model_close(&sampled);
    return status;
}

/* Compares the predictions of a chunk of rows, the model's current logits. The first token drawn is
 * predicted at the last token of the beginning. */
static void compare_rows(struct agreement *agreement, const struct rollout *rollout,
                         const struct model *model, const float *logits, int64_t first,
                         int64_t rows) {
    for (int64_t row = first; row < first + rows; row++) {
        int64_t text = row / model->shape.sequence_length;
        int64_t t = row % model->shape.sequence_length - (arrlen(rollout->first) - 1);
        int64_t index = t * rollout->texts + text;
        if (t >= 0 && t < rollout->tokens)
            agreement_add(agreement, rollout->logits + index * rollout->vocabulary,
                          logits + (row - first) * model->shape.padded_vocab, rollout->vocabulary,
                          rollout->drawn[index]);
    }
}

/* Runs the training forward pass on the texts, with the logits in the chunks of the loss. */
static int compare(struct agreement *agreement, const struct rollout *rollout, struct model *model,
                   struct error *error) {
    const struct model_shape *s = &model->shape;
    size_t columns = (size_t)s->padded_vocab, count = (size_t)s->logit_rows * columns;
    float *raw = NULL, *logits = NULL; /* stb_ds arrays */
    struct batch batch;
    const struct batch_format format = {
        .batch = s->batch,
        .length = s->sequence_length,
        .arrays = model->precision.quantizes ? BATCH_FIRST_KEYS | BATCH_POSITIONS : 0};
    if (batch_open(&batch, model->be, &format, error)) {
        batch_close(&batch);
        return -1;
    }
    arrsetlen(raw, count);
    arrsetlen(logits, count);
    for (int64_t text = 0; text < rollout->texts; text++) {
        int32_t *row = batch.host.tokens + text * s->sequence_length;
        for (ptrdiff_t i = 0; i < arrlen(rollout->first); i++) *row++ = rollout->first[i];
        for (int64_t t = 0; t + 1 < rollout->tokens; t++)
            *row++ = rollout->drawn[t * rollout->texts + text];
        batch_pad(&batch.host, text, arrlen(rollout->first) + rollout->tokens - 1);
    }
    batch_upload(&batch);
    model_forward(&(struct pass){
        .model = model, .kind = PASS_EVALUATE, .batch = batch.sent, .rows = s->rows});
    for (int64_t first = 0; first < s->rows; first += s->logit_rows) {
        int64_t rows = MIN(s->rows - first, s->logit_rows);
        enum dtype dtype = model->activations.logits.dtype;
        model_logits(model, first, rows);
        backend_download(model->be, raw, model->activations.logits.data,
                         (size_t)rows * columns * dtype_bytes(dtype));
        compare_rows(agreement, rollout, model,
                     dtype_widen(logits, raw, dtype, 0, (size_t)rows * columns), first, rows);
    }
    batch_close(&batch);
    arrfree(raw);
    arrfree(logits);
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

/* Opens the model for the training forward pass: that of exact sampling. */
static int score(struct agreement *agreement, const struct rollout *rollout,
                 const struct config *config, const char *from, struct error *error) {
    struct sample_model sampled;
    struct config training = *config;
    training.sample.exact = true;
    if (sample_model_open(&sampled, &training, from, error)) return -1;
    int status = compare(agreement, rollout, &sampled.model, error);
    sample_model_close(&sampled);
    return status;
}

static int agree_in_precision(cJSON *report, struct rollout *rollout, const struct config *config,
                              const char *from, uint64_t seed, const volatile sig_atomic_t *stop,
                              struct error *error) {
    struct agreement agreement = {0};
    int status = sample(rollout, config, from, seed, stop, error);
    if (status == 0) status = score(&agreement, rollout, config, from, error);
    if (status == 0) {
        cJSON *row = json_add_item(cJSON_GetObjectItem(report, "precisions"));
        cJSON_AddStringToObject(row, "name", rollout->precision);
        agreement_report(row, &agreement);
        JSON_NUMBERS(
            row, {"tokens_per_s", (double)(rollout->texts * rollout->tokens) / rollout->seconds});
    }
    arrfree(agreement.differences);
    return status;
}

/* Reads the tokens that texts begin with. */
static int read_beginning(struct rollout *rollout, const struct config *config, const char *from,
                          struct error *error) {
    struct tokenizer tokenizer;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return -1;
    int status = sample_encode(&rollout->first, &tokenizer, "", true, error);
    tokenizer_close(&tokenizer);
    return status;
}

/* Sets the number and length of texts, and the tokens that they begin with. */
static int plan_rollout(struct rollout *rollout, struct config *config, const char *from,
                        const struct command_line *line, struct error *error) {
    if (read_beginning(rollout, config, from, error)) return -1;
    int64_t limit = sample_model_context(config), before = arrlen(rollout->first) - 1;
    int64_t room = limit - before;
    rollout->texts = line->samples > 0 ? line->samples : SAMPLES;
    const bool is_given =
        config->sample.tokens > 0 && config_given_by_flag(config, "sample.tokens");
    rollout->tokens = is_given ? config->sample.tokens : MIN(room, TOKENS);
    if (rollout->tokens > room || room < 1)
        return fail(error,
                    "--tokens %" PRId64 ": the context of the model has %" PRId64
                    " tokens, room for %" PRId64 " after the beginning of a text",
                    rollout->tokens, limit, room);
    int64_t length = before + rollout->tokens;
    int64_t most = MAX(rollout->texts, length);
    config->samples = rollout->texts;
    config->data.seq_len = sample_length(most, limit);
    rollout->vocabulary = config->model.vocab_size;
    size_t drawn = (size_t)(rollout->texts * rollout->tokens);
    rollout->drawn = malloc(drawn * sizeof *rollout->drawn);
    rollout->logits = malloc(drawn * (size_t)rollout->vocabulary * sizeof *rollout->logits);
    if (rollout->drawn && rollout->logits) return 0;
    return fail(error,
                "out of memory for the predictions of %zu tokens\nlower --samples or "
                "--tokens",
                drawn);
}

int run_agreement(const struct config *config, const char *from, const struct command_line *line,
                  struct error *error) {
    struct rollout rollout = {0};
    struct config fitted = *config;
    const volatile sig_atomic_t *stop = signals_catch();
    cJSON *report = cJSON_CreateObject();
    uint64_t seed = derive_seed(config->seed, SEED_SAMPLE);
    int count = line->precision_count, status = 0;
    if (line->out) status = report_folder(line->out, error);
    if (status == 0) status = plan_rollout(&rollout, &fitted, from, line, error);
    JSON_NUMBERS(report, {"texts", (double)rollout.texts}, {"tokens", (double)rollout.tokens});
    cJSON_AddBoolToObject(report, "exact", config->sample.exact);
    cJSON_AddArrayToObject(report, "precisions");
    for (int i = 0; status == 0 && i < (count > 0 ? count : 1); i++) {
        if (count > 0) fitted.precision = line->precisions[i];
        status = agree_in_precision(report, &rollout, &fitted, from, seed, stop, error);
    }
    if (status == 0) status = report_publish(print_report, report, line->out, "agreement", error);
    cJSON_Delete(report);
    arrfree(rollout.first);
    free(rollout.drawn);
    free(rollout.logits);
    if (status == RESULT_STOPPED) return EXIT_SIGNAL + *stop;
    return status ? EXIT_FAILED : EXIT_DONE;
}
