/* Hugging Face's config.json of a GPT-2: the file that tells transformers (and us) the shape of the
 * weights beside it. Source: class GPT2Config of huggingface/transformers. */
#ifndef MODEL_HUGGINGFACE_H
#define MODEL_HUGGINGFACE_H

#include <stdio.h>

#include "model/config.h"

/* Prints the config.json of the model that config describes. Texts of the bytes tokenizer have no
 * tokens that begin or end them, so these are null there. The caller checks ferror(out). */
void huggingface_print_config(FILE *out, const struct config *config);

/* Fills the sizes in config->model (n_layer, n_head, n_embd, n_positions, vocab_size) from
 * DIRECTORY/config.json and marks them as given; nothing else changes. Fails when the file is
 * missing or malformed, and when it describes a model other than ours: another model_type,
 * activation, layer_norm_epsilon, width of the MLP, or scaling of attention. */
int huggingface_read_config(struct config *config, const char *directory, char *error);

#endif
