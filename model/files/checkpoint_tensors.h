/* The tensors of a checkpoint: parameters and moments to safetensors files, and back.
 *
 * checkpoint_match.h says how they are named and which files fit. */
#ifndef MODEL_FILES_CHECKPOINT_TENSORS_H
#define MODEL_FILES_CHECKPOINT_TENSORS_H

#include "data/base/error.h"
#include "data/base/sha256.h"
#include "model/files/checkpoint_match.h"
#include "model/gpt.h"
#include "model/optimizer.h"

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

#endif
