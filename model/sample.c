#include "model/sample.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/error.h"
#include "data/random.h"
#include "data/utf8.h"
#include "model/forward.h"

enum { LENGTH_STEP = 64 }; /* contexts are padded to multiples: few distinct products */

/* Padding comes after the context, where causal attention does not look. */
static int64_t padded_length(const struct gpt *gpt, int64_t length) {
    int64_t padded = round_up(length, LENGTH_STEP);
    return padded < gpt->capacity.sequence_length ? padded : gpt->capacity.sequence_length;
}

void sample_plan(struct gpt *gpt) {
    int64_t longest = gpt->capacity.sequence_length;
    for (int64_t length = LENGTH_STEP;; length += LENGTH_STEP) {
        gpt_set_batch(gpt, 1, length < longest ? length : longest);
        gpt_forward(gpt);
        gpt_logits(gpt, 0);
        if (length >= longest) break;
    }
    gpt_set_batch(gpt, gpt->capacity.batch, longest);
}

/* The k-th largest of count values, k >= 1, by repeated halving around a middle value. */
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

/* Writes the weight of each token in a draw among the k likeliest; where several are equal at the
 * border, the first ones count. weights: [count], also scratch. Returns the sum. */
static double weigh(float *weights, const float *logits, int64_t count, int64_t k, float best,
                    double temperature) {
    float border = -INFINITY;
    int64_t at_border = count; /* how many that equal the border may be drawn */
    if (k > 0 && k < count) {
        memcpy(weights, logits, (size_t)count * sizeof *weights);
        border = kth_largest(weights, count, k);
        at_border = k;
        for (int64_t i = 0; i < count; i++) at_border -= logits[i] > border;
    }
    double total = 0;
    for (int64_t i = 0; i < count; i++) {
        bool drawn = logits[i] > border || (logits[i] == border && at_border-- > 0);
        weights[i] = drawn ? (float)exp((double)(logits[i] - best) / temperature) : 0;
        total += weights[i];
    }
    return total;
}

/* logits and scratch: [count]. */
static int64_t draw(const float *logits, float *scratch, int64_t count,
                    const struct sample_options *options, int64_t position) {
    int64_t best = likeliest(logits, count);
    if (options->temperature == 0) return best;
    double total =
        weigh(scratch, logits, count, options->top_k, logits[best], options->temperature);
    double left = random_uniform(options->seed, options->stream, (uint64_t)position) * total;
    for (int64_t i = 0; i < count; i++) {
        left -= scratch[i];
        if (left < 0) return i;
    }
    return best;
}

/* The logits that follow the context, as fp32 on the host. */
static void predict(struct gpt *gpt, float *logits, int32_t *tokens, const uint8_t *context,
                    int64_t length) {
    struct backend *be = gpt->be;
    int64_t padded = padded_length(gpt, length), vocab = gpt->shape.padded_vocab;
    for (int64_t i = 0; i < padded; i++) tokens[i] = i < length ? context[i] : 0;
    gpt_set_batch(gpt, 1, padded);
    be->upload(be, gpt->activations.tokens, tokens, (size_t)padded * sizeof *tokens);
    gpt_forward(gpt);
    gpt_logits(gpt, length - 1);
    const struct tensor *out = &gpt->activations.logits;
    void *raw = logits + vocab; /* the second half of the buffer */
    be->download(be, raw, out->data, (size_t)vocab * dtype_bytes(out->dtype));
    const float *wide = dtype_widen(logits, raw, out->dtype, 0, (size_t)vocab);
    if (wide != logits) memcpy(logits, wide, (size_t)vocab * sizeof *logits);
}

int sample_text(struct gpt *gpt, uint8_t *text, int64_t *length,
                const struct sample_options *options, char *error) {
    int64_t vocab = gpt->shape.padded_vocab, window = gpt->capacity.sequence_length;
    float *logits = malloc((size_t)(2 * vocab) * sizeof *logits);
    int32_t *tokens = malloc((size_t)window * sizeof *tokens);
    assert(options->prompt_length > 0);
    if (!logits || !tokens) {
        free(logits);
        free(tokens);
        return fail(error, "out of memory for a sample");
    }
    memcpy(text, options->prompt, (size_t)options->prompt_length);
    int64_t at = options->prompt_length, end = at + options->tokens;
    for (; at < end && !gpt->be->failure[0] && !(options->stop && *options->stop); at++) {
        int64_t used = at < window ? at : window;
        predict(gpt, logits, tokens, text + at - used, used);
        int64_t limit = gpt->shape.vocab_size < 256 ? gpt->shape.vocab_size : 256;
        text[at] = (uint8_t)draw(logits, logits + vocab, limit, options, at);
    }
    free(logits);
    free(tokens);
    *length = at;
    return gpt->be->failure[0] ? fail(error, "%s", gpt->be->failure) : 0;
}

void sample_print(FILE *out, const uint8_t *text, int64_t length) {
    for (int64_t i = 0; i < length;) {
        size_t bytes = utf8_character(text + i, (size_t)(length - i));
        bool control = (text[i] < 32 && text[i] != '\n' && text[i] != '\t') || text[i] == 127 ||
                       (bytes == 2 && text[i] == 0xc2 && text[i + 1] < 0xa0);
        if (bytes == 0 || control) {
            fputs("\xef\xbf\xbd", out);
            i++;
            continue;
        }
        fwrite(text + i, 1, bytes, out);
        i += (int64_t)bytes;
    }
}
