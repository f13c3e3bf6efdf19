/* The tensors of a checkpoint: parameters and moments to safetensors files, and back.
 *
 * Names are Hugging Face's, "transformer." + parameter.name; moments have the names of their
 * weights after "exp_avg." and "exp_avg_sq.", as PyTorch calls them. Shapes are those of
 * struct parameter, so the padding of the vocabulary stays inside. */
#ifndef MODEL_CHECKPOINT_TENSORS_H
#define MODEL_CHECKPOINT_TENSORS_H

#include "model/gpt.h"
#include "model/safetensors.h"

/* What was written, for the list of files in trainer.json. */
struct checkpoint_file {
    uint64_t bytes;
    char sha256[SHA256_HEX_MAX];
};

/* Write the fp32 masters, or both moments, durably. */
int checkpoint_write_weights(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             char *error);
int checkpoint_write_moments(const struct gpt *gpt, const char *path, struct checkpoint_file *file,
                             char *error);

/* Check that an open file has exactly the tensors of the model: a failure names the tensor, the
 * shapes found and expected, and the key of the config behind them. `path` is for messages.
 *
 * Weights may be F32, F16 or BF16, may lack "transformer.", and may come with what Hugging Face's
 * files also hold: buffers (*.attn.bias, *.attn.masked_bias) and a lm_head.weight that is the token
 * embedding. */
int checkpoint_check_weights(const struct gpt *gpt, const struct safetensors *file,
                             const char *path, char *error);
int checkpoint_check_moments(const struct gpt *gpt, const struct safetensors *file,
                             const char *path, char *error);

/* Fill the masters, or the moments, from a file that passed its check. */
void checkpoint_read_weights(struct gpt *gpt, const struct safetensors *file);
void checkpoint_read_moments(struct gpt *gpt, const struct safetensors *file);

#endif
