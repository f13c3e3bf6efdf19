#include "model/cli/training_choices.h"

#include <stb/stb_ds.h>

#include "data/corpus/questions.h"
#include "model/io/run_setup.h"

static int open_choices(struct training_choices *questions, const struct config *config,
                        const char *from, struct error *error) {
    const char *path = config->eval.choices;
    struct tokenizer tokenizer;
    if (questions_open(&questions->set, path, error) ||
        setup_tokenizer(&tokenizer, config, from, NULL, 0, error))
        return -1;
    int status = choices_open(&questions->choices, &questions->set, &tokenizer, path, error);
    tokenizer_close(&tokenizer);
    return status ? status : choices_check(&questions->choices, config->data.seq_len, path, error);
}

int training_choices_open(struct training_choices *questions, struct trainer *trainer,
                          const char *from, struct error *error) {
    const struct config *config = trainer->config;
    *questions = (struct training_choices){.open = config->eval.choices[0] != '\0'};
    if (!questions->open) return 0;
    int status = open_choices(questions, config, from, error);
    if (status == 0) status = scorer_open(&questions->scorer, &trainer->gpt, error);
    return status ? -1 : 0;
}

void training_choices_close(struct training_choices *questions) {
    if (!questions->open) return;
    scorer_close(&questions->scorer);
    choices_close(&questions->choices);
    questions_close(&questions->set);
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
