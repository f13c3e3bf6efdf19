/* trainer.json: what makes a directory a checkpoint.
 *
 * It is written last, names the size and SHA-256 of every other file, and ends with its own:
 *
 *     {
 *       "format": 1 (2 with moments in bf16, which older versions do not know), "mantissa":
 * "0.1.0", "step": 1000, "tokens": 8192000, "next_sample": 8000, "seed": 1, "micro_batch_size": 8,
 * "grad_accum_steps": 1, "seq_len": 1024, "precision": "fp16", "scaler": {"loss_scale": 65536,
 * "growth_tracker": 12, "updates": 998, "skipped": 2, ...}, "best" (after a
 * validation): {"val_loss": 2.5, "step": 900, "since": 1}, "config": { the run's config, resolved,
 * as config_print_json prints it }, "files": {"model.safetensors": {"bytes": 123, "sha256": "..."},
 * ...}, "sha256": "..." of all bytes before the comma that precedes this key
 *     }
 *
 * so that any byte changed in any file shows. Which files there are beside the three that every
 * checkpoint has is up to the list. */
#pragma once

#include "data/util/error.h"
#include "model/config/config_print.h"
#include "model/io/checkpoint_tensors.h"
#include "model/core/trainer.h"

enum {
    CHECKPOINT_FORMAT = 1,
    CHECKPOINT_FORMAT_MOMENTS = 2, /* moments are in bf16 */
    CHECKPOINT_FORMAT_SHARDS = 3,  /* weights or moments are in several files */
    CHECKPOINT_FILES_MAX = 2 * (TENSOR_FILES_MAX + 1) + 10,
};

extern const char checkpoint_manifest_name[]; /* "trainer.json" */

/* Every checkpoint has "config.json", and of the stems "model" and "optimizer" either
 * "STEM.safetensors" or "STEM.safetensors.index.json" with its shards (tensor_shards.h). */
extern const char checkpoint_config_name[];
/* What newer ones have too: "generation_config.json". */
extern const char checkpoint_generation_name[];

struct checkpoint_manifest {
    struct training_state state; /* of the scaler what a step does not set anew */
    int64_t next_sample;
    enum config_precision precision; /* what the run's came to: never auto */
    struct stored_file *files;       /* stb_ds array: those that it has, with plain names */
    char *config; /* JSON text, as printed by config_print_json but for indentation */
};

/* state: of the step that was saved, which may be behind the trainer's own. files: an stb_ds array
 * of all other files. */
int checkpoint_write_manifest(const struct trainer *trainer, const struct training_state *state,
                              const struct stored_file *files, const char *path,
                              struct error *error);

/* Fails when the file is missing, no JSON, of another format, or not as it was written; then there
 * is nothing to close, though closing is harmless. */
int checkpoint_manifest_open(struct checkpoint_manifest *manifest, const char *path,
                             struct error *error);

/* Whether a file of that name is one of its files. */
bool checkpoint_manifest_lists(const struct checkpoint_manifest *manifest, const char *name);

void checkpoint_manifest_close(struct checkpoint_manifest *manifest);
