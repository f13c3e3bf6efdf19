#include "model/session/sample_model.h"

#include <string.h>

#include "data/util/files.h"
#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/session/setup.h"

int sample_model_open(struct sample_model *sampled, const struct config *config, const char *from,
                      struct error *error) {
    const bool exact = config->sample.exact;
    struct config fitted = *config;
    if (exact) {
        fitted.train.micro_batch_size = config->samples > 0 ? config->samples : 1;
        fitted.data.isolate = false;
    }
    if (setup_backend(&sampled->be, config, NULL, NULL, error)) return -1;
    if (setup_model(&sampled->model, &fitted, &sampled->be,
                    exact ? MODEL_SAMPLED_EXACTLY : MODEL_SAMPLED, from, error) == 0)
        return 0;
    backend_close(&sampled->be);
    return -1;
}

void sample_model_close(struct sample_model *sampled) {
    model_close(&sampled->model);
    backend_close(&sampled->be);
}

int64_t sample_model_context(const struct config *config) {
    int64_t longest = config->model.n_positions;
    if (config->model.positions == POSITIONS_ROPE && config->model.rope_scaling == ROPE_DYNAMIC)
        longest = MIN(longest, config->model.rope_original_positions);
    return config_given(config, "data.seq_len") ? config->data.seq_len : longest;
}

void sample_set_ends(struct sample_options *options, const struct huggingface_tokens *tokens,
                     const struct tokenizer *tokenizer) {
    _Static_assert(SAMPLE_ENDS_MAX > (int)HUGGINGFACE_ENDS_MAX, "a chat adds one");
    options->end_count = tokens->end_count;
    memcpy(options->ends, tokens->ends, sizeof tokens->ends);
    for (int i = 0; i < tokens->end_count; i++) {
        size_t size;
        const uint8_t *name = tokenizer_bytes(tokenizer, tokens->ends[i], &size);
        options->shown[i] = tokenizer_special(tokenizer, name, size) != tokens->ends[i];
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
    if (tokens.end_count == 0) tokens = huggingface_tokens_of(config, tokenizer);
    sample_set_ends(options, &tokens, tokenizer);
    return 0;
}

int sample_encode(int32_t **tokens, const struct tokenizer *tokenizer, const char *text,
                  bool begins, struct error *error) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    if (!encoder) return fail_memory(error, "the prompt");
    size_t size = strlen(text);
    int status = begins ? tokenizer_encode_context(encoder, tokenizer, tokens, text, size, error)
                        : tokenizer_encode(encoder, tokens, text, size, true, error);
    tokenizer_encoder_close(encoder);
    return status;
}
