#include "model/core/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/progress.h"
#include "data/util/random.h"
#include "model/core/forward.h"

/* Prompts are padded to multiples of this, so that few matmul shapes occur. */
enum { LENGTH_STEP = 64 };

/* State of one text being generated. */
struct sampler {
    struct gpt *gpt;
    const struct sample_options *options;
    int64_t window;     /* longest context, in tokens */
    int32_t *context;   /* [window] tokens that the model has read */
    int64_t length;     /* tokens in context */
    int64_t vocabulary; /* number of tokens that may be drawn */
    float *logits;      /* [padded vocabulary] */
    float *scratch;     /* [padded vocabulary] */
};

int64_t sample_length(int64_t tokens, int64_t limit) {
    int64_t padded = round_up(tokens, LENGTH_STEP);
    return padded < limit ? padded : limit;
}

void sample_plan(struct gpt *gpt) {
    int64_t longest = gpt->capacity.sequence_length;
    gpt_set_batch(gpt, 1, longest);
    for (int64_t length = LENGTH_STEP;; length += LENGTH_STEP) {
        gpt_prefill(gpt, length < longest ? length : longest);
        if (length >= longest) break;
    }
    gpt_decode(gpt, longest - 1);
    gpt_logits(gpt, 0);
    gpt_set_batch(gpt, gpt->capacity.batch, longest);
}

/* Returns the k-th largest of count values, k >= 1, by quickselect, which reorders the values. */
static float kth_largest(float *values, int64_t count, int64_t k) {
    int64_t first = 0, last = count - 1;
    while (first < last) {
        float middle = values[first + (last - first) / 2];
        int64_t i = first, j = last;
        while (i <= j) {
            while (values[i] > middle) i++;
            while (values[j] < middle) j--;
            if (i > j) break;
            float swap = values[i];
            values[i++] = values[j];
            values[j--] = swap;
        }
        if (k - 1 <= j) last = j;
        else if (k - 1 >= i) first = i;
        else return values[k - 1];
    }
    return values[first];
}

static int64_t likeliest(const float *logits, int64_t count) {
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Sets all but the k largest values to `none`, which is smaller than any. Of equal values at the
 * threshold the first ones are kept. scratch: [count]. */
static void keep_largest(float *values, float *scratch, int64_t count, int64_t k, float none) {
    if (k <= 0 || k >= count) return;
    memcpy(scratch, values, (size_t)count * sizeof *values);
    float threshold = kth_largest(scratch, count, k);
    for (int64_t i = 0; i < count; i++) k -= values[i] > threshold;
    for (int64_t i = 0; i < count; i++) {
        bool kept = values[i] > threshold || (values[i] == threshold && k-- > 0);
        if (!kept) values[i] = none;
    }
}

static int descending(const void *a, const void *b) {
    float left = *(const float *)a, right = *(const float *)b;
    return (left < right) - (left > right);
}

/* Returns the smallest number (at least 1) of largest weights whose sum reaches `wanted`. Few
 * weights usually suffice, so 64 are sorted first, then 8 times as many, and so on. scratch:
 * [count]. */
static int64_t nucleus_size(const float *weights, float *scratch, int64_t count, double wanted) {
    for (int64_t sorted = 64;; sorted *= 8) {
        if (sorted > count) sorted = count;
        memcpy(scratch, weights, (size_t)count * sizeof *weights);
        float threshold = kth_largest(scratch, count, sorted);
        int64_t found = 0;
        for (int64_t i = 0; i < count && found < sorted; i++)
            if (weights[i] > threshold) scratch[found++] = weights[i];
        qsort(scratch, (size_t)found, sizeof *scratch, descending);
        for (; found < sorted; found++) scratch[found] = threshold;
        double sum = 0;
        for (int64_t i = 0; i < sorted; i++) {
            sum += scratch[i];
            if (sum >= wanted) return i + 1;
        }
        if (sorted == count) return count;
    }
}

static double sum_of(const float *values, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += values[i];
    return sum;
}

/* Turns logits into sampling weights by temperature, then top_k, then top_p, the order of Hugging
 * Face's generate. */
static void weigh(struct sampler *sampler, float best) {
    const struct sample_options *options = sampler->options;
    float *weights = sampler->logits;
    int64_t count = sampler->vocabulary;
    keep_largest(weights, sampler->scratch, count, options->top_k, -INFINITY);
    for (int64_t i = 0; i < count; i++)
        weights[i] = (float)exp((double)(weights[i] - best) / options->temperature);
    if (options->top_p >= 1) return;
    double wanted = options->top_p * sum_of(weights, count);
    int64_t size = nucleus_size(weights, sampler->scratch, count, wanted);
    keep_largest(weights, sampler->scratch, count, size, 0);
}

/* Draws the token at a position of the text from the logits. */
static int draw(struct sampler *sampler, int64_t position) {
    const struct sample_options *options = sampler->options;
    int64_t best = likeliest(sampler->logits, sampler->vocabulary);
    if (options->temperature == 0) return (int)best;
    weigh(sampler, sampler->logits[best]);
    double left = random_uniform(options->seed, options->stream, (uint64_t)position) *
                  sum_of(sampler->logits, sampler->vocabulary);
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        left -= sampler->logits[i];
        if (left < 0) return (int)i;
    }
    return (int)best;
}

