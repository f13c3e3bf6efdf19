/* trainer.json: what makes a directory a checkpoint.
 *
 * It is written last, names the size and SHA-256 of every other file, and ends with its own:
 *
 *     {
 *       "format": 1, "mantissa": "0.1.0",
 *       "step": 1000, "tokens": 8192000, "next_sample": 8000, "seed": 1,
 *       "micro_batch_size": 8, "grad_accum_steps": 1, "seq_len": 1024,
 *       "precision": "fp16",
 *       "scaler": {"loss_scale": 65536, "growth_tracker": 12, "updates": 998, "skipped": 2, ...},
 *       "config": { the run's config, resolved, as config_print_json prints it },
 *       "files": {"model.safetensors": {"bytes": 123, "sha256": "..."}, ...},
 *       "sha256": "..." of all bytes before the comma that precedes this key
 *     }
 *
 * so that any byte changed in any file shows. */
#ifndef MODEL_CHECKPOINT_MANIFEST_H
#define MODEL_CHECKPOINT_MANIFEST_H

#include "model/checkpoint_tensors.h"
#include "model/trainer.h"

enum { CHECKPOINT_FORMAT = 1 };

enum checkpoint_file_kind {
    CHECKPOINT_MODEL,
    CHECKPOINT_MODEL_CONFIG,
    CHECKPOINT_OPTIMIZER,
    CHECKPOINT_FILES /* how many there are */
};

extern const char *const checkpoint_file_names[CHECKPOINT_FILES];
extern const char checkpoint_manifest_name[]; /* "trainer.json" */

struct checkpoint_manifest {
    struct training_state state; /* of the scaler what a step does not set anew */
    int64_t next_sample;
    enum dtype precision; /* DTYPE_F32 unless the run had a lower precision */
    struct checkpoint_file files[CHECKPOINT_FILES];
    char *config; /* JSON text, as printed by config_print_json but for indentation */
};

int checkpoint_write_manifest(const struct trainer *trainer,
                              const struct checkpoint_file files[CHECKPOINT_FILES],
                              const char *path, char *error);

/* Fails when the file is missing, no JSON, of another format, or not as it was written; then there
 * is nothing to close, though closing is harmless. */
int checkpoint_manifest_open(struct checkpoint_manifest *manifest, const char *path, char *error);
void checkpoint_manifest_close(struct checkpoint_manifest *manifest);

#endif
