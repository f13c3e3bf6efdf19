/* ./train --sample */
#include "model/cli/run_sample.h"

#include <inttypes.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/program.h"
#include "data/util/signals.h"
#include "data/util/utf8.h"
#include "model/config/config_keys.h"
#include "model/io/checkpoint.h"
#include "model/io/run_setup.h"

static const char replacement[] = "\xef\xbf\xbd"; /* U+FFFD */

/* True if these bytes are an incomplete UTF-8 character that more bytes could complete. */
static bool may_become_character(const uint8_t *bytes, size_t size) {
    size_t wanted = bytes[0] >= 0xf0 ? 4 : bytes[0] >= 0xe0 ? 3 : 2;
    if (bytes[0] < 0xc2 || bytes[0] > 0xf4 || size >= wanted) return false;
    for (size_t i = 1; i < size; i++)
        if ((bytes[i] & 0xc0) != 0x80) return false;
    return true;
}

/* Adds a byte and prints the complete characters. An incomplete one stays pending. */
static void put_byte(struct text_stream *stream, uint8_t byte) {
    stream->pending[stream->pending_size++] = byte;
    while (stream->pending_size > 0) {
        size_t size = utf8_character(stream->pending, stream->pending_size);
        if (size == 0 && may_become_character(stream->pending, stream->pending_size)) return;
        if (size == 0 || utf8_is_control(stream->pending, size)) fputs(replacement, stream->out);
        else fwrite(stream->pending, 1, size, stream->out);
        if (size == 0) size = 1;
        stream->pending_size -= size;
        for (size_t i = 0; i < stream->pending_size; i++)
            stream->pending[i] = stream->pending[size + i];
    }
}

void text_stream_put(struct text_stream *stream, const void *bytes, size_t size) {
    for (size_t i = 0; i < size; i++) put_byte(stream, ((const uint8_t *)bytes)[i]);
}

void text_stream_token(void *stream, int token) {
    struct text_stream *self = stream;
    size_t size;
    const uint8_t *bytes = tokenizer_bytes(self->tokenizer, token, &size);
    text_stream_put(self, bytes, size);
    fflush(self->out);
}

void text_stream_end(struct text_stream *stream) {
    for (; stream->pending_size > 0; stream->pending_size--) fputs(replacement, stream->out);
    fflush(stream->out);
}

/* Encodes the prompt. An empty one becomes the end-of-text token, or a line break if the tokenizer
 * has no such token. */
static int encode_prompt(int32_t **tokens, const struct tokenizer *tokenizer, const char *prompt,
                         struct error *error) {
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    if (!encoder) return fail(error, "out of memory for the prompt");
    int status = 0;
    if (prompt[0]) status = tokenizer_encode(encoder, tokens, prompt, strlen(prompt), true, error);
    else if (tokenizer->end_of_text >= 0) arrput(*tokens, tokenizer->end_of_text);
    else status = tokenizer_encode(encoder, tokens, "\n", 1, false, error);
    tokenizer_encoder_close(encoder);
    return status;
}

int print_sample(FILE *out, struct sample_result *result, struct gpt *gpt,
                 const struct tokenizer *tokenizer, const char *prompt,
                 const struct sample_options *options, struct error *error) {
    struct text_stream stream = {.out = out, .tokenizer = tokenizer};
    struct sample_options all = *options;
    int32_t *tokens = NULL;
    if (encode_prompt(&tokens, tokenizer, prompt, error)) {
        arrfree(tokens);
        return -1;
    }
    if (arrlen(tokens) > gpt->capacity.sequence_length)
        fprintf(stderr, "note: of %td tokens of the prompt the last %" PRId64 " are read\n",
                arrlen(tokens), gpt->capacity.sequence_length);
    text_stream_put(&stream, prompt, strlen(prompt));
    fflush(out);
    all.prompt = tokens;
    all.prompt_length = arrlen(tokens);
    all.vocabulary = tokenizer->vocab_size;
    all.ends[0] = tokenizer->end_of_text;
    all.ends[1] = tokenizer->stop;
    all.emit = text_stream_token;
    all.context = &stream;
    int status = sample_tokens(gpt, result, &all, error);
    text_stream_end(&stream);
    fputc('\n', out);
    fflush(out);
    arrfree(tokens);
    return status;
}

