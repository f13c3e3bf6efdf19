/* The tensors of a model in files: what they are called, whether they fit, and their values.
 *
 * Names are Hugging Face's, "transformer." + parameter.name; moments have the names of their
 * weights after "exp_avg." and "exp_avg_sq.", as PyTorch calls them. Shapes are those of
 * struct parameter, so the padding of the vocabulary stays inside. */
#ifndef MODEL_FILES_CHECKPOINT_MATCH_H
#define MODEL_FILES_CHECKPOINT_MATCH_H

#include "data/base/error.h"
#include "model/architecture/parameters.h"
#include "model/files/tensor_files.h"

extern const char checkpoint_weight_prefix[];           /* "transformer." */
extern const char *const checkpoint_moment_prefixes[2]; /* with "transformer." at their end */

/* Check that open files have exactly the tensors of a model whose parameters are `list` (an stb_ds
 * array): a failure names the file, the tensor, the shapes found and expected, and the key of the
 * config behind them.
 *
 * Weights may be F32, F16 or BF16, may lack "transformer.", and may come with what Hugging Face's
 * files also hold: buffers (*.attn.bias, *.attn.masked_bias) and a lm_head.weight that is the token
 * embedding. */
int checkpoint_check_weights(const struct parameter *list, const struct tensor_files *files,
                             struct error *error);
int checkpoint_check_moments(const struct parameter *list, const struct tensor_files *files,
                             struct error *error);

/* A weight by its name without "transformer.", or a moment (0 or 1) of it; NULL where there is
 * none. */
const struct tensor_place *checkpoint_find_weight(const struct tensor_files *files,
                                                  const char *name);
const struct tensor_place *checkpoint_find_moment(const struct tensor_files *files, int moment,
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

#endif
