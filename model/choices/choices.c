#include "model/choices/choices.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/printed.h"
#include "model/choices/tales_questions.h"

/* Appends the tokens of a choice's context, or of the beginning of a text if there is none, to
 * *tokens, sets *first to their number, and appends those of the continuation. */
static int encode(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer,
                  const struct choice *choice, int32_t **tokens, int64_t *first,
                  struct error *error) {
    size_t size = choice->context_size + choice->continuation_size;
    if (choice->context_size == 0) {
        if (tokenizer_encode_beginning(encoder, tokenizer, tokens, error)) return -1;
        *first = (int64_t)arrlen(*tokens);
        return tokenizer_encode(encoder, tokens, choice->continuation, choice->continuation_size,
                                true, error);
    }
    if (tokenizer_encode_context(encoder, tokenizer, tokens, choice->context, choice->context_size,
                                 error))
        return -1;
    *first = (int64_t)arrlen(*tokens);
    int32_t *whole = NULL;
    int status = tokenizer_encode_context(encoder, tokenizer, &whole, choice->context, size, error);
    for (ptrdiff_t i = *first; status == 0 && i < arrlen(whole); i++) arrput(*tokens, whole[i]);
    arrfree(whole);
    return status;
}

/* Adds the text of a choice. */
static int add_text(struct choices *choices, struct tokenizer_encoder *encoder,
                    const struct tokenizer *tokenizer, ptrdiff_t group, int index,
                    struct error *error) {
    const struct question *question = &choices->set.questions[group];
    struct scored_text text = {.group = group};
    int32_t *tokens = NULL;
    int status = encode(encoder, tokenizer, &question->choices[index], &tokens, &text.first, error);
    text.tokens = tokens;
    text.count = (int64_t)arrlen(tokens);
    arrput(choices->texts, text);
    if (status == 0 && text.first >= text.count)
        return fail(error,
                    "%s:%zu: choice %d has no token of its own: the tokenizer joins it with the "
                    "end of its context\nleave out the row",
                    choices->path, question->line, index + 1);
    choices->rows += text.count - 1;
    if (text.count - 1 > choices->longest) choices->longest = text.count - 1;
    return status;
}

int choices_open(struct choices *choices, const char *path, const struct tokenizer *tokenizer,
                 struct error *error) {
    *choices = (struct choices){.path = path};
    int status = strcmp(path, "tales") == 0 ? tales_questions(&choices->set, error)
                                            : questions_open(&choices->set, path, error);
    if (status) return -1;
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(tokenizer);
    status = encoder ? 0 : fail_memory(error, "the tokens of questions");
    for (ptrdiff_t q = 0; status == 0 && q < arrlen(choices->set.questions); q++)
        for (int i = 0; status == 0 && i < choices->set.questions[q].count; i++)
            status = add_text(choices, encoder, tokenizer, q, i, error);
    if (encoder) tokenizer_encoder_close(encoder);
    if (status) choices_close(choices);
    return status;
}

void choices_close(struct choices *choices) {
    for (ptrdiff_t i = 0; i < arrlen(choices->texts); i++) {
        int32_t *tokens = (int32_t *)choices->texts[i].tokens;
        arrfree(tokens);
    }
    arrfree(choices->texts);
    questions_close(&choices->set);
    *choices = (struct choices){0};
}

int choices_check(const struct choices *choices, int64_t length, struct error *error) {
    for (ptrdiff_t i = 0; i < arrlen(choices->texts); i++) {
        const struct scored_text *text = &choices->texts[i];
        if (text->count - 1 <= length) continue;
        return fail(error,
                    "%s:%zu: question and choice have %" PRId64 " token%s, and the context of the "
                    "model has %" PRId64 "\nraise it with --set data.seq_len, up to "
                    "model.n_positions, or leave out the row",
                    choices->path, choices->set.questions[text->group].line, text->count - 1,
                    PLURAL(text->count - 1), length);
    }
    return 0;
}

int choices_answer(const struct question *question, const struct scored_text *texts, bool norm) {
    int best = -1;
    double most = -INFINITY;
    for (int i = 0; i < question->count; i++) {
        double score = texts[i].log_likelihood;
        if (norm) score /= (double)question->choices[i].characters;
        if (isnan(score)) return -1;
        if (score > most) best = i, most = score;
    }
    return best;
}

/* Sets the ends of the 95 % interval of a share of n trials. */
static void wilson(double share, double n, double *low, double *high) {
    const double z = 1.959963984540054, z2 = z * z;
    double centre = (share + z2 / (2 * n)) / (1 + z2 / n);
    double half = z / (1 + z2 / n) * sqrt(share * (1 - share) / n + z2 / (4 * n * n));
    *low = centre - half;
    *high = centre + half;
}

struct accuracy choices_accuracy(const struct choices *choices) {
    const struct question *questions = choices->set.questions;
    const struct scored_text *texts = choices->texts;
    struct accuracy accuracy = {.questions = (int64_t)arrlen(questions)};
    double n = (double)accuracy.questions;
    for (ptrdiff_t q = 0; q < arrlen(questions); texts += questions[q++].count) {
        accuracy.acc += choices_answer(&questions[q], texts, false) == questions[q].answer;
        accuracy.norm += choices_answer(&questions[q], texts, true) == questions[q].answer;
        accuracy.chance += 1.0 / questions[q].count;
    }
    accuracy.acc /= n;
    accuracy.norm /= n;
    accuracy.chance /= n;
    wilson(accuracy.acc, n, &accuracy.acc_low, &accuracy.acc_high);
    wilson(accuracy.norm, n, &accuracy.norm_low, &accuracy.norm_high);
    return accuracy;
}
