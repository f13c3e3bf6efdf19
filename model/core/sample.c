#include "model/core/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/min_max.h"
#include "data/util/progress.h"
#include "data/util/random.h"
#include "model/core/forward.h"

/* Prompts are padded to multiples of this, so that few matmul shapes occur. */
enum { LENGTH_STEP = 64 };

int64_t sample_length(int64_t tokens, int64_t limit) {
    int64_t padded = round_up(tokens, LENGTH_STEP);
    return padded < limit ? padded : limit;
}

static void plan_added(struct gpt *gpt, int64_t rows) {
    int64_t longest = gpt->capacity.sequence_length;
    const struct added added = {rows, .stride = rows, .keys_to = longest};
    gpt_logits(gpt, gpt_extend(gpt, &added), gpt->texts);
}

void sample_plan(struct gpt *gpt) {
    int64_t longest = gpt->capacity.sequence_length;
    gpt_set_batch(gpt, 1, longest);
    for (int64_t length = LENGTH_STEP;; length += LENGTH_STEP) {
        gpt_prefill(gpt, MIN(length, longest), 0);
        if (length >= longest) break;
    }
    plan_added(gpt, gpt->texts);
    if (gpt->texts == 1) plan_added(gpt, gpt_added_max(gpt));
    else gpt_logits(gpt, 0, 1);
    gpt_set_batch(gpt, gpt->capacity.batch, longest);
}

void sample_plan_exact(struct gpt *gpt) {
    gpt_forward(gpt);
    gpt_losses(gpt, 0);
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

/* Copies the logits of a text to weights, with the repetition penalty. */
static void penalize(struct sampler *sampler, int64_t text) {
    const float penalty = (float)sampler->options.repetition_penalty;
    const float *logits = sampler->logits + text * sampler->gpt->shape.padded_vocab;
    memcpy(sampler->weights, logits, (size_t)sampler->vocabulary * sizeof *logits);
    if (!sampler->seen) return;
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        float *weight = &sampler->weights[i];
        if (!sampler->seen[text * sampler->vocabulary + i]) continue;
        *weight = *weight > 0 ? *weight / penalty : *weight * penalty;
    }
}

/* Turns logits into sampling weights. best: the largest logit, whose weight is 1. */
static void weigh(struct sampler *sampler, float best) {
    const struct sample_options *rules = &sampler->options;
    float *weights = sampler->weights;
    int64_t count = sampler->vocabulary;
    keep_largest(weights, sampler->order, count, rules->top_k, -INFINITY);
    for (int64_t i = 0; i < count; i++)
        weights[i] = (float)exp((double)(weights[i] - best) / rules->temperature);
    if (rules->top_p < 1) {
        double wanted = rules->top_p * sum_of(weights, count);
        int64_t size = nucleus_size(weights, sampler->order, count, wanted);
        keep_largest(weights, sampler->order, count, size, 0);
    }
    for (int64_t i = 0; i < count; i++)
        if (weights[i] < rules->min_p) weights[i] = 0;
}

/* Draws the next token of a text from its weights. */
static int draw(struct sampler *sampler, int64_t text) {
    const struct sample_options *options = &sampler->options;
    penalize(sampler, text);
    int64_t best = likeliest(sampler->weights, sampler->vocabulary);
    if (options->temperature == 0) return (int)best;
    weigh(sampler, sampler->weights[best]);
    double left =
        random_uniform(options->seed, options->stream + (uint64_t)text, sampler->position) *
        sum_of(sampler->weights, sampler->vocabulary);
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        left -= sampler->weights[i];
        if (left < 0) return (int)i;
    }
    return (int)best;
}

static bool is_finite(const float *logits, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY) return false;
    return true;
}

int sampler_draw(struct sampler *sampler, int32_t *tokens, struct error *error) {
    for (int64_t text = 0; text < sampler->texts; text++) {
        const float *logits = sampler->logits + text * sampler->gpt->shape.padded_vocab;
        if (!is_finite(logits, sampler->vocabulary))
            return fail(error,
                        "the prediction is not finite: the model has diverged, or its values "
                        "are too large\nfor this precision; try precision fp32");
        tokens[text] = draw(sampler, text);
    }
    return 0;
}

