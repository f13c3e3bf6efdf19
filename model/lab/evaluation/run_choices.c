#include "model/lab/evaluation/run_choices.h"

#include <inttypes.h>
#include <stdio.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/program.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "model/config/config_keys.h"
#include "model/choices/choices.h"
#include "model/session/setup.h"
#include "data/util/table.h"

enum { LENGTH_USUAL = 1024, LENGTH_STEP = 64 };

/* Questions with their tokens, and what the first precision answered. */
struct quiz {
    const struct command_line *line;
    const char *from;
    struct choices choices;
    int *first_answers; /* stb_ds array [questions] */
    cJSON *report, *rows, *answers;
    const volatile sig_atomic_t *stop;
};

static const struct section accuracies = {
    .title = "Accuracy",
    .note = "Share of questions whose right choice has the largest log-likelihood, or in acc_norm "
            "the largest one per character, and the ends of its 95 % interval. same: questions "
            "with the first row's answer. tokens/s: of all choices, beginnings counted each time.",
    .columns = {{"precision", "name"},
                {"acc", "acc", SHOW_SHARE},
                {"from", "acc_low", SHOW_SHARE},
                {"to", "acc_high", SHOW_SHARE},
                {"acc_norm", "acc_norm", SHOW_SHARE},
                {"from", "acc_norm_low", SHOW_SHARE},
                {"to", "acc_norm_high", SHOW_SHARE},
                {"same", "same_answers", SHOW_SHARE},
                {"tokens/s", "tokens_per_s", SHOW_NUMBER}}};

static void print_report(FILE *out, const cJSON *report) {
    text_print(out, 2,
               "Multiple choice: %s: %.0f questions, chance %s; %.0f tokens, %.0f after sharing "
               "beginnings",
               json_text_at(report, "questions"), json_number_at(report, "count"),
               percent(json_number_at(report, "chance")).text, json_number_at(report, "tokens"),
               json_number_at(report, "rows"));
    section_print(out, &accuracies, json_at(report, "precisions"));
}

/* Adds the answers and log-likelihoods of a precision to the rows of questions. Returns the share
 * of questions answered as in the first precision, which is remembered. */
static double add_answers(struct quiz *quiz, const char *precision) {
    const struct scored_text *texts = quiz->choices.texts;
    cJSON *row = NULL, *next = quiz->answers->child; /* a linked list */
    double same = 0;
    for (ptrdiff_t q = 0; q < arrlen(quiz->choices.set.questions); q++) {
        const struct question *question = &quiz->choices.set.questions[q];
        int answer = choices_answer(question, texts, false);
        row = next, next = row ? row->next : NULL;
        if (!row) {
            row = json_add_item(quiz->answers);
            JSON_NUMBERS(row, {"line", (double)question->line}, {"answer", question->answer});
            arrput(quiz->first_answers, answer);
        }
        same += answer == quiz->first_answers[q];
        cJSON *values = cJSON_AddArrayToObject(row, precision);
        for (int i = 0; i < question->count; i++)
            cJSON_AddItemToArray(values, cJSON_CreateNumber(texts[i].log_likelihood));
        texts += question->count;
    }
    return same / (double)arrlen(quiz->choices.set.questions);
}

static void add_result(struct quiz *quiz, const char *precision, double seconds, int64_t rows_run) {
    const struct accuracy a = choices_accuracy(&quiz->choices);
    bool first = cJSON_GetArraySize(quiz->rows) == 0;
    cJSON *row = json_add_item(quiz->rows);
    cJSON_AddStringToObject(row, "name", precision);
    JSON_NUMBERS(row, {"acc", a.acc}, {"acc_low", a.acc_low}, {"acc_high", a.acc_high},
                 {"acc_norm", a.norm}, {"acc_norm_low", a.norm_low}, {"acc_norm_high", a.norm_high},
                 {"same_answers", add_answers(quiz, precision)},
                 {"tokens_per_s", (double)quiz->choices.rows / seconds});
    if (first)
        JSON_NUMBERS(quiz->report, {"count", (double)a.questions}, {"chance", a.chance},
                     {"tokens", (double)quiz->choices.rows}, {"rows", (double)rows_run});
}

