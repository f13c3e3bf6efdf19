#include "model/cli/training_choices.h"

#include <stb/stb_ds.h>

#include "model/session/setup.h"

static int open_choices(struct choices *choices, const struct config *config, const char *from,
                        struct error *error) {
    struct tokenizer tokenizer;
    if (setup_tokenizer(&tokenizer, config, from, NULL, 0, error)) return -1;
    int status = choices_open(choices, config->eval.choices, &tokenizer, error);
    tokenizer_close(&tokenizer);
    return status ? status : choices_check(choices, config->data.seq_len, error);
}

int training_choices_open(struct training_choices *questions, struct trainer *trainer,
                          const char *from, struct error *error) {
    const struct config *config = trainer->config;
    *questions = (struct training_choices){.open = config->eval.choices[0] != '\0'};
    if (!questions->open) return 0;
    if (open_choices(&questions->choices, config, from, error)) return -1;
    return scorer_open(&questions->scorer, &trainer->model, error);
}

void training_choices_close(struct training_choices *questions) {
    if (!questions->open) return;
    scorer_close(&questions->scorer);
    choices_close(&questions->choices);
    questions->open = false;
}

int training_choices_answer(struct training_choices *questions, struct trainer *trainer,
                            struct accuracy *accuracy, struct error *error) {
    trainer_wait_for_weights(trainer);
    questions->scorer.stop = trainer->stop;
    struct scored_text *texts = questions->choices.texts;
    int status = scorer_run(&questions->scorer, texts, arrlen(texts), error);
    if (status == 0) *accuracy = choices_accuracy(&questions->choices);
    return status;
}
