/* The tensors of a model in files: what they are called, whether they fit, and their values, of
 * parameters and moments, to safetensors files and back.
 *
 * Names are Hugging Face's, checkpoint_prefix + parameter.name; moments have the names of their
 * weights after "exp_avg." and "exp_avg_sq.", as PyTorch calls them. Shapes are those of
 * struct parameter, so the padding of the vocabulary stays inside. */
#pragma once

#include "data/base/error.h"
#include "data/base/sha256.h"
#include "model/architecture/parameters.h"
#include "model/files/tensor_files.h"
#include "model/gpt.h"
#include "model/optimizer.h"

/* What stands before the names of a list in files: "transformer." for a GPT-2, else nothing. */
const char *checkpoint_prefix(const struct parameter *list);

/* Check that open files have exactly the tensors of a model whose parameters are `list` (an stb_ds
 * array): a failure names the file, the tensor, the shapes found and expected, and the key of the
 * config behind them.
 *
 * Weights may be F32, F16 or BF16, may lack "transformer.", and may come with what Hugging Face's
 * files also hold: buffers (*.attn.bias, *.attn.masked_bias, *.rotary_emb.inv_freq) and a
 * lm_head.weight that is the token embedding. */
int checkpoint_check_weights(const struct parameter *list, const struct tensor_files *files,
                             struct error *error);
int checkpoint_check_moments(const struct parameter *list, const struct tensor_files *files,
                             struct error *error);

/* A weight by its name without "transformer."; NULL where there is none. */
const struct tensor_place *checkpoint_find_weight(const struct tensor_files *files,
                                                  const char *name);

/* The dtype of a tensor that was checked. */
enum dtype checkpoint_dtype(const struct safetensors_entry *entry);

/* Elements first .. first + count of a tensor that was checked, as fp32 in values. */
void checkpoint_widen(float *values, const struct safetensors_entry *entry, int64_t first,
                      int64_t count);

/* For writers: append an entry for each parameter to *entries, an stb_ds array, in the order of the
 * list. The names belong to the entries. */
void checkpoint_list_entries(struct safetensors_entry **entries, const struct parameter *list,
                             const char *prefix, enum dtype dtype);
void checkpoint_free_entries(struct safetensors_entry *entries);

enum { CHECKPOINT_FILE_NAME_MAX = 64 };

/* A file of a checkpoint, for the list in trainer.json. */
struct checkpoint_file {
    char name[CHECKPOINT_FILE_NAME_MAX]; /* in the checkpoint's directory */
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

/* Write the fp32 masters, or both moments, durably, and fill all of *file but its name. */
int checkpoint_write_weights(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             struct error *error);
int checkpoint_write_moments(const struct optimizer *optimizer, const char *path,
                             struct checkpoint_file *file, struct error *error);

/* Fill the masters, or the moments, from files that passed their check. */
void checkpoint_read_weights(struct gpt *gpt, const struct tensor_files *files);
void checkpoint_read_moments(struct optimizer *optimizer, const struct tensor_files *files);
