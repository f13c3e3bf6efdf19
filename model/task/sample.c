#include "model/task/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/min_max.h"
#include "data/util/progress.h"
#include "data/util/random.h"
#include "model/pass/forward.h"

/* Prompts are padded to multiples of this, so that few matmul shapes occur. */
enum { LENGTH_STEP = 64 };

/* Number of weights from which on several threads compute them. */
enum { PARALLEL_MIN = 16384 };

int64_t sample_length(int64_t tokens, int64_t limit) {
    int64_t padded = round_up(tokens, LENGTH_STEP);
    return padded < limit ? padded : limit;
}

/* Returns a pass over one sequence, or over `texts` ones if sampling is exact. */
static struct pass pass_of(struct model *model, enum pass_kind kind, int64_t texts, int64_t rows) {
    const int64_t window = model->capacity.sequence_length;
    return (struct pass){
        .model = model, .kind = kind, .batch = {.batch = texts, .length = window}, .rows = rows};
}

static void plan_added(struct model *model, int64_t rows) {
    struct pass pass = pass_of(model, PASS_EXTEND, 1, rows);
    pass.decode = (struct pass_decode){.stride = rows, .longest = model->capacity.sequence_length};
    model_forward(&pass);
    model_logits(model, pass_first_row(&pass), model->texts);
}

void sample_plan(struct model *model) {
    int64_t longest = model->capacity.sequence_length;
    for (int64_t length = LENGTH_STEP;; length += LENGTH_STEP) {
        const struct pass pass = pass_of(model, PASS_PREFILL, 1, MIN(length, longest));
        model_forward(&pass);
        if (length >= longest) break;
    }
    plan_added(model, model->texts);
    if (model->texts == 1) plan_added(model, model_added_max(model));
    else model_logits(model, 0, 1);
}

void sample_plan_exact(struct model *model) {
    const struct pass pass =
        pass_of(model, PASS_EVALUATE, model->capacity.batch, model->capacity.rows);
    model_forward(&pass);
    model_head(&pass, &(struct head_args){.losses = model->activations.losses.data});
}

