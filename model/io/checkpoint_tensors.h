/* Tensors of a model in safetensors files: names, checks, and reading and writing the values of
 * parameters and moments.
 *
 * Names are Hugging Face's, checkpoint_prefix + parameter.name. Moments have a prefix
 * before the name of their weight, such as "exp_avg." (model/core/update_rule.h). Shapes are those
 * of struct parameter, so the padding of the vocabulary is not saved. */
#pragma once

#include "data/util/error.h"
#include "model/architecture/parameters.h"
#include "model/io/tensor_files.h"
#include "model/core/gpt.h"
#include "model/core/optimizer.h"

/* Stems of file names, for weights and for moments; checkpoint_manifest.c defines them. */
extern const char checkpoint_model_stem[], checkpoint_adapter_stem[], checkpoint_optimizer_stem[];

/* Returns the prefix of names in the files of a checkpoint: "transformer." for a GPT-2, else "";
 * with adapters, of which alone a checkpoint then has weights, PEFT's "base_model.model." before
 * it. */
const char *checkpoint_prefix(const struct parameter *list);

/* A moment of a parameter. */
struct parameter_moment {
    const struct parameter *parameter;
    int moment;
};

/* Returns all moments in the order of their files, an stb_ds array: the first moments of all
 * parameters, then the second ones of those that have them. */
struct parameter_moment *checkpoint_moments(const struct optimizer *optimizer);

/* Check that open files have exactly the tensors of a model whose parameters are `list` (an stb_ds
 * array), without its adapters; of the adapters; or of the moments. A failure names the file, the
 * tensor, the shapes found and expected, and the config key that determines them.
 *
 * Weights may be F32, F16 or BF16, and may lack "transformer.". Extra tensors of Hugging Face's
 * files are allowed: buffers (*.attn.bias, *.attn.masked_bias, *.rotary_emb.inv_freq) and an
 * lm_head.weight equal to the token embedding. */
int checkpoint_check_weights(const struct parameter *list, const struct tensor_files *files,
                             struct error *error);
int checkpoint_check_adapters(const struct parameter *list, const struct tensor_files *files,
                              struct error *error);
int checkpoint_check_moments(const struct optimizer *optimizer, const struct tensor_files *files,
                             struct error *error);

/* Returns a weight by its name without "transformer.", or NULL. */
const struct stored_tensor *checkpoint_find_weight(const struct tensor_files *files,
                                                   const char *name);

/* Returns a weight of an adapter by the name of its parameter, or NULL. `list` has adapters. */
const struct stored_tensor *checkpoint_find_adapter(const struct parameter *list,
                                                    const struct tensor_files *files,
                                                    const char *name);

/* Returns the dtype of a tensor that passed the check. */
enum dtype checkpoint_dtype(const struct safetensors_entry *entry);

/* Reads elements first .. first + count - 1 of a tensor that passed the check, as fp32 into values.
 * Thread-safe. Fails like safetensors_read. */
int checkpoint_widen(float *values, const struct stored_tensor *tensor, int64_t first,
                     int64_t count, struct error *error);

/* Appends an entry for each of the first `count` parameters to *entries, an stb_ds array. The
 * entries own their names; free them with checkpoint_free_entries. */
void checkpoint_list_entries(struct safetensors_entry **entries, const struct parameter *list,
                             ptrdiff_t count, const char *prefix, enum dtype dtype);

/* The same for moments. */
void checkpoint_list_moments(struct safetensors_entry **entries, const struct optimizer *optimizer,
                             const struct parameter_moment *moments);
void checkpoint_free_entries(struct safetensors_entry *entries);

/* Writes the fp32 master weights, of adapters alone if there are any, durably, from a copy on the
 * host, or from the model if copy is NULL. Files have at most limit bytes of data, unless a single
 * tensor is larger, and are appended to *files, an stb_ds array (tensor_files.h). */
int checkpoint_write_weights(const struct gpt *gpt, const struct masters *copy,
                             const char *directory, uint64_t limit, struct stored_file **files,
                             struct error *error);

/* Fill the master weights of the model, those of its adapters, or the moments, from files that
 * passed the check. Fail like safetensors_read. */
int checkpoint_read_weights(struct gpt *gpt, const struct tensor_files *files, struct error *error);
int checkpoint_read_adapters(struct gpt *gpt, const struct tensor_files *files,
                             struct error *error);
int checkpoint_read_moments(struct optimizer *optimizer, const struct tensor_files *files,
                            struct error *error);
