/* Tensors of a model in safetensors files: names, checks, and reading and writing the values of
 * parameters and moments.
 *
 * Names are Hugging Face's: "transformer." before parameter.name for a GPT-2, and PEFT's
 * "base_model.model." before those of adapters. Moments have a prefix before the name of their
 * weight, such as "exp_avg." (model/core/update_rule.h). Shapes are those of struct parameter, so
 * the padding of the vocabulary is not saved.
 *
 * A moment in 8 bits has its codes under that name, in U8, and beside them, with ".absmax" after
 * the name, as in bitsandbytes, the scales of its blocks [elements / MOMENT_BLOCK] in F32. Files
 * may have moments in other dtypes than the optimizer: reading converts them. */
#pragma once

#include "data/util/error.h"
#include "model/architecture/parameters.h"
#include "model/core/model.h"
#include "model/io/tensor_files.h"
#include "model/optimize/optimizer.h"

/* Stems of file names, for weights and for moments; checkpoint_manifest.c defines them. */
extern const char checkpoint_model_stem[], checkpoint_adapter_stem[], checkpoint_optimizer_stem[];

enum { SAVED_NAME_MAX = 128, SAVED_WEIGHT = -1 };

/* A tensor in the files of a checkpoint. */
struct saved_tensor {
    const struct parameter *parameter;
    int moment;                /* a moment of the parameter, or SAVED_WEIGHT */
    char name[SAVED_NAME_MAX]; /* in files, such as "exp_avg.transformer.wte.weight" */
    enum moment_array array;   /* of a moment in 8 bits: its codes or scales */
};

/* Return the tensors of a model whose parameters are `list` (an stb_ds array), in the order of
 * their files, as an stb_ds array: the weights without adapters, or those of adapters alone; or all
 * moments, the first ones of all parameters before the second ones. */
struct saved_tensor *saved_weights(const struct parameter *list, bool adapters);
struct saved_tensor *saved_moments(const struct optimizer *optimizer);

/* Gives the weights of adapters the names that they have in a larger model (huggingface_larger.h):
 * module is the path of the text's model there. NULL: nothing changes. */
void saved_rename(struct saved_tensor *tensors, const char *module);

/* Returns their entries in files, an stb_ds array. The names belong to the tensors. dtype: of all
 * but moments in 8 bits. */
struct safetensors_entry *saved_entries(const struct saved_tensor *tensors, enum dtype dtype);

/* Fails because the files lack a tensor. If they have its name after another prefix, as files of
 * wrapped models do, the message says so. */
int saved_missing(const struct tensor_files *files, const struct saved_tensor *tensor,
                  struct error *error);

/* Returns the config keys that determine the first dimension in which a stored tensor differs from
 * its parameter, for "set %s as the file has it". */
const char *tensor_key_of_shape(const struct parameter *parameter,
                                const struct safetensors_entry *entry);

/* Check that open files have exactly the tensors of saved_weights or saved_moments. A failure names
 * the file, the tensor, the shapes found and expected, and the config key that determines them.
 *
 * Weights may be F32, F16 or BF16, or quantized (model/io/quantized_tensors.h), and may lack
 * "transformer.". Extra tensors of Hugging Face's
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

/* Writes the fp32 master weights, of adapters alone if there are any, durably, from a copy on the
 * host, or from the model if copy is NULL. module: as for saved_rename. Files have at most limit
 * bytes of data, unless a single tensor is larger, and are appended to *files, an stb_ds array
 * (tensor_files.h). */
int checkpoint_write_weights(const struct model *model, const struct masters *copy,
                             const char *module, const char *directory, uint64_t limit,
                             struct stored_file **files, struct error *error);

/* Reads weights or moments from files that passed the check, and frees the array of tensors.
 * optimizer: that of moments, or NULL. Fails like safetensors_read. */
int checkpoint_read(struct model *model, const struct optimizer *optimizer,
                    struct saved_tensor *tensors, const struct tensor_files *files,
                    struct error *error);
