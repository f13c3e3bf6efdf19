#include "model/cli/run.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/program.h"
#include "data/util/signals.h"
#include "model/config/config_keys.h"
#include "model/core/gpt_initialize.h"
#include "model/io/checkpoint.h"
#include "model/core/evaluate.h"
#include "model/core/reference.h"
#include "model/cli/report.h"
#include "model/session/setup.h"

struct evaluation {
    const struct config *config;
    const char *from;
    struct source text;
    struct tokenizer tokenizer; /* vocab_size 0: no tokenizer found */
    struct backend be;
    int64_t sequences;
    double bytes_per_token;       /* 0: unknown */
    struct preference_sums pairs; /* of the last precision, for models that are trained on pairs */
    double first_loss; /* loss in the first precision, the reference of the others; 0: none */
    const volatile sig_atomic_t *stop;
};

/* Computes the mean number of bytes per target that counts. Tokens that begin or end a text count
 * as 0 bytes. */
static int count_bytes(struct evaluation *evaluation, struct error *error) {
    const struct loader *loader = &evaluation->text.loader;
    const struct tokenizer *tokenizer = &evaluation->tokenizer;
    int64_t length = loader->options.seq_len;
    uint64_t bytes = 0, counted = 0;
    int32_t *tokens = malloc(2 * (size_t)length * sizeof *tokens);
    if (!tokens) return fail(error, "out of memory for a sequence");
    struct loader_arrays arrays = {.tokens = tokens, .targets = tokens + length};
    int status = 0;
    for (int64_t i = 0; status == 0 && i < evaluation->sequences && !*evaluation->stop; i++) {
        status = loader_batch(loader, &arrays, (uint64_t)i, 1, error);
        for (int64_t t = 0; status == 0 && t < length; t++) {
            size_t size;
            int32_t target = arrays.targets[t];
            if (target < 0) continue;
            tokenizer_bytes(tokenizer, target, &size);
            const bool is_text = target != tokenizer->end_of_text && target != tokenizer->stop &&
                                 target != tokenizer->eos;
            if (is_text) bytes += size;
        }
        counted += arrays.counted;
    }
    free(tokens);
    evaluation->bytes_per_token = counted > 0 ? (double)bytes / (double)counted : 0;
    return status;
}

static void print_line(struct evaluation *evaluation, const char *precision, double loss,
                       double seconds) {
    const struct config *config = evaluation->config;
    double tokens = (double)(evaluation->sequences * config->data.seq_len);
    const struct preference_sums *pairs = &evaluation->pairs;
    char bits[32] = "-"; /* or the right ones of 100 pairs */
    if (evaluation->bytes_per_token > 0)
        snprintf(bits, sizeof bits, "%.4f", loss / log(2) / evaluation->bytes_per_token);
    printf("%-9s  %8.4f  ", precision, loss);
    if (evaluation->text.loader.options.pairs) {
        if (preference_has_both(pairs))
            snprintf(bits, sizeof bits, "%.1f", (double)(100 * pairs->accurate / pairs->pairs));
        printf("%10.4f  %13s", preference_margin(pairs), bits);
    } else printf("%10.4f  %13s", exp(loss), bits);
    printf("  %8.0f", tokens / seconds);
    if (evaluation->first_loss > 0) printf("  %+.3f %%", 100 * (loss / evaluation->first_loss - 1));
    else evaluation->first_loss = loss;
    printf("\n");
    fflush(stdout);
}

/* Loads the weights that the reference model of a run has: those that the run begins with. With
 * adapters it is the model without them. */
static int load_reference(struct gpt *gpt, const struct evaluation *evaluation,
                          const struct config *config, struct error *error) {
    if (shape_has_adapters(&gpt->shape))
        return checkpoint_load_weights(gpt, config, evaluation->from, error);
    if (config->model.init_from[0]) return checkpoint_load_initial(gpt, config, error);
    gpt_initialize(gpt, (uint64_t)config->seed);
    return 0;
}

/* Computes the reference's log-probabilities for the text. Returns RESULT_STOPPED after a signal.
 */
static int open_reference(const struct evaluation *evaluation, struct evaluator *evaluator,
                          struct loader *loader, const struct config *config, struct error *error) {
    struct gpt *gpt = evaluator->gpt;
    if (!reference_is_read(gpt)) return 0;
    if (load_reference(gpt, evaluation, config, error)) return -1;
    const int status = reference_compute(evaluator, loader, 0, evaluation->sequences, error);
    return status ? status : checkpoint_load_weights(gpt, config, evaluation->from, error);
}

