#include "model/cli/run_sample.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/json_escape.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "model/cli/text_stream.h"
#include "model/session/setup.h"
#include "model/session/sample_model.h"

struct sample_options sample_options_of(const struct config *config) {
    return (struct sample_options){
        .tokens = config->sample.tokens,
        .repetition_penalty = config->sample.repetition_penalty,
        .temperature = config->sample.temperature,
        .top_k = config->sample.top_k,
        .top_p = config->sample.top_p,
        .min_p = config->sample.min_p,
        .seed = derive_seed(config->seed, SEED_SAMPLE),
        .exact = config->sample.exact,
    };
}

void sample_print_speed(FILE *out, const struct sample_result *result, int64_t texts) {
    char speed[32] = "";
    if (result->tokens > texts &&
        result->tokens_seconds > 0) /* the prompt's pass makes the first ones */
        snprintf(speed, sizeof speed, ", %.1f tokens/s",
                 (double)(result->tokens - texts) / result->tokens_seconds);
    fprintf(out, "%" PRId64 " token%s%s; prompt %.0f ms\n", result->tokens, PLURAL(result->tokens),
            speed, 1e3 * result->prompt_seconds);
}

/* Encodes the prompt, before any of it is printed. *tokens: for the caller to free. */
static int encode_prompt(int32_t **tokens, const struct sampler *sampler,
                         const struct tokenizer *tokenizer, const char *prompt,
                         struct error *error) {
    *tokens = NULL;
    if (sample_encode(tokens, tokenizer, prompt, true, error)) return -1;
    if (arrlen(*tokens) > sampler->window)
        note(stderr, "note", "of %td tokens of the prompt the last %" PRId64 " are read",
             arrlen(*tokens), sampler->window);
    return 0;
}

/* Generates texts that continue the prompt, each into its stream, which has the prompt already. */
static int generate(struct text_stream *streams, struct sample_result *result,
                    struct sampler *sampler, const int32_t *prompt, struct error *error) {
    sampler->options.prompt = prompt;
    sampler->options.prompt_length = arrlen(prompt);
    sampler->options.emit = text_stream_token;
    sampler->options.context = streams;
    sampler_begin(sampler);
    return sampler_generate(sampler, result, error);
}

int print_sample(FILE *out, struct sample_result *result, struct sampler *sampler,
                 const struct tokenizer *tokenizer, const char *prompt, struct error *error) {
    struct text_stream stream = {.out = out, .tokenizer = tokenizer};
    int32_t *tokens;
    int status = encode_prompt(&tokens, sampler, tokenizer, prompt, error);
    text_stream_put(&stream, prompt, strlen(prompt));
    fflush(out);
    if (status == 0) status = generate(&stream, result, sampler, tokens, error);
    text_stream_end(&stream);
    fputc('\n', out);
    fflush(out);
    arrfree(tokens);
    return status;
}

/* Texts of --sample while they are generated. */
struct samples {
    const struct command_line *line;
    const struct tokenizer *tokenizer;
    struct sampler sampler;
    int64_t count;               /* texts for each prompt */
    struct text_stream *streams; /* [count] */
    struct printed *texts; /* [count], what the streams print if texts are printed at the end */
};

/* True if the output keeps control characters: JSON escapes them, and only terminals obey them. */
static bool keeps_controls(const struct command_line *line) {
    return line->json || !isatty(STDOUT_FILENO);
}

/* Returns the reason why a text ended. */
static const char *end_of(const struct samples *samples, const struct text_stream *stream) {
    if (stream->stopped) return "stop";
    if (stream->tokens == samples->sampler.options.tokens) return "length";
    return *samples->sampler.options.stop ? "interrupted" : "end of text";
}

/* Prints a text as one line of JSON. */
static void print_json(const struct samples *samples, const char *prompt, int64_t index) {
    const struct text_stream *stream = &samples->streams[index];
    const struct printed *text = &samples->texts[index];
    fputs("{\"prompt\":", stdout);
    json_print_text(stdout, prompt, strlen(prompt));
    fputs(",\"text\":", stdout);
    json_print_text(stdout, text->text, text->size);
    printf(",\"sample\":%" PRId64 ",\"tokens\":%" PRId64 ",\"end\":\"%s\"}\n", index,
           stream->tokens, end_of(samples, stream));
}

/* Opens the streams: of one text to standard output, of several and for JSON to memory. */
static int open_streams(struct samples *samples, struct error *error) {
    for (int64_t i = 0; i < samples->count; i++) {
        struct text_stream *stream = &samples->streams[i];
        *stream = (struct text_stream){.out = stdout,
                                       .tokenizer = samples->tokenizer,
                                       .stops = samples->line->stops,
                                       .keeps_controls = keeps_controls(samples->line)};
        if (!samples->texts) continue;
        if (printed_open(&samples->texts[i])) return fail_memory(error, "a sample");
        stream->out = samples->texts[i].out;
    }
    return 0;
}