static int load(struct gpt *gpt, const struct config *config, const char *from,
                struct error *error) {
    backend_plan_begin(gpt->be);
    sample_plan(gpt);
    if (backend_plan_end(gpt->be, error) || gpt_allocate(gpt, error)) return -1;
    return checkpoint_load_weights(gpt, config, from, error);
}

static void print_speed(const struct sample_result *result) {
    char speed[32] = "";
    if (result->tokens > 1) /* the prompt's pass generates the first token */
        snprintf(speed, sizeof speed, ", %.1f tokens/s",
                 (double)(result->tokens - 1) / result->tokens_seconds);
    fprintf(stderr, "%" PRId64 " tokens%s; prompt %.0f ms\n", result->tokens, speed,
            1e3 * result->prompt_seconds);
}

static struct sample_options sample_options_of(const struct config *config,
                                               const struct command_line *line) {
    return (struct sample_options){
        .tokens = line->tokens >= 0 ? line->tokens : config->sample.tokens,
        .temperature = line->temperature >= 0 ? line->temperature : config->sample.temperature,
        .top_k = line->top_k >= 0 ? line->top_k : config->sample.top_k,
        .top_p = line->top_p >= 0 ? line->top_p : config->sample.top_p,
        .seed = derive_seed(line->seed >= 0 ? line->seed : config->seed, SEED_SAMPLE),
        .stop = signals_catch(),
    };
}

static int print_samples(struct gpt *gpt, const struct tokenizer *tokenizer,
                         const struct config *config, const struct command_line *line,
                         struct error *error) {
    struct sample_options options = sample_options_of(config, line);
    for (ptrdiff_t i = 0; i < arrlen(line->prompts) && !*options.stop; i++) {
        struct sample_result result;
        if (i > 0) printf("---\n");
        if (print_sample(stdout, &result, gpt, tokenizer, line->prompts[i], &options, error))
            return EXIT_FAILED;
        if (ferror(stdout)) break;
        print_speed(&result);
        options.stream++;
    }
    return *options.stop ? EXIT_SIGNAL + *options.stop : EXIT_DONE;
}

static int sample(struct backend *be, const struct config *config, const char *from,
                  const struct tokenizer *tokenizer, const struct command_line *line,
                  struct error *error) {
    struct precision precision;
    struct gpt gpt;
    if (setup_precision(&precision, config, be, error)) return EXIT_FAILED;
    int status = EXIT_FAILED;
    if (gpt_open(&gpt, config, &precision, be, GPT_SAMPLING, error) == 0 &&
        load(&gpt, config, from, error) == 0)
        status = print_samples(&gpt, tokenizer, config, line, error);
    gpt_close(&gpt);
    return status;
}

/* Sets data.seq_len to the length of the longest text. The limit is the training context: the run's
 * data.seq_len, or n_positions for a model without it, such as one of Hugging Face. */
static int fit_context(struct config *config, const struct tokenizer *tokenizer,
                       const struct command_line *line, struct error *error) {
    int64_t limit =
        config_given(config, "data.seq_len") ? config->data.seq_len : config->model.n_positions;
    int64_t longest = 0;
    for (ptrdiff_t i = 0; i < arrlen(line->prompts); i++) {
        int32_t *tokens = NULL;
        if (encode_prompt(&tokens, tokenizer, line->prompts[i], error)) return -1;
        if (arrlen(tokens) > longest) longest = arrlen(tokens);
        arrfree(tokens);
    }
    config->data.seq_len = sample_length(longest + sample_options_of(config, line).tokens, limit);
    return 0;
}

int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error) {
    struct backend be;
    struct tokenizer tokenizer;
    struct config fitted = *config;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return EXIT_FAILED;
    int status = EXIT_FAILED;
    if (fit_context(&fitted, &tokenizer, line, error) == 0 &&
        setup_backend(&be, config, NULL, NULL, error) == 0) {
        status = sample(&be, &fitted, from, &tokenizer, line, error);
        backend_close(&be);
    }
    tokenizer_close(&tokenizer);
    return status;
}