static int evaluate_loaded(struct evaluation *evaluation, struct gpt *gpt,
                           const struct config *config, double *loss, struct error *error) {
    struct backend *be = gpt->be;
    struct batches batches;
    float *sum = backend_allocate(be, sizeof *sum);
    float *results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *results);
    struct preference_sums *pairs = backend_allocate(be, sizeof *pairs);
    int status = batches_open(&batches, gpt, error);
    if (status == 0 && (!sum || !results || !pairs)) status = fail(error, "out of memory");
    struct evaluator evaluator = {.gpt = gpt,
                                  .batches = &batches,
                                  .sum = sum,
                                  .pairs = pairs,
                                  .results = {results, results + 1},
                                  .stop = evaluation->stop};
    if (status == 0)
        status = open_reference(evaluation, &evaluator, &evaluation->text.loader, config, error);
    if (status == 0)
        status = evaluate(&evaluator, loss, &evaluation->text.loader, evaluation->sequences, error);
    batches_close(&batches);
    if (results) backend_host_release(be, results);
    if (sum) backend_release(be, sum);
    if (pairs) backend_release(be, pairs);
    evaluation->pairs = evaluator.preference;
    return status;
}

static int load(struct gpt *gpt, const struct evaluation *evaluation, const struct config *config,
                struct error *error) {
    backend_plan_begin(gpt->be);
    evaluate_plan(gpt);
    if (backend_plan_end(gpt->be, error) || gpt_allocate(gpt, error)) return -1;
    return checkpoint_load_weights(gpt, config, evaluation->from, error);
}

/* Returns RESULT_STOPPED after a signal. */
static int evaluate_precision(struct evaluation *evaluation, const struct config *config,
                              struct error *error) {
    struct precision precision;
    struct gpt gpt;
    double loss, began;
    if (setup_precision(&precision, config, &evaluation->be, error)) return -1;
    int status = gpt_open(&gpt, config, &precision, &evaluation->be, GPT_EVALUATION, error);
    if (status == 0) status = load(&gpt, evaluation, config, error);
    began = progress_clock();
    if (status == 0) status = evaluate_loaded(evaluation, &gpt, config, &loss, error);
    if (status == 0)
        print_line(evaluation, config_precision_name(precision_setting(&precision, config)), loss,
                   progress_clock() - began);
    gpt_close(&gpt);
    return status;
}

static int open_text(struct evaluation *evaluation, const char *data, struct error *error) {
    const struct source *texts[] = {&evaluation->text};
    if (source_open(&evaluation->text, evaluation->config, data, true, error)) return -1;
    evaluation->sequences = (int64_t)evaluation->text.loader.sequence_count;
    int status = setup_tokenizer(&evaluation->tokenizer, evaluation->config, evaluation->from,
                                 texts, 1, error);
    if (status == RESULT_FAILED) return -1;
    if (status == RESULT_NONE) print_notes("note", error->text);
    else if (!evaluation->text.loader.options.pairs && count_bytes(evaluation, error)) return -1;
    error->text[0] = 0;
    return 0;
}

static int evaluate_all(struct evaluation *evaluation, const struct command_line *line,
                        const char *data, struct error *error) {
    struct config config = *evaluation->config;
    if (!config_given(&config, "data.isolate"))
        config.data.isolate = loader_has_starts(&evaluation->text.loader);
    int count = line->precision_count, status = 0;
    printf("text       %s: %" PRId64 " sequences of %" PRId64 " tokens\n", data,
           evaluation->sequences, config.data.seq_len);
    printf("precision      loss  %s  tokens/s%s\n",
           evaluation->text.loader.options.pairs ? "    margin  right, of 100"
                                                 : "perplexity  bits per byte",
           count > 1 ? "  difference" : "");
    for (int i = 0; status == 0 && i < (count > 0 ? count : 1); i++) {
        if (count > 0) config.precision = line->precisions[i];
        status = evaluate_precision(evaluation, &config, error);
    }
    if (status == RESULT_STOPPED) return EXIT_SIGNAL + *evaluation->stop;
    return status ? EXIT_FAILED : EXIT_DONE;
}

int run_eval(const struct config *config, const char *from, const struct command_line *line,
             struct error *error) {
    const char *data = config->data.val;
    if (!config_given(config, "data.val") || !data[0]) {
        fail(error, "--eval needs --data GLOB, token shards made with ./prepare: the model names "
                    "no data.val");
        return EXIT_USAGE;
    }
    struct evaluation evaluation = {.config = config, .from = from, .stop = signals_catch()};
    int status = EXIT_FAILED;
    if (open_text(&evaluation, data, error) == 0 &&
        setup_backend(&evaluation.be, config, NULL, NULL, error) == 0) {
        status = evaluate_all(&evaluation, line, data, error);
        backend_close(&evaluation.be);
    }
    tokenizer_close(&evaluation.tokenizer);
    source_close(&evaluation.text);
    return status;
}