/* Ends the streams and prints the texts that are in memory. A text fails to be printed only if
 * memory is exhausted. */
static void close_streams(struct samples *samples, const char *prompt, bool prints) {
    for (int64_t i = 0; i < samples->count; i++) {
        if (samples->streams[i].out) text_stream_end(&samples->streams[i]);
        samples->streams[i].out = NULL;
        if (!samples->texts) continue;
        if (samples->texts[i].out && printed_close(&samples->texts[i])) prints = false;
        if (prints && samples->line->json) print_json(samples, prompt, i);
        else if (prints) {
            printf("%s%s", i > 0 ? "---\n" : "", prompt);
            fwrite(samples->texts[i].text, 1, samples->texts[i].size, stdout);
            fputc('\n', stdout);
        }
        free(samples->texts[i].text);
        samples->texts[i] = (struct printed){0};
    }
    if (!samples->texts) fputc('\n', stdout);
    fflush(stdout);
}

/* Returns the prompt as the output may have it, for the caller to free; NULL if out of memory. */
static char *shown_prompt(const struct command_line *line, const char *prompt) {
    struct printed shown;
    if (printed_open(&shown)) return NULL;
    struct text_stream stream = {.out = shown.out, .keeps_controls = keeps_controls(line)};
    text_stream_put(&stream, prompt, strlen(prompt));
    text_stream_end(&stream);
    printed_close(&shown);
    return shown.text;
}

static int print_prompt(struct samples *samples, const char *prompt, struct error *error) {
    struct sample_result result;
    char *shown = shown_prompt(samples->line, prompt);
    if (!shown) return fail_memory(error, "a sample");
    int32_t *tokens = NULL;
    int status = open_streams(samples, error);
    if (status == 0)
        status = encode_prompt(&tokens, &samples->sampler, samples->tokenizer, prompt, error);
    if (!samples->texts) {
        fputs(shown, stdout);
        fflush(stdout);
    }
    if (status == 0) status = generate(samples->streams, &result, &samples->sampler, tokens, error);
    close_streams(samples, shown, status == 0);
    if (status == 0) sample_print_speed(stderr, &result, samples->count);
    samples->sampler.options.stream += (uint64_t)samples->count;
    arrfree(tokens);
    free(shown);
    return status;
}

static int print_prompts(struct samples *samples, struct error *error) {
    const struct command_line *line = samples->line;
    samples->streams = calloc((size_t)samples->count, sizeof *samples->streams);
    if (samples->count > 1 || line->json)
        samples->texts = calloc((size_t)samples->count, sizeof *samples->texts);
    int status = samples->streams && (samples->texts || (samples->count == 1 && !line->json))
                     ? 0
                     : fail_memory(error, "samples");
    for (ptrdiff_t i = 0; status == 0 && i < arrlen(line->prompts); i++) {
        if (*samples->sampler.options.stop || ferror(stdout)) break;
        if (i > 0 && !line->json) printf("---\n");
        status = print_prompt(samples, line->prompts[i], error);
    }
    free(samples->streams);
    free(samples->texts);
    return status;
}

/* Sets data.seq_len to the length of the longest text. */
static int fit_context(struct config *config, const struct tokenizer *tokenizer,
                       const struct command_line *line, struct error *error) {
    int64_t limit = sample_model_context(config), longest = 0;
    for (ptrdiff_t i = 0; i < arrlen(line->prompts); i++) {
        int32_t *tokens = NULL;
        if (sample_encode(&tokens, tokenizer, line->prompts[i], true, error)) return -1;
        if (arrlen(tokens) > longest) longest = arrlen(tokens);
        arrfree(tokens);
    }
    longest += config->sample.tokens;
    if (longest < config->samples) longest = config->samples;
    config->data.seq_len = sample_length(longest, limit);
    return 0;
}

int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error) {
    struct tokenizer tokenizer;
    struct sample_model sampled;
    struct config fitted = *config;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return EXIT_FAILED;
    int status = EXIT_FAILED;
    fitted.samples = line->samples > 0 ? line->samples : 1;
    if (fit_context(&fitted, &tokenizer, line, error) == 0 &&
        sample_model_open(&sampled, &fitted, from, error) == 0) {
        struct samples samples = {.line = line, .tokenizer = &tokenizer, .count = fitted.samples};
        struct sample_options options = sample_options_of(config);
        options.stop = signals_catch();
        options.vocabulary = tokenizer.vocab_size;
        if (sample_find_ends(&options, config, &tokenizer, from, error) == 0 &&
            sampler_open(&samples.sampler, &sampled.model, &options, error) == 0) {
            if (print_prompts(&samples, error) == 0)
                status = *options.stop ? EXIT_SIGNAL + *options.stop : EXIT_DONE;
            sampler_close(&samples.sampler);
        }
        sample_model_close(&sampled);
    }
    tokenizer_close(&tokenizer);
    return status;
}
