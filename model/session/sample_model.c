#include "model/session/sample_model.h"

#include <string.h>

#include "data/util/files.h"
#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/session/setup.h"

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
    int64_t longest = config->model.n_positions;
    if (config->model.positions == POSITIONS_ROPE && config->model.rope_scaling == ROPE_DYNAMIC)
        longest = MIN(longest, config->model.rope_original_positions);
    return config_given(config, "data.seq_len") ? config->data.seq_len : longest;
}

void sample_set_ends(struct sample_options *options, const struct huggingface_tokens *tokens,
                     const struct tokenizer *tokenizer) {
    struct huggingface_tokens ends = *tokens;
    if (ends.end_count == 0) {
        huggingface_add_end(&ends, tokenizer->end_of_text);
        huggingface_add_end(&ends, tokenizer->stop);
        huggingface_add_end(&ends, tokenizer->eos);
    }
    _Static_assert(SAMPLE_ENDS_MAX > (int)HUGGINGFACE_ENDS_MAX, "a chat adds one");
    options->end_count = ends.end_count;
    memcpy(options->ends, ends.ends, sizeof ends.ends);
    for (int i = 0; i < tokens->end_count; i++) {
        size_t size;
        const uint8_t *name = tokenizer_bytes(tokenizer, ends.ends[i], &size);
        options->shown[i] = tokenizer_special(tokenizer, name, size) != ends.ends[i];
    }
}

int sample_find_ends(struct sample_options *options, const struct config *config,
                     const struct tokenizer *tokenizer, const char *from, struct error *error) {
    struct huggingface_tokens tokens = {0};
    bool adapters = !file_exists_in(from, "config.json");
    const char *model = adapters ? config->model.init_from : from;
    if (file_exists_in(model, "config.json") &&
        huggingface_read_tokens(&tokens, config, model, error))
        return -1;
    sample_set_ends(options, &tokens, tokenizer);
    return 0;
}

int sample_encode(int32_t **tokens, const struct tokenizer *tokenizer, const char *text,
                  bool begins, struct error *error) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    if (!encoder) return fail(error, "out of memory for the prompt");
    size_t size = strlen(text);
    int status = begins ? tokenizer_encode_context(encoder, tokenizer, tokens, text, size, error)
                        : tokenizer_encode(encoder, tokens, text, size, true, error);
    tokenizer_encoder_close(encoder);
    return status;
}