/* Returns RESULT_STOPPED after a signal. */
static int answer_in_precision(struct quiz *quiz, const struct config *config, struct backend *be,
                               struct error *error) {
    struct model model;
    struct scorer scorer;
    if (setup_model(&model, config, be, MODEL_SCORED, quiz->from, error)) return -1;
    int status = scorer_open(&scorer, &model, error);
    if (status == 0) {
        const char *name = config_precision_name(precision_setting(&model.precision, config));
        struct scored_text *texts = quiz->choices.texts;
        if (progress_terminal(stderr)) fprintf(stderr, "%s ...\r", name);
        const double began = progress_clock();
        scorer.stop = quiz->stop;
        status = scorer_run(&scorer, texts, arrlen(texts), error);
        if (status == 0) add_result(quiz, name, progress_clock() - began, scorer.rows_run);
        scorer_close(&scorer);
    }
    model_close(&model);
    return status;
}

/* Sets the shape of batches: sequences that hold the longest text, as many tokens as a training
 * micro-batch, or fewer if the questions have fewer. */
static int fit_batch(struct config *config, const struct quiz *quiz, struct error *error) {
    const struct choices *choices = &quiz->choices;
    bool given = config_given(config, "data.seq_len");
    int64_t most = given ? config->data.seq_len : config->model.n_positions;
    int64_t length = round_up(choices->longest, LENGTH_STEP), usual = LENGTH_USUAL;
    if (choices_check(choices, most, error)) return -1;
    if (length < usual) length = usual;
    if (length > most) length = most;
    int64_t rows = config->train.micro_batch_size * MIN(most, usual);
    if (rows > choices->rows) rows = choices->rows;
    config->data.seq_len = length;
    config->train.micro_batch_size = (rows + length - 1) / length;
    config->data.isolate = false;
    return 0;
}

static int answer_in_all(struct quiz *quiz, const struct config *config, struct error *error) {
    struct backend be;
    struct config fitted = *config;
    int count = quiz->line->precision_count, status = 0;
    if (fit_batch(&fitted, quiz, error) || setup_backend(&be, config, NULL, NULL, error)) return -1;
    for (int i = 0; status == 0 && i < (count > 0 ? count : 1); i++) {
        if (count > 0) fitted.precision = quiz->line->precisions[i];
        status = answer_in_precision(quiz, &fitted, &be, error);
    }
    backend_close(&be);
    return status;
}

/* Opens the questions and divides them into tokens. */
static int open_quiz(struct quiz *quiz, const struct config *config, struct error *error) {
    struct tokenizer tokenizer;
    if (setup_tokenizer(&tokenizer, config, quiz->from, NULL, 0, error)) return -1;
    int status = choices_open(&quiz->choices, quiz->line->questions, &tokenizer, error);
    tokenizer_close(&tokenizer);
    quiz->report = cJSON_CreateObject();
    cJSON_AddStringToObject(quiz->report, "questions", quiz->line->questions);
    quiz->rows = cJSON_AddArrayToObject(quiz->report, "precisions");
    quiz->answers = cJSON_AddArrayToObject(quiz->report, "answers");
    return status;
}

int run_choices(const struct config *config, const char *from, const struct command_line *line,
                struct error *error) {
    struct quiz quiz = {.line = line, .from = from, .stop = signals_catch()};
    int status = line->out ? report_folder(line->out, error) : 0;
    if (status == 0) status = open_quiz(&quiz, config, error);
    if (status == 0) status = answer_in_all(&quiz, config, error);
    if (status == 0)
        status = report_publish(print_report, quiz.report, line->out, "choices", error);
    cJSON_Delete(quiz.report);
    arrfree(quiz.first_answers);
    choices_close(&quiz.choices);
    if (status == RESULT_STOPPED) return EXIT_SIGNAL + *quiz.stop;
    return status ? EXIT_FAILED : EXIT_DONE;
}