/* Returns the k-th largest of count values, k >= 1, by quickselect, which reorders the values. */
static float select_largest(float *values, int64_t count, int64_t k) {
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

static float largest(const float *values, int64_t count) {
    float best = -INFINITY;
#pragma omp simd reduction(max : best)
    for (int64_t i = 0; i < count; i++) best = values[i] > best ? values[i] : best;
    return best;
}

/* Returns the k-th largest of count values, k >= 1. The k-th largest of the maxima of blocks is not
 * above it, so smaller values are left out first. scratch: [count]. */
static float kth_largest(const float *values, float *scratch, int64_t count, int64_t k) {
    enum { BLOCK = 64 };
    const int64_t blocks = count / BLOCK;
    float least = -INFINITY;
    int64_t found = 0;
    if (k <= blocks) {
        for (int64_t i = 0; i < blocks; i++) scratch[i] = largest(values + i * BLOCK, BLOCK);
        least = select_largest(scratch, blocks, k);
    }
    for (int64_t i = 0; i < count; i++) {
        scratch[found] = values[i];
        found += values[i] >= least;
    }
    return select_largest(scratch, found, k);
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
        float threshold = kth_largest(weights, scratch, count, sorted);
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

static float *logits_of(const struct sampler *sampler, int64_t row) {
    return sampler->logits + row * sampler->model->shape.padded_vocab;
}

/* Copies the logits of a text to weights, with the repetition penalty. */
static void penalize(struct sampler *sampler, int64_t text) {
    const float penalty = (float)sampler->options.repetition_penalty;
    const float *logits = logits_of(sampler, text);
    memcpy(sampler->weights, logits, (size_t)sampler->vocabulary * sizeof *logits);
    if (!sampler->seen) return;
    for (int64_t i = 0; i < sampler->vocabulary; i++) {
        float *weight = &sampler->weights[i];
        if (!sampler->seen[text * sampler->vocabulary + i]) continue;
        *weight = *weight > 0 ? *weight / penalty : *weight * penalty;
    }
}

/* Keeps the weights from a threshold on, of `count` ones, and their tokens. Of those that equal it
 * the first `equals` are kept. Returns their number. */
static int64_t keep_from(struct sampler *sampler, int64_t count, float threshold, int64_t equals) {
    float *weights = sampler->weights;
    int64_t kept = 0;
    for (int64_t i = 0; i < count; i++) {
        const bool equal = weights[i] == threshold;
        weights[kept] = weights[i];
        sampler->kept[kept] = sampler->kept[i];
        kept += weights[i] > threshold || (equal && equals > 0);
        equals -= equal;
    }
    return kept;
}

/* Turns logits into sampling weights. best: the largest logit, whose weight is 1. Returns the
 * number of tokens that are left, which are in sampler->kept. */
static int64_t weigh(struct sampler *sampler, float best) {
    const struct sample_options *rules = &sampler->options;
    float *weights = sampler->weights, *scratch = sampler->order;
    int64_t count = sampler->vocabulary;
    for (int64_t i = 0; i < count; i++) sampler->kept[i] = (int32_t)i;
    if (rules->top_k > 0 && rules->top_k < count)
        count =
            keep_from(sampler, count, kth_largest(weights, scratch, count, rules->top_k), count);
#pragma omp parallel for schedule(static) if (count > PARALLEL_MIN)
    for (int64_t i = 0; i < count; i++)
        weights[i] = (float)exp((double)(weights[i] - best) / rules->temperature);
    if (rules->top_p < 1) {
        const double wanted = rules->top_p * sum_of(weights, count);
        const int64_t size = nucleus_size(weights, scratch, count, wanted);
        const float threshold = kth_largest(weights, scratch, count, size);
        int64_t above = 0;
        for (int64_t i = 0; i < count; i++) above += weights[i] > threshold;
        count = keep_from(sampler, count, threshold, size - above);
    }
    for (int64_t i = 0; i < count; i++)
        if (weights[i] < rules->min_p) weights[i] = 0;
    return count;
}

static bool is_finite(const float *logits, int64_t count) {
    int bad = 0;
    for (int64_t i = 0; i < count; i++) bad |= !(logits[i] < INFINITY);
    return !bad;
}

/* Draws a text's token at a position from a row of the prediction. */
static int draw(struct sampler *sampler, int64_t row, uint64_t stream, uint64_t position) {
    const struct sample_options *options = &sampler->options;
    const float *weights = sampler->weights;
    penalize(sampler, row);
    const float best = largest(weights, sampler->vocabulary);
    int64_t likeliest = 0;
    while (weights[likeliest] < best) likeliest++;
    sampler->drawn = 0;
    if (options->temperature == 0) return (int)likeliest;
    const int64_t count = weigh(sampler, best);
    const double sum = sum_of(weights, count);
    double left = random_uniform(options->seed, stream, position) * sum;
    for (int64_t i = 0; i < count; i++) {
        left -= weights[i];
        if (left >= 0) continue;
        sampler->drawn = (float)log(sum / weights[i]);
        return sampler->kept[i];
    }
    sampler->drawn = (float)log(sum); /* its weight is 1 */
    return (int)likeliest;
}

static int draw_finite(struct sampler *sampler, int32_t *token, int64_t row, uint64_t stream,
                       uint64_t position, struct error *error) {
    if (!is_finite(logits_of(sampler, row), sampler->vocabulary))
        return fail(error, "the prediction is not finite: the model has diverged, or its values "
                           "are too large\nfor this precision; try precision fp32");
    *token = draw(sampler, row, stream, position);
    return 0;
}

int sampler_draw(struct sampler *sampler, int32_t *tokens, struct error *error) {
    const uint64_t stream = sampler->options.stream;
    for (int64_t text = 0; text < sampler->texts; text++)
        if (draw_finite(sampler, &tokens[text], text, stream + (uint64_t)text, sampler->position,
                        error))
            return -1;
    return 0;
}

static int32_t *context_of(const struct sampler *sampler, int64_t text) {
    return sampler->contexts.host.tokens + text * sampler->window;
}

/* Computes the logits of `rows` rows from `first` on and stores `kept` of them, after `skipped`
 * ones, in fp32 as the predictions of texts from `text` on. */
static void fetch_logits(struct sampler *sampler, int64_t first, int64_t rows, int64_t skipped,
                         int64_t text, int64_t kept) {
    struct model *model = sampler->model;
    int64_t columns = model->shape.padded_vocab;
    const struct tensor *all = &model->activations.logits;
    model_logits(model, first, rows);
    for (int64_t i = 0; i < kept; i++) {
        struct tensor row = tensor_slice(all, skipped + i, 1);
        float *logits = sampler->logits + (text + i) * columns;
        backend_download(model->be, sampler->order, row.data, tensor_bytes(&row));
        const float *wide = dtype_widen(logits, sampler->order, row.dtype, 0, (size_t)columns);
        if (wide != logits) memcpy(logits, wide, (size_t)columns * sizeof *wide);
    }
}

/* Runs the training forward pass on all contexts, padded at their ends, where causal attention
 * ignores it, and computes logits in the chunks of objective_loss. */
static void predict_exactly(struct sampler *sampler) {
    struct model *model = sampler->model;
    const struct model_shape *s = &model->shape;
    const struct pass pass = {.model = model,
                              .kind = PASS_EVALUATE,
                              .batch = sampler->contexts.sent,
                              .rows = sampler->texts * sampler->window};
    batch_upload(&sampler->contexts);
    model_forward(&pass);
    for (int64_t text = 0; text < sampler->texts; text++) {
        int64_t row = text * sampler->window + sampler->length - 1;
        int64_t first = row / s->logit_rows * s->logit_rows;
        int64_t rows = s->rows - first < s->logit_rows ? s->rows - first : s->logit_rows;
        fetch_logits(sampler, first, rows, row - first, text, 1);
    }
}

static void point_at(struct pass *pass, const struct batch_view *sent, int64_t row) {
    pass->batch.tokens = sent->tokens + row;
    if (sent->positions) pass->batch.positions = sent->positions + row;
    if (sent->first_keys) pass->batch.first_keys = sent->first_keys + row;
}

/* Runs the model on the whole contexts, each padded at its end. Texts that are equal share their
 * rows of the cache. The padding of one text is overwritten by the next. */
static void read_contexts(struct sampler *sampler) {
    struct model *model = sampler->model;
    const struct batch_view *sent = &sampler->contexts.sent;
    struct pass pass =
        pass_of(model, PASS_PREFILL, 1, sample_length(sampler->length, sampler->window));
    sampler->prefix = sampler->length;
    batch_upload(&sampler->contexts);
    for (int64_t text = 0; text < (sampler->shared ? 1 : sampler->texts); text++) {
        point_at(&pass, sent, text * sampler->window);
        pass.cache_row = text * sampler->prefix;
        pass.state_rows = sampler->length;
        pass.text = text;
        model_forward(&pass);
        fetch_logits(sampler, sampler->length - 1, 1, 0, text, 1);
    }
    size_t bytes = (size_t)model->shape.padded_vocab * sizeof *sampler->logits;
    for (int64_t text = 1; sampler->shared && text < sampler->texts; text++) {
        memcpy(sampler->logits + text * model->shape.padded_vocab, sampler->logits, bytes);
        model_copy_text(model, 0, text, 0);
    }
}

/* Runs the model on a context of `length` tokens, padded at its end, and stores its keys and values
 * in rows of its own. The prediction is the last row of the logits. */
static void read_prompt(struct sampler *sampler, int64_t text, int64_t length) {
    const struct batch_view *sent = &sampler->contexts.sent;
    struct pass pass =
        pass_of(sampler->model, PASS_PREFILL, 1, sample_length(length, sampler->window));
    batch_pad(&sampler->contexts.host, text, length);
    batch_upload(&sampler->contexts);
    point_at(&pass, sent, text * sampler->window);
    pass.cache_row = text * sampler->window;
    pass.state_rows = length;
    pass.text = text;
    model_forward(&pass);
    fetch_logits(sampler, length - 1, 1, 0, sampler->texts, 1);
}

/* Runs the model on the last token of each text, or on the last `rows` tokens of a single one.
 * Padding rows repeat the last token. The keys and values of texts alternate after the prefixes. */
static void read_added(struct sampler *sampler, int64_t rows, int64_t padded) {
    int64_t texts = sampler->texts, prefix = sampler->prefix, before = sampler->length - rows;
    int64_t own = prefix * (sampler->shared ? 1 : texts), count = texts == 1 ? padded : texts;
    const struct batch_view *host = &sampler->added.host, *sent = &sampler->added.sent;
    for (int64_t i = 0; i < count; i++) {
        int64_t text = texts == 1 ? 0 : i, step = texts == 1 && i < rows ? i : rows - 1;
        int64_t position = before + step;
        host->keys[i] =
            (struct decode_keys){(int32_t)(sampler->shared ? 0 : text * prefix), (int32_t)prefix,
                                 (int32_t)(own + text), (int32_t)(position + 1 - prefix)};
        host->tokens[i] = context_of(sampler, text)[position];
        host->positions[i] = (int32_t)position;
    }
    batch_upload(&sampler->added);
    struct pass pass = pass_of(sampler->model, PASS_EXTEND, 1, count);
    pass.batch.tokens = sent->tokens, pass.batch.positions = sent->positions;
    pass.batch.keys = sent->keys;
    pass.cache_row = own + (before - prefix) * texts;
    pass.state_rows = texts == 1 ? rows : 0;
    pass.decode =
        (struct pass_decode){.stride = texts, .least = before + 1, .longest = sampler->length};
    model_forward(&pass);
    fetch_logits(sampler, pass_first_row(&pass) + (texts == 1 ? rows - 1 : 0), texts, 0, 0, texts);
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
        batch_pad(&sampler->contexts.host, text, kept + count);
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
    int64_t dropped = count - sampler->window, most = model_added_max(sampler->model);
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

/* Rows that continue texts. */
static struct batch_format added_format(const struct model *model) {
    return (struct batch_format){1, model_added_max(model), .arrays = BATCH_POSITIONS | BATCH_KEYS};
}

/* Whole contexts. Only quantized tensors have a scale that padding could change. */
static struct batch_format contexts_format(const struct model *model, int64_t texts) {
    const bool quantizes = model->precision.quantizes;
    return (struct batch_format){.batch = texts,
                                 .length = model->capacity.sequence_length,
                                 .arrays = quantizes ? BATCH_FIRST_KEYS | BATCH_POSITIONS : 0};
}

size_t sampler_bytes(const struct model *model) {
    const struct batch_format contexts = contexts_format(model, model->texts);
    const struct batch_format added = added_format(model);
    return batch_bytes(model->be, &contexts) + batch_bytes(model->be, &added);
}

static int allocate(struct sampler *sampler, struct error *error) {
    const struct model *model = sampler->model;
    const double penalty = sampler->options.repetition_penalty;
    const bool penalizes = penalty > 0 && penalty != 1;
    const size_t columns = (size_t)model->shape.padded_vocab, texts = (size_t)sampler->texts;
    const struct batch_format contexts = contexts_format(model, sampler->texts);
    const struct batch_format added = added_format(model);
    sampler->logits = malloc((texts + 1) * columns * sizeof *sampler->logits);
    sampler->weights = malloc(columns * sizeof *sampler->weights);
    sampler->order = malloc(columns * sizeof *sampler->order);
    sampler->kept = malloc(columns * sizeof *sampler->kept);
    if (penalizes) sampler->seen = calloc(texts * (size_t)sampler->vocabulary, sizeof(bool));
    if (!sampler->logits || !sampler->weights || !sampler->order || !sampler->kept ||
        (penalizes && !sampler->seen))
        return fail_memory(error, "a sample");
    if (batch_open(&sampler->contexts, model->be, &contexts, error)) return -1;
    return sampler->options.exact ? 0 : batch_open(&sampler->added, model->be, &added, error);
}

int sampler_open(struct sampler *sampler, struct model *model, const struct sample_options *options,
                 struct error *error) {
    *sampler = (struct sampler){.model = model, .options = *options};
    sampler->texts = options->exact ? model->capacity.batch : model->texts;
    sampler->window = model->capacity.sequence_length;
    sampler->vocabulary = model->shape.vocab_size;
    if (options->vocabulary > 0 && options->vocabulary < sampler->vocabulary)
        sampler->vocabulary = options->vocabulary;
    if (allocate(sampler, error) == 0) return 0;
    sampler_close(sampler);
    return -1;
}

void sampler_close(struct sampler *sampler) {
    free(sampler->seen);
    free(sampler->logits);
    free(sampler->weights);
    free(sampler->order);
    free(sampler->kept);
    batch_close(&sampler->contexts);
    batch_close(&sampler->added);
    *sampler = (struct sampler){0};
}

void sampler_begin(struct sampler *sampler) {
    sampler->length = 0;
    sampler->position = 0;
    if (sampler->seen)
        memset(sampler->seen, 0, (size_t)(sampler->texts * sampler->vocabulary) * sizeof(bool));
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
    const struct backend *be = sampler->model->be;
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
                                 : fail_memory(error, "a sample");
    free(tokens);
    free(ended);
    return status;
}

/* ---- texts of different prompts */

/* Texts that are drawn at the moment, each in a slot: a part of the cache and of the contexts. */
struct slots {
    const struct sample_text *texts;
    int64_t count, next, active; /* next: the first text that has not begun */
    int64_t *text, *length; /* [sampler->texts] text of a slot, -1: none; tokens of it so far */
    int64_t source;         /* slot whose rows begin with the prompt of text next - 1, whose
                             * prediction is the last row of the logits; -1: none */
    bool extended;          /* since that prompt was read */
    bool compact;           /* rows of free slots are not computed */
};

/* True if the number of rows of a pass changes no bits of their products: kernels/cpu/few_rows.h.
 * Otherwise all passes have as many rows as there are slots. */
static bool rows_are_independent(const struct model *model) {
    const struct precision *p = &model->precision;
    const struct backend_description *device = &model->be->device;
    bool narrow = device->host_memory && !p->quantizes && !model->states.rank &&
                  model->texts <= device->stored_rows[p->compute_dtype];
    for (enum autocast_site site = 0; site < AUTOCAST_SITE_COUNT; site++)
        if (linear_index(site) >= 0 || site == SITE_LM_HEAD)
            narrow = narrow && p->site[site] == p->compute_dtype;
    return narrow;
}

/* Draws a token of a slot's text from a row of the prediction. The slot becomes free if the text
 * ends. */
static int draw_in_slot(struct sampler *sampler, struct slots *slots, int64_t slot, int64_t row,
                        struct sample_result *result, struct error *error) {
    const struct sample_options *options = &sampler->options;
    const struct sample_text *text = &slots->texts[slots->text[slot]];
    int64_t *length = &slots->length[slot];
    int32_t token = 0;
    if (draw_finite(sampler, &token, row, text->stream, (uint64_t)*length, error)) return -1;
    result->tokens++;
    const bool ended = emit_token(options, slots->text[slot], token) ||
                       *length + 1 == text->prompt_length + options->tokens;
    if (ended) slots->text[slot] = -1, slots->active--;
    else context_of(sampler, slot)[(*length)++] = token; /* the last one has no row in the cache */
    return 0;
}

static bool begin_alike(const struct sample_text *a, const struct sample_text *b) {
    return a->prompt_length == b->prompt_length &&
           memcmp(a->prompt, b->prompt, (size_t)a->prompt_length * sizeof *a->prompt) == 0;
}

/* Begins the next text in a slot, by its prompt's rows of another one if they are there. */
static int begin_text(struct sampler *sampler, struct slots *slots, int64_t slot,
                      struct sample_result *result, struct error *error) {
    struct model *model = sampler->model;
    const struct sample_text *text = &slots->texts[slots->next];
    const int64_t length = text->prompt_length, source = slots->source;
    memcpy(context_of(sampler, slot), text->prompt, (size_t)length * sizeof *text->prompt);
    if (source >= 0 && begin_alike(text, text - 1) && !(slots->extended && model->states.rank)) {
        if (slot != source) model_copy_text(model, source, slot, length);
    } else {
        read_prompt(sampler, slot, length);
        slots->source = slot;
        slots->extended = false;
    }
    slots->text[slot] = slots->next++;
    slots->length[slot] = length;
    slots->active++;
    return draw_in_slot(sampler, slots, slot, sampler->texts, result, error);
}

/* Runs the model on the last token of each text. Rows of free slots repeat a text's, so that they
 * change no scale of quantized tensors, and are stored in their own slot. */
static void extend_texts(struct sampler *sampler, struct slots *slots) {
    const struct batch_view *host = &sampler->added.host, *sent = &sampler->added.sent;
    const int64_t window = sampler->window;
    struct pass pass = pass_of(sampler->model, PASS_EXTEND, 1, 0);
    pass.decode = (struct pass_decode){.stride = 1, .scatters = true};
    int64_t any = 0;
    while (slots->text[any] < 0) any++;
    for (int64_t slot = 0; slot < sampler->texts; slot++) {
        const bool idle = slots->text[slot] < 0;
        if (idle && slots->compact) continue;
        const int64_t from = idle ? any : slot, last = slots->length[from] - 1;
        host->keys[pass.rows] =
            (struct decode_keys){(int32_t)(from * window), (int32_t)last,
                                 (int32_t)(slot * window + (idle ? 0 : last)), 1};
        host->tokens[pass.rows] = context_of(sampler, from)[last];
        host->positions[pass.rows++] = (int32_t)last;
        pass.decode.longest = MAX(pass.decode.longest, last + 1);
    }
    batch_upload(&sampler->added);
    pass.batch.tokens = sent->tokens, pass.batch.positions = sent->positions;
    pass.batch.keys = sent->keys;
    model_forward(&pass);
    fetch_logits(sampler, 0, pass.rows, 0, 0, pass.rows);
    slots->extended = true;
}

/* Begins texts in free slots. One that ends with its first token makes room for another. */
static int fill_slots(struct sampler *sampler, struct slots *slots, struct sample_result *result,
                      struct error *error) {
    for (int64_t slot = 0; slot < sampler->texts; slot++)
        while (slots->text[slot] < 0 && slots->next < slots->count)
            if (begin_text(sampler, slots, slot, result, error)) return -1;
    return 0;
}

static int draw_all(struct sampler *sampler, struct slots *slots, struct sample_result *result,
                    struct error *error) {
    for (int64_t slot = 0, row = 0; slot < sampler->texts; slot++) {
        const bool idle = slots->text[slot] < 0;
        if (!idle && draw_in_slot(sampler, slots, slot, row, result, error)) return -1;
        row += !idle || !slots->compact;
    }
    return 0;
}

static int run_slots(struct sampler *sampler, struct slots *slots, struct sample_result *result,
                     struct error *error) {
    const struct backend *be = sampler->model->be;
    double began = progress_clock();
    for (int64_t slot = 0; slot < sampler->texts; slot++) slots->text[slot] = -1;
    while ((slots->next < slots->count || slots->active > 0) && !be->failure.text[0]) {
        if (sampler->options.stop && *sampler->options.stop) return RESULT_STOPPED;
        if (fill_slots(sampler, slots, result, error)) return -1;
        const double filled = progress_clock();
        result->prompt_seconds += filled - began;
        if (slots->active > 0) {
            extend_texts(sampler, slots);
            if (draw_all(sampler, slots, result, error)) return -1;
        }
        began = progress_clock();
        result->tokens_seconds += began - filled;
    }
    return be->failure.text[0] ? fail(error, "%s", be->failure.text) : 0;
}

int sampler_generate_texts(struct sampler *sampler, const struct sample_text *texts, int64_t count,
                           struct sample_result *result, struct error *error) {
    const size_t size = (size_t)sampler->texts;
    struct slots slots = {.texts = texts,
                          .count = count,
                          .text = calloc(size, sizeof *slots.text),
                          .length = calloc(size, sizeof *slots.length),
                          .source = -1,
                          .compact = rows_are_independent(sampler->model)};
    *result = (struct sample_result){0};
    assert(!sampler->options.exact && !sampler->seen && sampler->model->has_cache);
    sampler_begin(sampler);
    const int status = slots.text && slots.length ? run_slots(sampler, &slots, result, error)
                                                  : fail_memory(error, "a sample");
    free(slots.text);
    free(slots.length);
    return status;
}
