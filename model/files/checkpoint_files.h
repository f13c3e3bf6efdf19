/* The files of a checkpoint but for trainer.json, written one by one, each durable by itself.
 *
 *     model.safetensors        fp32 masters            config.json             their shape
 *     generation_config.json   for generate()          optimizer.safetensors   both moments
 *     vocab.json, merges.txt, tokenizer.json, tokenizer_config.json: where the tokenizer is known
 */
#ifndef MODEL_FILES_CHECKPOINT_FILES_H
#define MODEL_FILES_CHECKPOINT_FILES_H

#include "data/base/error.h"
#include "model/files/checkpoint_manifest.h"

/* Writes them into an existing directory and lists them in *files. */
int checkpoint_write_files(const struct trainer *trainer, struct checkpoint_files *files,
                           const char *directory, struct error *error);

#endif
