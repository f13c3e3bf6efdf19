#include "model/cli/sample_model.h"

#include <inttypes.h>
#include <string.h>

#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/io/run_setup.h"

static int load(struct sample_model *model, const char *from, struct error *error) {
    const struct config *config = &model->config;
    struct gpt *gpt = &model->gpt;
    bool exact = config->sample.exact;
    if (setup_precision(&model->precision, config, &model->be, error) ||
        gpt_open(gpt, config, &model->precision, &model->be, exact ? GPT_EVALUATION : GPT_SAMPLING,
                 error))
        return -1;
    backend_plan_begin(gpt->be);
    if (exact) sample_plan_exact(gpt);
    else sample_plan(gpt);
    if (backend_plan_end(gpt->be, error) || gpt_allocate(gpt, error)) return -1;
    return checkpoint_load_weights(gpt, config, from, error);
}

int sample_model_open(struct sample_model *model, const struct config *config, const char *from,
                      struct error *error) {
    *model = (struct sample_model){.config = *config};
    if (config->sample.exact) {
        model->config.train.micro_batch_size = config->samples > 0 ? config->samples : 1;
        model->config.data.isolate = false;
    }
    if (setup_backend(&model->be, config, NULL, NULL, error)) return -1;
    if (load(model, from, error) == 0) return 0;
    sample_model_close(model);
    return -1;
}

void sample_model_close(struct sample_model *model) {
    if (model->gpt.be) gpt_close(&model->gpt);
    backend_close(&model->be);
}

int64_t sample_model_context(const struct config *config) {
    return config_given(config, "data.seq_len") ? config->data.seq_len : config->model.n_positions;
}

struct sample_options sample_options_of(const struct config *config,
                                        const struct command_line *line) {
    return (struct sample_options){
        .tokens = line->tokens >= 0 ? line->tokens : config->sample.tokens,
        .repetition_penalty = line->repetition_penalty >= 0 ? line->repetition_penalty
                                                            : config->sample.repetition_penalty,
        .temperature = line->temperature >= 0 ? line->temperature : config->sample.temperature,
        .top_k = line->top_k >= 0 ? line->top_k : config->sample.top_k,
        .top_p = line->top_p >= 0 ? line->top_p : config->sample.top_p,
        .min_p = line->min_p >= 0 ? line->min_p : config->sample.min_p,
        .seed = derive_seed(line->seed >= 0 ? line->seed : config->seed, SEED_SAMPLE),
        .exact = config->sample.exact,
    };
}

int sample_encode(int32_t **tokens, const struct tokenizer *tokenizer, const char *text,
                  struct error *error) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    if (!encoder) return fail(error, "out of memory for the prompt");
    int status = tokenizer_encode(encoder, tokens, text, strlen(text), true, error);
    tokenizer_encoder_close(encoder);
    return status;
}

void sample_print_speed(FILE *out, const struct sample_result *result) {
    char speed[32] = "";
    if (result->tokens > 1 && result->tokens_seconds > 0) /* the prompt's pass makes the first */
        snprintf(speed, sizeof speed, ", %.1f tokens/s",
                 (double)(result->tokens - 1) / result->tokens_seconds);
    fprintf(out, "%" PRId64 " tokens%s; prompt %.0f ms\n", result->tokens, speed,
            1e3 * result->prompt_seconds);
}
