#include "model/lab/evaluation/run_eval.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/min_max.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/program.h"
#include "data/util/signals.h"
#include "model/cli/report.h"
#include "model/cli/run_sample.h"
#include "model/config/config_keys.h"
#include "model/core/model_initialize.h"
#include "model/io/checkpoint.h"
#include "model/session/sample_model.h"
#include "model/session/setup.h"
#include "model/task/evaluate.h"
#include "model/task/objective.h"
#include "model/task/reference.h"
#include "model/task/rollouts.h"

struct evaluation {
    const struct config *config;
    const char *from;
    struct source text;
    struct tokenizer tokenizer; /* vocab_size 0: no tokenizer found */
    struct backend be;
    int64_t sequences;
    double tokens;          /* that were evaluated, or drawn */
    double bytes_per_token; /* 0: unknown */
    struct step_sums sums;  /* of the last precision, for the objective's figures */
    double first_loss;      /* loss in the first precision, the reference of the others; 0: none */
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
    if (!tokens) return fail_memory(error, "a sequence");
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

/* Prints the titles or the texts of the columns behind the loss: the objective's figures, or what
 * follows from the cross entropy of a token. */
static void print_columns(const struct evaluation *evaluation, bool titles, double loss) {
    enum { WIDTH = 10 };
    const struct objective_figure *f = objective_of(evaluation->config)->figures;
    const double bits = loss / log(2) / evaluation->bytes_per_token;
    if (!f && titles) printf("  perplexity  bits per byte");
    else if (!f && evaluation->bytes_per_token > 0) printf("  %10.4f  %13.4f", exp(loss), bits);
    else if (!f) printf("  %10.4f  %13s", exp(loss), "-");
    for (; f && f->name; f++) {
        const double value = objective_value(f, &evaluation->sums, f->factor);
        const int width = f->title ? MAX(WIDTH, (int)strlen(f->title)) : 0;
        if (width > 0 && titles) printf("  %*s", width, f->title);
        else if (width > 0 && isfinite(value))
            printf("  %*.*f", width, f->decimals + 1, value); /* - with a single label */
        else if (width > 0) printf("  %*s", width, "-");
    }
}

static void print_line(struct evaluation *evaluation, const char *precision, double loss,
                       double seconds) {
    printf("%-9s  %8.4f", precision, loss);
    print_columns(evaluation, false, loss);
    printf("  %8.0f", evaluation->tokens / seconds);
    if (evaluation->first_loss > 0) printf("  %+.3f %%", 100 * (loss / evaluation->first_loss - 1));
    else evaluation->first_loss = loss;
    printf("\n");
    fflush(stdout);
}

/* Loads the weights that the reference model of a run has: those that the run begins with, of which
 * a base without its adapters does not change. */
static int load_reference(struct model *model, const struct evaluation *evaluation,
                          const struct config *config, struct error *error) {
    if (reference_is_base(config))
        return checkpoint_load_weights(model, config, evaluation->from, error);
    if (config->model.init_from[0]) return checkpoint_load_initial(model, config, stderr, error);
    model_initialize(model, (uint64_t)config->seed);
    return 0;
}

/* Computes the reference's log-probabilities for the text. Returns RESULT_STOPPED after a signal.
 */
static int open_reference(const struct evaluation *evaluation, struct evaluator *evaluator,
                          struct loader *loader, const struct config *config, struct error *error) {
    struct model *model = evaluator->model;
    if (!config_has_reference(config)) return 0;
    if (load_reference(model, evaluation, config, error)) return -1;
    free(loader->packing.reference); /* of another precision */
    loader->packing.reference = NULL;
    const int status = reference_compute(evaluator, loader, 0, evaluation->sequences,
                                         reference_is_base(config), error);
    return status ? status : checkpoint_load_weights(model, config, evaluation->from, error);
}

static int evaluate_loaded(struct evaluation *evaluation, struct model *model,
                           const struct config *config, double *loss, struct error *error) {
    struct backend *be = model->be;
    struct batches batches;
    struct step_state *state = backend_allocate(be, sizeof *state);
    float *results = backend_host_allocate(be, BACKEND_SLOTS * sizeof *results);
    int status = batches_open(&batches, model, config, error);
    if (status == 0 && (!state || !results))
        status = fail_memory(error, "the results of an evaluation");
    struct evaluator evaluator = {.model = model,
                                  .batches = &batches,
                                  .state = state,
                                  .results = {results, results + 1},
                                  .stop = evaluation->stop};
    if (status == 0)
        status = open_reference(evaluation, &evaluator, &evaluation->text.loader, config, error);
    if (status == 0)
        status = evaluate(&evaluator, loss, &evaluation->text.loader, evaluation->sequences, error);
    batches_close(&batches);
    if (results) backend_host_release(be, results);
    if (state) backend_release(be, state);
    evaluation->sums = evaluator.totals;
    return status;
}

/* Draws and rates completions of all prompts. The loss is minus the mean reward. */
static int evaluate_rewards(struct evaluation *evaluation, struct model *model,
                            const struct config *config, double *loss, struct error *error) {
    const struct tokenizer *tokenizer = &evaluation->tokenizer;
    struct loader *const loaders[] = {&evaluation->text.loader, NULL};
    struct sample_options options = sample_options_of(config);
    struct sampler sampler = {0};
    struct rollouts rollouts = {0};
    struct policy_sums sums = {0};
    if (tokenizer->vocab_size == 0) return fail(error, "the model has no tokenizer");
    if (sample_find_ends(&options, config, tokenizer, evaluation->from, error)) return -1;
    options = rollouts_options(config, &options, tokenizer);
    options.temperature = config->grpo.temperature;
    options.exact = false;
    options.stop = evaluation->stop;
    int status = sampler_open(&sampler, model, &options, error);
    if (status == 0)
        status = rollouts_open(&rollouts, config, &sampler, tokenizer, loaders, NULL, 0, error);
    if (status == 0)
        status = rollouts_evaluate(&rollouts, loaders[0], evaluation->sequences, &sums, error);
    rollouts_close(&rollouts);
    sampler_close(&sampler);
    memcpy(&evaluation->sums, &sums, sizeof sums);
    evaluation->tokens = (double)sums.length;
    *loss = -(double)(sums.reward / sums.sequences);
    return status;
}

/* Returns RESULT_STOPPED after a signal. */
static int evaluate_precision(struct evaluation *evaluation, const struct config *config,
                              struct error *error) {
    struct model model;
    double loss;
    const bool draws = config_reads_prompts(config);
    if (setup_model(&model, config, &evaluation->be, draws ? MODEL_SAMPLED : MODEL_EVALUATED,
                    evaluation->from, error))
        return -1;
    const double began = progress_clock();
    const int status = draws ? evaluate_rewards(evaluation, &model, config, &loss, error)
                             : evaluate_loaded(evaluation, &model, config, &loss, error);
    if (status == 0)
        print_line(evaluation, config_precision_name(precision_setting(&model.precision, config)),
                   loss, progress_clock() - began);
    if (status == 0 && !isfinite(loss))
        note(stderr, "warning",
             "the loss is not finite: weights of %s are not, or its values are too large for this "
             "precision; try --precision fp32",
             evaluation->from);
    model_close(&model);
    return status;
}

static int open_text(struct evaluation *evaluation, const char *data, struct error *error) {
    const struct source *texts[] = {&evaluation->text};
    if (source_open(&evaluation->text, evaluation->config, data, SOURCE_EVALUATION, error))
        return -1;
    evaluation->sequences = (int64_t)evaluation->text.loader.sequence_count;
    evaluation->tokens = (double)(evaluation->sequences * evaluation->config->data.seq_len);
    int status = setup_tokenizer(&evaluation->tokenizer, evaluation->config, evaluation->from,
                                 texts, 1, error);
    if (status == RESULT_FAILED) return -1;
    if (status == RESULT_NONE) note_error(stderr, "note", error);
    else if (config_reads_text(evaluation->config) && count_bytes(evaluation, error)) return -1;
    return 0;
}

static int evaluate_all(struct evaluation *evaluation, const struct command_line *line,
                        const char *data, struct error *error) {
    struct config config = *evaluation->config;
    /* As this text says. That on which the run was trained may have been of another kind. */
    const bool marked = loader_has_starts(&evaluation->text.loader);
    if (!config_given_by_flag(&config, "data.isolate")) config.data.isolate = marked;
    if (setup_documents(&config, &evaluation->text, error)) return EXIT_FAILED;
    int count = line->precision_count, status = 0;
    config.samples = config_texts(&config);
    if (config_reads_prompts(&config))
        printf("text       %s: %" PRId64 " prompt%s, %" PRId64 " completions of each\n", data,
               evaluation->sequences, PLURAL(evaluation->sequences), config.grpo.num_generations);
    else
        printf("text       %s: %" PRId64 " sequence%s of %" PRId64
               " tokens; documents %sisolated%s\n",
               data, evaluation->sequences, PLURAL(evaluation->sequences), config.data.seq_len,
               config.data.isolate ? "" : "not ", marked ? "" : ": nothing marks them");
    printf("precision      loss");
    print_columns(evaluation, true, 0);
    printf("  tokens/s%s\n", count > 1 ? "  difference" : "");
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