static int32_t *context_of(const struct sampler *sampler, int64_t text) {
    return sampler->context + text * sampler->window;
}

/* Computes the logits of `rows` rows from `first` on and stores `kept` of them, after `skipped`
 * ones, in fp32 as the predictions of texts from `text` on. */
static void fetch_logits(struct sampler *sampler, int64_t first, int64_t rows, int64_t skipped,
                         int64_t text, int64_t kept) {
    struct gpt *gpt = sampler->gpt;
    int64_t columns = gpt->shape.padded_vocab;
    const struct tensor *all = &gpt->activations.logits;
    gpt_logits(gpt, first, rows);
    for (int64_t i = 0; i < kept; i++) {
        struct tensor row = tensor_slice(all, skipped + i, 1);
        float *logits = sampler->logits + (text + i) * columns;
        backend_download(gpt->be, sampler->order, row.data, tensor_bytes(&row));
        const float *wide = dtype_widen(logits, sampler->order, row.dtype, 0, (size_t)columns);
        if (wide != logits) memcpy(logits, wide, (size_t)columns * sizeof *wide);
    }
}

/* Runs the training forward pass on all contexts, padded at their ends, where causal attention
 * ignores it, and computes logits in the chunks of gpt_loss. */
static void predict_exactly(struct sampler *sampler) {
    struct gpt *gpt = sampler->gpt;
    const struct gpt_shape *s = &gpt->shape;
    backend_upload(gpt->be, gpt->activations.tokens, sampler->context,
                   (size_t)s->rows * sizeof *sampler->context);
    gpt_forward(gpt);
    for (int64_t text = 0; text < sampler->texts; text++) {
        int64_t row = text * sampler->window + sampler->length - 1;
        int64_t first = row / s->logit_rows * s->logit_rows;
        int64_t rows = s->rows - first < s->logit_rows ? s->rows - first : s->logit_rows;
        fetch_logits(sampler, first, rows, row - first, text, 1);
    }
}

/* Runs the model on the whole contexts, each padded at its end. Texts that are equal share their
 * rows of the cache. The padding of one text is overwritten by the next. */
static void read_contexts(struct sampler *sampler) {
    struct gpt *gpt = sampler->gpt;
    int64_t padded = sample_length(sampler->length, sampler->window);
    sampler->prefix = sampler->length;
    for (int64_t text = 0; text < (sampler->shared ? 1 : sampler->texts); text++) {
        backend_upload(gpt->be, gpt->activations.tokens, context_of(sampler, text),
                       (size_t)padded * sizeof *sampler->context);
        gpt_prefill(gpt, padded, text * sampler->prefix);
        fetch_logits(sampler, sampler->length - 1, 1, 0, text, 1);
    }
    size_t bytes = (size_t)gpt->shape.padded_vocab * sizeof *sampler->logits;
    for (int64_t text = 1; sampler->shared && text < sampler->texts; text++)
        memcpy(sampler->logits + text * gpt->shape.padded_vocab, sampler->logits, bytes);
}

/* Runs the model on the last token of each text, or on the last `rows` tokens of a single one.
 * Padding rows repeat the last token. The keys and values of texts alternate after the prefixes. */
