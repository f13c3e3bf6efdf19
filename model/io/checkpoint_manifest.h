/* trainer.json, the manifest that makes a directory a checkpoint.
 *
 * It is written last, has the size and SHA-256 of every other file, and ends with its own SHA-256:
 *
 *     format         1 (2: moments in bf16, 3: several files, 4: adapters, 5: moments in 8 bits;
 *                    older versions reject these)
 *     mantissa       version that wrote it, "0.1.0"
 *     step, tokens, next_sample, seed, micro_batch_size, grad_accum_steps, seq_len
 *     packed_sequences  of a pass over data.train, if documents are packed whole
 *     precision      effective precision, "fp16"
 *     scaler         {"loss_scale": 65536, "growth_tracker": 12, "updates": 998, "skipped": 2, ...}
 *     best           after a validation: {"val_loss": 2.5, "step": 900, "since": 1}
 *     base_sha256    with adapters: tensor_files_fingerprint of the model's files. The
 *                    base_fingerprint of older versions, of a sample, is not compared
 *     data           {"train": SHA-256 of a sample of the shards, "val": ..., "teacher": ...}
 *     config         the run's resolved config, as config_print_json prints it
 *     files          {"model.safetensors": {"bytes": 123, "sha256": "..."}, ...}
 *     sha256         hash of all bytes before the comma that precedes this key
 *
 * so that a changed byte in any file is detected. Checkpoints may list files besides the three that
 * each one has. */
#pragma once

#include "data/util/error.h"
#include "model/config/config_print.h"
#include "model/io/checkpoint_tensors.h"
#include "model/optimize/trainer.h"

enum {
    CHECKPOINT_FORMAT = 1,
    CHECKPOINT_FORMAT_MOMENTS = 2,  /* moments are in bf16 */
    CHECKPOINT_FORMAT_SHARDS = 3,   /* weights or moments are in several files */
    CHECKPOINT_FORMAT_ADAPTERS = 4, /* weights are those of adapters */
    CHECKPOINT_FORMAT_CODES = 5,    /* some moments are in 8 bits */
    CHECKPOINT_FILES_MAX = 2 * (TENSOR_FILES_MAX + 1) + 10,
};

extern const char checkpoint_manifest_name[]; /* "trainer.json" */

/* Every checkpoint has "config.json", and of the stems "model" ("adapter_model" with adapters) and
 * "optimizer" either "STEM.safetensors" or "STEM.safetensors.index.json" with its shards
 * (tensor_files.h). */
extern const char checkpoint_config_name[];
/* "generation_config.json", which newer checkpoints have too. */
extern const char checkpoint_generation_name[];

struct checkpoint_manifest {
    struct training_state state;     /* only the fields of the scaler that persist between steps */
    int64_t seq_len;                 /* tokens of the sequences that next_sample counts */
    int64_t packed_sequences;        /* number of these in a pass, if packed whole; else 0 */
    enum config_precision precision; /* effective precision of the run, never auto */
    char base_fingerprint[SHA256_HEX_MAX];         /* "": none */
    char data_hashes[HASHED_DATA][SHA256_HEX_MAX]; /* as in struct trainer; "": none */
    struct stored_file *files; /* stb_ds array of the listed files, with plain names */
    char *config;              /* JSON text, as printed by config_print_json but for indentation */
};

/* Writes a manifest. state: that of the saved step, which may be older than the trainer's own.
 * files: an stb_ds array of all other files. */
int checkpoint_write_manifest(const struct trainer *trainer, const struct training_state *state,
                              const struct stored_file *files, const char *path,
                              struct error *error);

/* Reads and checks a manifest. Fails if the file is missing, is not JSON, has an unknown format or
 * was changed. Closing is not required after a failure, but harmless. */
int checkpoint_manifest_open(struct checkpoint_manifest *manifest, const char *path,
                             struct error *error);

/* True if the manifest lists a file of that name. */
bool checkpoint_manifest_lists(const struct checkpoint_manifest *manifest, const char *name);

void checkpoint_manifest_close(struct checkpoint_manifest *manifest);
