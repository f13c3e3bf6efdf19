/* Text from a model, printed as it comes. */
#ifndef MODEL_RUN_SAMPLE_H
#define MODEL_RUN_SAMPLE_H

#include "model/sample.h"
#include "model/text_stream.h"

/* Prints prompt and continuation to out, character by character, and a line break. An empty prompt
 * stands for the beginning of a text. options: prompt, prompt_length, vocabulary, end_of_text, emit
 * and context are filled in here. */
int print_sample(FILE *out, struct sample_result *result, struct gpt *gpt,
                 const struct tokenizer *tokenizer, const char *prompt,
                 const struct sample_options *options, char *error);

#endif