static void read_added(struct sampler *sampler, int64_t rows, int64_t padded) {
    struct gpt *gpt = sampler->gpt;
    int64_t texts = sampler->texts, prefix = sampler->prefix, before = sampler->length - rows;
    int64_t own = prefix * (sampler->shared ? 1 : texts), count = texts == 1 ? padded : texts;
    struct added_arrays arrays = added_arrays_in(sampler->added, count);
    for (int64_t i = 0; i < count; i++) {
        int64_t text = texts == 1 ? 0 : i, step = texts == 1 && i < rows ? i : rows - 1;
        int64_t position = before + step;
        arrays.keys[i] =
            (struct decode_keys){(int32_t)(sampler->shared ? 0 : text * prefix), (int32_t)prefix,
                                 (int32_t)(own + text), (int32_t)(position + 1 - prefix)};
        arrays.tokens[i] = context_of(sampler, text)[position];
        arrays.positions[i] = (int32_t)position;
    }
    backend_upload(gpt->be, gpt->added, sampler->added, added_bytes(count));
    const struct added added = {count, own + (before - prefix) * texts, texts, before + 1,
                                sampler->length};
    int64_t row = gpt_extend(gpt, &added);
    fetch_logits(sampler, row + (texts == 1 ? rows - 1 : 0), texts, 0, 0, texts);
}

/* Notes the tokens of a text for the repetition penalty. */
static void mark_seen(struct sampler *sampler, int64_t text, const int32_t *tokens, int64_t count) {
    bool *seen = sampler->seen ? sampler->seen + text * sampler->vocabulary : NULL;
    for (int64_t i = 0; seen && i < count; i++)
        if (tokens[i] < sampler->vocabulary) seen[tokens[i]] = true;
}

/* Appends `count` tokens, at most a window, to each context; text i's tokens begin at i * stride.
 * If they do not fit, the older part of the contexts is dropped. */
static void push(struct sampler *sampler, const int32_t *tokens, int64_t count, int64_t stride) {
    int64_t kept = sampler->length;
    if (kept + count > sampler->window) kept = sampler->window / 2;
    if (kept + count > sampler->window) kept = sampler->window - count;
    for (int64_t text = 0; text < sampler->texts; text++) {
        const int32_t *added = tokens + text * stride;
        int32_t *context = context_of(sampler, text);
        memmove(context, context + sampler->length - kept, (size_t)kept * sizeof *context);
        memcpy(context + kept, added, (size_t)count * sizeof *context);
        memset(context + kept + count, 0,
               (size_t)(sampler->window - kept - count) * sizeof *context);
        mark_seen(sampler, text, added, count);
    }
    sampler->length = kept + count;
    sampler->position += (uint64_t)count;
}

void sampler_append(struct sampler *sampler, const int32_t *tokens) {
    bool rereads = sampler->length == 0 || sampler->length == sampler->window;
    if (rereads) sampler->shared = sampler->texts == 1;
    push(sampler, tokens, 1, 1);
    if (sampler->options.exact) predict_exactly(sampler);
    else if (rereads) read_contexts(sampler);
    else read_added(sampler, 1, 1);
}

void sampler_read(struct sampler *sampler, const int32_t *tokens, int64_t count) {
    int64_t dropped = count - sampler->window, most = gpt_added_max(sampler->gpt);
    assert(count > 0);
    for (int64_t text = 0; text < sampler->texts; text++) mark_seen(sampler, text, tokens, dropped);
    if (dropped > 0) tokens += dropped, count -= dropped, sampler->position += (uint64_t)dropped;
    if (sampler->texts > 1 || sampler->length == 0 || sampler->options.exact ||
        sampler->length + count > sampler->window) {
        sampler->shared = sampler->texts == 1 || sampler->length == 0;
        push(sampler, tokens, count, 0);
        if (sampler->options.exact) predict_exactly(sampler);
        else read_contexts(sampler);
        return;
    }
    for (int64_t rows; count > 0; tokens += rows, count -= rows) {
        int64_t padded = count > 1 && sampler->length + most <= sampler->window ? most : 1;
        rows = MIN(count, padded);
        push(sampler, tokens, rows, 0);
        read_added(sampler, rows, padded);
    }
}

