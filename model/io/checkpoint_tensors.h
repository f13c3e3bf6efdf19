/* The tensors of a model in files: what they are called, whether they fit, and their values, of
 * parameters and moments, to safetensors files and back.
 *
 * Names are Hugging Face's, checkpoint_prefix + parameter.name; moments have the names of their
 * weights after "exp_avg." and "exp_avg_sq.", as PyTorch calls them. Shapes are those of
 * struct parameter, so the padding of the vocabulary stays inside. */
#pragma once

#include "data/util/error.h"
#include "model/architecture/parameters.h"
#include "model/io/tensor_files.h"
#include "model/io/tensor_shards.h"
#include "model/core/gpt.h"
#include "model/core/optimizer.h"

/* Stems of the names of files: of weights, and of moments. */
extern const char checkpoint_model_stem[], checkpoint_optimizer_stem[];

/* What stands before the names of a list in files: "transformer." for a GPT-2, else nothing. */
const char *checkpoint_prefix(const struct parameter *list);

/* The same of moment 0 or 1: "exp_avg.transformer." or the like, in text. */
enum { CHECKPOINT_PREFIX_MAX = 32 };
const char *checkpoint_moment_prefix(char text[CHECKPOINT_PREFIX_MAX], const struct parameter *list,
                                     int moment);

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

/* Reads elements first .. first + count - 1 of a tensor that was checked, as fp32 into values. Any
 * thread may. Fails as safetensors_read. */
int checkpoint_widen(float *values, const struct tensor_place *place, int64_t first, int64_t count,
                     struct error *error);

/* For writers: append an entry for each parameter to *entries, an stb_ds array, in the order of the
 * list. The names belong to the entries. */
void checkpoint_list_entries(struct safetensors_entry **entries, const struct parameter *list,
                             const char *prefix, enum dtype dtype);
void checkpoint_free_entries(struct safetensors_entry *entries);

/* Writes the fp32 masters durably, those of a copy on the host, or the model's own if copy is NULL:
 * files of a directory, of at most limit bytes of data where a tensor has not more, which are
 * appended to *files, an stb_ds array (tensor_shards.h). */
int checkpoint_write_weights(const struct gpt *gpt, const struct masters *copy,
                             const char *directory, uint64_t limit, struct stored_file **files,
                             struct error *error);

/* Fill the masters, or the moments, from files that passed their check. Fail as safetensors_read.
 */
int checkpoint_read_weights(struct gpt *gpt, const struct tensor_files *files, struct error *error);
int checkpoint_read_moments(struct optimizer *optimizer, const struct tensor_files *files,
                            struct error *error);
