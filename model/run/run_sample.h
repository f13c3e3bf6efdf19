/* Text from a model, printed as it comes. */
#ifndef MODEL_RUN_RUN_SAMPLE_H
#define MODEL_RUN_RUN_SAMPLE_H

#include "data/base/error.h"
#include "model/run/command_line.h"
#include "model/sample.h"
#include "model/run/text_stream.h"

/* Prints prompt and continuation to out, character by character, and a line break. An empty prompt
 * stands for the beginning of a text. options: prompt, prompt_length, vocabulary, end_of_text, emit
 * and context are filled in here. */
int print_sample(FILE *out, struct sample_result *result, struct gpt *gpt,
                 const struct tokenizer *tokenizer, const char *prompt,
                 const struct sample_options *options, struct error *error);

/* Prints text from the model at `from`, a checkpoint or a directory of Hugging Face, for each
 * prompt of the line; config comes from it. */
int run_sample(const struct config *config, const char *from, const struct command_line *line,
               struct error *error);

#endif