int sampler_open(struct sampler *sampler, struct gpt *gpt, const struct sample_options *options,
                 struct error *error) {
    size_t columns = (size_t)gpt->shape.padded_vocab;
    *sampler = (struct sampler){.gpt = gpt, .options = *options};
    sampler->texts = options->exact ? gpt->capacity.batch : gpt->texts;
    sampler->window = gpt->capacity.sequence_length;
    sampler->vocabulary = gpt->shape.vocab_size;
    if (options->vocabulary > 0 && options->vocabulary < sampler->vocabulary)
        sampler->vocabulary = options->vocabulary;
    size_t texts = (size_t)sampler->texts, vocabulary = (size_t)sampler->vocabulary;
    bool penalizes = options->repetition_penalty > 0 && options->repetition_penalty != 1;
    sampler->context = calloc(texts * (size_t)sampler->window, sizeof *sampler->context);
    sampler->logits = malloc(texts * columns * sizeof *sampler->logits);
    sampler->weights = malloc(columns * sizeof *sampler->weights);
    sampler->order = malloc(columns * sizeof *sampler->order);
    sampler->added = malloc(added_bytes(gpt_added_max(gpt)));
    if (penalizes) sampler->seen = calloc(texts * vocabulary, sizeof *sampler->seen);
    if (!sampler->context || !sampler->logits || !sampler->weights || !sampler->order ||
        !sampler->added || (penalizes && !sampler->seen)) {
        sampler_close(sampler);
        return fail(error, "out of memory for a sample");
    }
    gpt_set_batch(gpt, options->exact ? gpt->capacity.batch : 1, sampler->window);
    return 0;
}

void sampler_close(struct sampler *sampler) {
    free(sampler->context);
    free(sampler->seen);
    free(sampler->logits);
    free(sampler->weights);
    free(sampler->order);
    free(sampler->added);
    *sampler = (struct sampler){0};
}

/* Passes a token on. Returns true if the text ends with it. */
static bool emit_token(const struct sample_options *options, int64_t text, int32_t token) {
    int end = 0;
    while (end < options->end_count && options->ends[end] != token) end++;
    const bool ended = end < options->end_count;
    if (!options->emit || (ended && !options->shown[end])) return ended;
    return !options->emit(options->context, text, token) || ended;
}

/* Passes new tokens on, and marks texts that end. Returns the number of texts that continue. */
static int64_t emit(const struct sample_options *options, const int32_t *tokens, bool *ended,
                    int64_t texts, struct sample_result *result) {
    int64_t left = 0;
    for (int64_t text = 0; text < texts; text++) {
        if (ended[text]) continue;
        result->tokens++;
        ended[text] = emit_token(options, text, tokens[text]);
        left += !ended[text];
    }
    return left;
}

static int run(struct sampler *sampler, struct sample_result *result, int32_t *tokens, bool *ended,
               struct error *error) {
    const struct sample_options *options = &sampler->options;
    const struct backend *be = sampler->gpt->be;
    double began = progress_clock();
    sampler_read(sampler, options->prompt, options->prompt_length);
    double read = progress_clock();
    for (int64_t i = 0; i < options->tokens && !be->failure.text[0]; i++) {
        if (options->stop && *options->stop) break;
        if (sampler_draw(sampler, tokens, error)) return -1;
        if (emit(options, tokens, ended, sampler->texts, result) == 0) break;
        if (i + 1 < options->tokens) sampler_append(sampler, tokens);
    }
    result->prompt_seconds = read - began;
    result->tokens_seconds = progress_clock() - read;
    return be->failure.text[0] ? fail(error, "%s", be->failure.text) : 0;
}

int sampler_generate(struct sampler *sampler, struct sample_result *result, struct error *error) {
    int32_t *tokens = calloc((size_t)sampler->texts, sizeof *tokens);
    bool *ended = calloc((size_t)sampler->texts, sizeof *ended);
    *result = (struct sample_result){0};
    int status = tokens && ended ? run(sampler, result, tokens, ended, error)
                                 : fail(error, "out of memory for a sample");
    free(tokens);
    free(ended);
    return status;
}

int sample_tokens(struct gpt *gpt, struct sample_result *result,
                  const struct sample_options *options, struct error *error) {
    struct sampler sampler;
    if (sampler_open(&sampler, gpt, options, error)) return -1;
    int status = sampler_generate(&sampler, result, error);
    sampler_close(&sampler);
    return status;
}
