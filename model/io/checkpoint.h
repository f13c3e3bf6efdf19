/* Checkpoints: a run as it stands, on disk, complete or absent.
 *
 *     RUN/checkpoints/step-00001000/model.safetensors       fp32 masters, Hugging Face names
 *                                   config.json             their shape, for Hugging Face too
 *                                   generation_config.json  which tokens begin and end texts
 *                                   vocab.json ...          the tokenizer, where it is known
 *                                   tokenizer_config.json   what Hugging Face should do with it
 *                                   optimizer.safetensors   both moments; of several ranks in as
 *                                                           many files (checkpoint_moments.h)
 *                                   trainer.json            all else, and hashes of the above
 *
 * The directory is written as .step-00001000.tmp, every file made durable, trainer.json last, and
 * then renamed: whoever is killed at whatever moment leaves the checkpoints that were there, and
 * the new one whole or not at all. Precision and device are no part of it: one trained in fp16
 * resumes in bf16 or fp32. A directory loads with AutoModelForCausalLM.from_pretrained and, with a
 * tokenizer, AutoTokenizer.from_pretrained. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/checkpoint_directory.h"
#include "model/core/trainer.h"

/* Saves the trainer between two steps, while training waits (checkpoint_writer.h saves in the
 * background), in RUN_DIRECTORY (created if missing), and stores the path in path (FILE_PATH_MAX
 * bytes). A checkpoint of the same step is replaced. Afterwards only the newest
 * config->checkpoint.keep complete checkpoints up to this step stay, and with
 * config->checkpoint.keep_best that of the lowest validation loss; later ones, damaged ones and
 * what is not ours are neither counted nor removed. Ranks that train together all call it, on a
 * file system that all of them see; it fails on all if it does on one. Returns 0; RESULT_WARNED
 * with a message if all was saved, but an older one could not be removed; -1 with a message if
 * nothing was saved, and what was there before still is. */
int checkpoint_save(struct trainer *trainer, const char *run_directory, char *path,
                    struct error *error);

/* Turns what a person names into a checkpoint's path (FILE_PATH_MAX bytes): a run directory means
 * its newest complete checkpoint; anything else is taken as it is. Where a trainer.json stands
 * there, those parts of it are verified, which reads them whole: what loads it needs not. */
int checkpoint_locate(char *path, const char *given, enum checkpoint_parts parts, FILE *warnings,
                      struct error *error);

/* Puts an open, allocated trainer in the state of a checkpoint that was verified: weights, moments,
 * step, tokens, scaler. Fails, changing nothing, when its shapes are not those of the config. How
 * many ranks saved it does not matter; those that train together all call it.
 *
 * The next step takes the batch that the trainer's own config gives for it, samples step * B on for
 * B = grad_accum_steps * micro_batch_size: those that follow if batches and data are as they were.
 * From fp16 to fp16 the scaler goes on; into fp16 from elsewhere it starts at
 * loss_scale.init_scale; fp32 and bf16 have the scale 1.
 * Settings that differ from the checkpoint's, as far as they change training, and what follows from
 * that, are printed to notes, a line each. */
int checkpoint_load(struct trainer *trainer, const char *path, FILE *notes, struct error *error);

/* Fills the weights alone, of an allocated gpt, from a directory: a checkpoint, or a model of
 * Hugging Face in one file or in shards (tensor_files.h says which files are read,
 * checkpoint_tensors.h what they may hold). Where a config.json stands beside them, the number of
 * heads must agree. Changes nothing when it fails. */
int checkpoint_load_weights(struct gpt *gpt, const char *directory, struct error *error);

/* The same of a directory that nobody has verified. Ranks all call it. */
int checkpoint_load_model(struct gpt *gpt, const char *directory, struct error *error);

/* The config of the run that made a checkpoint. From a directory that has no trainer.json, a model
 * of Hugging Face, the defaults with that model's sizes, the tokenizer that fits its vocabulary,
 * sequences as long as its positions but of at most 1024 tokens, and no data. */
int checkpoint_config(struct config *config, const char *path, struct error *error);