/* Runs the model on the whole context, padded at its end, where causal attention ignores it. */
static void read_context(struct sampler *sampler) {
    struct gpt *gpt = sampler->gpt;
    int64_t padded = sample_length(sampler->length, sampler->window);
    for (int64_t i = sampler->length; i < padded; i++) sampler->context[i] = 0;
    backend_upload(gpt->be, gpt->activations.tokens, sampler->context,
                   (size_t)padded * sizeof *sampler->context);
    gpt_prefill(gpt, padded);
}

/* Appends a token to the context and runs the model on it. */
static void read_token(struct sampler *sampler, int token) {
    struct gpt *gpt = sampler->gpt;
    if (sampler->length == sampler->window) {
        int64_t kept = sampler->window / 2;
        memmove(sampler->context, sampler->context + sampler->window - kept,
                (size_t)kept * sizeof *sampler->context);
        sampler->length = kept;
        sampler->context[sampler->length++] = token;
        read_context(sampler);
        return;
    }
    int32_t *slot = &sampler->context[sampler->length];
    *slot = token;
    backend_upload(gpt->be, gpt->activations.tokens + sampler->length, slot, sizeof *slot);
    gpt_decode(gpt, sampler->length++);
}

/* Fetches the logits that follow the context, as fp32. */
static void predict(struct sampler *sampler) {
    struct gpt *gpt = sampler->gpt;
    size_t vocabulary = (size_t)gpt->shape.padded_vocab;
    const struct tensor *out = &gpt->activations.logits;
    gpt_logits(gpt, sampler->length - 1);
    backend_download(gpt->be, sampler->scratch, out->data, vocabulary * dtype_bytes(out->dtype));
    const float *wide = dtype_widen(sampler->logits, sampler->scratch, out->dtype, 0, vocabulary);
    if (wide != sampler->logits) memcpy(sampler->logits, wide, vocabulary * sizeof *wide);
}

static int open_sampler(struct sampler *sampler, struct gpt *gpt,
                        const struct sample_options *options, struct error *error) {
    size_t vocabulary = (size_t)gpt->shape.padded_vocab;
    assert(options->prompt_length > 0);
    *sampler = (struct sampler){.gpt = gpt, .options = options};
    sampler->window = gpt->capacity.sequence_length;
    sampler->vocabulary = gpt->shape.vocab_size;
    if (options->vocabulary > 0 && options->vocabulary < sampler->vocabulary)
        sampler->vocabulary = options->vocabulary;
    sampler->context = malloc((size_t)sampler->window * sizeof *sampler->context);
    sampler->logits = malloc(vocabulary * sizeof *sampler->logits);
    sampler->scratch = malloc(vocabulary * sizeof *sampler->scratch);
    if (!sampler->context || !sampler->logits || !sampler->scratch)
        return fail(error, "out of memory for a sample");
    int64_t dropped = options->prompt_length - sampler->window;
    if (dropped < 0) dropped = 0;
    sampler->length = options->prompt_length - dropped;
    for (int64_t i = 0; i < sampler->length; i++)
        sampler->context[i] = options->prompt[dropped + i];
    return 0;
}

static void close_sampler(struct sampler *sampler) {
    free(sampler->context);
    free(sampler->logits);
    free(sampler->scratch);
}

static bool is_finite(const float *logits, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY) return false;
    return true;
}

static int run(struct sampler *sampler, struct sample_result *result, struct error *error) {
    const struct sample_options *options = sampler->options;
    const struct backend *be = sampler->gpt->be;
    double began = progress_clock();
    read_context(sampler);
    predict(sampler);
    double read = progress_clock();
    while (result->tokens < options->tokens && !be->failure.text[0]) {
        if (options->stop && *options->stop) break;
        if (!is_finite(sampler->logits, sampler->vocabulary))
            return fail(error,
                        "the prediction is not finite: the model has diverged, or its values "
                        "are too large\nfor this precision; try precision fp32");
        int token = draw(sampler, options->prompt_length + result->tokens);
        result->tokens++;
        if (token == options->ends[0] || token == options->ends[1]) break;
        if (options->emit) options->emit(options->context, token);
        if (result->tokens == options->tokens) break;
        read_token(sampler, token);
        predict(sampler);
    }
    result->prompt_seconds = read - began;
    result->tokens_seconds = progress_clock() - read;
    return 0;
}

int sample_tokens(struct gpt *gpt, struct sample_result *result,
                  const struct sample_options *options, struct error *error) {
    struct sampler sampler;
    *result = (struct sample_result){0};
    gpt_set_batch(gpt, 1, gpt->capacity.sequence_length);
    int status = open_sampler(&sampler, gpt, options, error);
    if (status == 0) status = run(&sampler, result, error);
    close_sampler(&sampler);
    if (status == 0 && gpt->be->failure.text[0]) status = fail(error, "%s", gpt->be->failure.text);
    return status;
}
