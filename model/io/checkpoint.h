/* Checkpoints: the state of a run on disk, complete or absent.
 *
 *     RUN/checkpoints/step-00001000/model.safetensors       fp32 weights, Hugging Face names; with
 *                                                           adapters adapter_model.safetensors
 *                                   adapter_config.json     with adapters: PEFT's description
 *                                   config.json             shape of the model
 *                                   generation_config.json  tokens that begin and end texts
 *                                   vocab.json ...          the tokenizer, if it is known
 *                                   tokenizer_config.json   its settings for Hugging Face; of a
 *                                                           fine-tuned model all four are its
 *                                                           base's (base_files.h)
 *                                   optimizer.safetensors   the optimizer's moments; a file per
 * rank (checkpoint_moments.h) trainer.json            other state; hashes of all files
 *
 * The directory is written as .step-00001000.tmp, every file is made durable, trainer.json last,
 * and then the directory is renamed. A process killed at any time leaves the earlier checkpoints
 * intact, and the new one complete or absent. A checkpoint does not depend on precision or device:
 * a run in fp16 resumes in bf16 or fp32. The directory loads with
 * AutoModelForCausalLM.from_pretrained and, with a tokenizer, AutoTokenizer.from_pretrained. */
#pragma once

#include <stdio.h>

#include "data/util/error.h"
#include "data/util/files.h"
#include "model/io/checkpoint_directory.h"
#include "model/optimize/trainer.h"

/* Saves the trainer between two steps in run_directory (created if missing), and stores the path in
 * path (FILE_PATH_MAX bytes). Training waits; checkpoint_writer.h saves in the background. A
 * checkpoint of the same step is replaced. Then the newest config->checkpoint.keep complete
 * checkpoints up to this step are kept, and with config->checkpoint.keep_best that of the lowest
 * validation loss; older ones are removed. Later or damaged checkpoints and other files are neither
 * counted nor removed. All ranks call it, on a shared file system; it fails on all ranks if it
 * fails on one. Warns on stderr if an older checkpoint could not be removed. Returns 0; -1 with a
 * message if nothing was saved, and earlier checkpoints are unchanged. */
int checkpoint_save(struct trainer *trainer, const char *run_directory, char *path,
                    struct error *error);

/* Loads a verified checkpoint into an open, allocated trainer: weights, moments, step, tokens,
 * scaler. Fails without any change if its shapes differ from the config's. The number of ranks that
 * saved it does not matter. All ranks call it.
 *
 * The next step begins at the checkpoint's next_sample, also with another batch size or number of
 * ranks. With another data.seq_len it begins at the sequence that follows as many tokens, or, if
 * documents are packed whole, as large a part of the passes over them.
 * From fp16 to fp16 the scaler resumes; from another precision to fp16 it starts at
 * loss_scale.init_scale; fp32 and bf16 have the scale 1. Fails if settings differ that determine
 * the model; others that change numbers are printed to notes with their consequences, a line each.
 */
int checkpoint_load(struct trainer *trainer, const char *path, FILE *notes, struct error *error);

/* Reads only the number of steps done and the next sample, as checkpoint_load restores them. */
int checkpoint_read_progress(int64_t *step, int64_t *next_sample, const struct config *config,
                             const char *path, struct error *error);

/* Loads only the weights, into an allocated model, from a directory: a checkpoint, or a Hugging
 * Face model in one file or in shards; for a model with adapters a checkpoint of adapters, or an
 * adapter of PEFT, and the model itself from config->model.init_from. tensor_files.h describes the
 * files that are read, checkpoint_tensors.h their contents. If there is a config.json, the number
 * of heads must agree; a checkpoint's adapters need the model that they were trained on. Changes
 * nothing if the first file fails. */
int checkpoint_load_weights(struct model *model, const struct config *config, const char *directory,
                            struct error *error);

/* Loads what config->model.init_from and, with adapters, config->adapter.init_from name; adapters
 * are otherwise initialized. The directories have not been verified. Keys that differ from those of
 * that model, so that its weights compute something else, are printed to notes (optional), a line
 * each. All ranks call it. */
int checkpoint_load_initial(struct model *model, const struct config *config, FILE *notes,
                            struct error *error);

/* Fails unless the folder of the model exists that adapters are trained on. */
int checkpoint_check_base(const char *directory, struct error *error);

/* Stores the config of the run that wrote a checkpoint. For a directory without trainer.json, a
 * Hugging Face model, it is the defaults with that model's sizes, the tokenizer of its vocabulary,
 * sequences of its context length but at most 1024 tokens, and no data. */
int checkpoint_config(struct config *config, const char *path, struct error *error);
