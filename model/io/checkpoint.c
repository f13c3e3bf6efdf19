#include "model/io/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/note.h"
#include "model/core/model_initialize.h"
#include "model/io/adapter_config.h"
#include "model/io/amax_history.h"
#include "model/io/checkpoint_directory.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/checkpoint_writer.h"
#include "model/io/quantized_tensors.h"
#include "kernels/collectives.h"
#include "model/config/config_check.h"
#include "model/config/config_effects.h"
#include "model/io/huggingface.h"
#include "data/util/json.h"
#include "data/util/min_max.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/io/config_file.h"

int checkpoint_save(struct trainer *trainer, const char *run_directory, char *path,
                    struct error *error) {
    struct checkpoint_writer writer;
    checkpoint_writer_open(&writer, trainer, run_directory);
    int status = checkpoint_writer_begin(&writer, error);
    if (status == 0) status = checkpoint_writer_end(&writer, path, error);
    checkpoint_writer_close(&writer);
    return status;
}

/* Shapes do not show the number of heads. */
static int check_heads(const struct model *model, const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    struct config saved;
    if (file_path_join(path, directory, checkpoint_config_name, error)) return -1;
    if (!file_exists(path)) return 0;
    config_defaults(&saved);
    if (huggingface_read_config(&saved, directory, error)) return -1;
    if (saved.model.n_head == model->shape.n_head) return 0;
    return fail(error,
                "%.400s: n_head is %" PRId64 ", but model.n_head is %" PRId64
                "\nset model.n_head to %" PRId64 ", or use another directory",
                path, saved.model.n_head, model->shape.n_head, saved.model.n_head);
}

enum tensor_kind { MODEL, ADAPTERS, MOMENTS };

/* Opens the files of a kind in a directory, and checks them. After a failure nothing is open.
 * optimizer: that of moments. */
static int open_tensors(struct tensor_files *files, enum tensor_kind kind,
                        const struct model *model, const struct optimizer *optimizer,
                        const char *directory, struct error *error) {
    const char *const stems[] = {checkpoint_model_stem, checkpoint_adapter_stem,
                                 checkpoint_optimizer_stem};
    if (tensor_files_open_directory(files, directory, stems[kind], error)) return -1;
    int status = kind == MODEL ? quantized_tensors_open(files, directory, error) : 0;
    if (status == 0)
        status = kind == MODEL      ? checkpoint_check_weights(model->list, files, error)
                 : kind == ADAPTERS ? checkpoint_check_adapters(model->list, files, error)
                                    : checkpoint_check_moments(optimizer, files, error);
    if (status == 0 && kind == MODEL) status = check_heads(model, directory, error);
    if (status) tensor_files_close(files);
    return status;
}

static int finish_upload(struct model *model, struct error *error) {
    masters_refresh(&model->masters, model->be);
    return model->be->failure.text[0] ? fail(error, "%s", model->be->failure.text) : 0;
}

/* Refuses a folder of weights that is not there. */
static int check_folder(const char *directory, const char *what, const char *remedy,
                        struct error *error) {
    if (file_exists(directory)) return 0;
    return fail(error, "there is no %.400s, %s\n%s", directory, what, remedy);
}

int checkpoint_check_base(const char *directory, struct error *error) {
    if (!directory[0])
        return fail(error, "adapters are trained on a model, and there is none\nname its folder in "
                           "model.init_from");
    return check_folder(directory, "the model of the adapters",
                        "if it has moved, name its folder by --base DIR", error);
}

/* Loads the model that adapters are trained on. expected: its fingerprint, or "". */
static int load_base(struct model *model, const char *directory, const char *expected,
                     struct error *error) {
    struct tensor_files files;
    if (checkpoint_check_base(directory, error) ||
        open_tensors(&files, MODEL, model, NULL, directory, error))
        return -1;
    int status = tensor_files_fingerprint(model->base_fingerprint, &files, error);
    if (status == 0 && expected[0] && strcmp(expected, model->base_fingerprint) != 0)
        status = fail(error,
                      "%.400s is another model than the one that the adapters were trained on\n"
                      "name that one by --base DIR",
                      directory);
    if (status == 0)
        status = checkpoint_read(model, NULL, saved_weights(model->list, false), &files, error);
    tensor_files_close(&files);
    return status;
}

/* Returns the kind of weights that a checkpoint of the model has. */
static enum tensor_kind kind_of(const struct model *model) {
    return shape_has_adapters(&model->shape) ? ADAPTERS : MODEL;
}

/* Reads the open files of kind_of, and with adapters their model. */
static int read_stored(struct model *model, const struct config *config,
                       const struct tensor_files *files, const char *fingerprint,
                       struct error *error) {
    const bool adapters = kind_of(model) == ADAPTERS;
    if (adapters && load_base(model, config->model.init_from, fingerprint, error)) return -1;
    return checkpoint_read(model, NULL, saved_weights(model->list, adapters), files, error);
}

/* Loads weights and, unless the optimizer begins anew, moments. */
static int load_tensors(struct trainer *trainer, const char *directory, bool anew,
                        const struct checkpoint_manifest *manifest, struct error *error) {
    struct model *model = &trainer->model;
    struct tensor_files weights, moments;
    struct optimizer *optimizer = &trainer->optimizer;
    if (kind_of(model) == ADAPTERS &&
        checkpoint_check_base(trainer->config->model.init_from, error))
        return -1;
    if (open_tensors(&weights, kind_of(model), model, NULL, directory, error)) return -1;
    int status = anew ? 0 : open_tensors(&moments, MOMENTS, model, optimizer, directory, error);
    if (status == 0) {
        status = read_stored(model, trainer->config, &weights, manifest->base_fingerprint, error);
        if (status == 0 && !anew)
            status = checkpoint_read(model, optimizer, saved_moments(optimizer), &moments, error);
        if (!anew) tensor_files_close(&moments);
        if (status == 0) status = finish_upload(model, error);
    }
    tensor_files_close(&weights);
    return status;
}

int checkpoint_load_weights(struct model *model, const struct config *config, const char *directory,
                            struct error *error) {
    struct checkpoint_manifest manifest = {0};
    struct tensor_files files;
    char path[FILE_PATH_MAX];
    if (file_path_join(path, directory, checkpoint_manifest_name, error)) return -1;
    if (shape_has_adapters(&model->shape) && file_exists(path) &&
        checkpoint_manifest_open(&manifest, path, error))
        return -1;
    int status = open_tensors(&files, kind_of(model), model, NULL, directory, error);
    if (status == 0) {
        status = read_stored(model, config, &files, manifest.base_fingerprint, error);
        tensor_files_close(&files);
    }
    checkpoint_manifest_close(&manifest);
    return status ? -1 : finish_upload(model, error);
}

/* Rank 0 checks if the directory is a checkpoint, and verifies it for all ranks. */
static int verify_model(const struct model *model, const char *directory, struct error *error) {
    const struct ranks *ranks = model->be->collectives->ranks;
    bool verifies = ranks->rank == 0 && file_exists_in(directory, checkpoint_manifest_name);
    int status = verifies ? checkpoint_verify(directory, CHECKPOINT_WEIGHTS, error) : 0;
    return ranks_agree(ranks, status, error);
}

/* Notes the key and both values of a row. place: source of the earlier one; effect: what follows.
 */
static void note_difference(FILE *notes, const struct config_option *row,
                            const struct config *before, const struct config *now,
                            const char *place, const char *effect) {
    char values[2][CONFIG_VALUE_MAX];
    config_value_text(values[0], before, row);
    config_value_text(values[1], now, row);
    note(notes, "note", "%s: %s in %s, now %s%s", row->key, values[0], place, values[1], effect);
}

/* Prints the keys of the config that differ from those of the model in a directory, whose weights
 * are to be loaded. Differences of shapes are errors later. */
static int note_model(const struct config *config, const char *directory, FILE *notes,
                      struct error *error) {
    const struct config_option *rows[CONFIG_OPTION_LIMIT];
    struct config saved;
    if (!file_exists_in(directory, checkpoint_config_name)) return 0;
    config_defaults(&saved);
    if (huggingface_read_config(&saved, directory, error)) return -1;
    const int count = config_changed_rows(rows, &saved, config);
    for (int i = 0; i < count; i++) {
        if (rows[i]->changes != CHANGES_MODEL || strncmp(rows[i]->key, "model.", 6) != 0) continue;
        note_difference(notes, rows[i], &saved, config, directory,
                        ": the weights compute something else than there");
    }
    return 0;
}

int checkpoint_load_initial(struct model *model, const struct config *config, FILE *notes,
                            struct error *error) {
    const char *base = config->model.init_from, *adapters = config->adapter.init_from;
    if (check_folder(base, "which model.init_from names",
                     "name a folder with a model, or one that was written by a run", error) ||
        verify_model(model, base, error))
        return -1;
    if (notes && note_model(config, base, notes, error)) return -1;
    if (!shape_has_adapters(&model->shape))
        return checkpoint_load_weights(model, config, base, error);
    if (adapters[0])
        return verify_model(model, adapters, error) ||
                       checkpoint_load_weights(model, config, adapters, error)
                   ? -1
                   : 0;
    if (load_base(model, base, "", error)) return -1;
    if (notes && model->masters.requantized > 0)
        note(notes, "note",
             "%" PRId64 " weights of %s are rounded once more, since adapter.base \"%s\" does not "
             "have its scales; fp8 keeps those of rows, fp8_block those of blocks of 128",
             model->masters.requantized, base,
             config_name_of("adapter.base", config->adapter.base));
    model_initialize_adapters(model, (uint64_t)config->seed);
    return finish_upload(model, error);
}

/* Returns the next sample. If sequences have another length now, a text goes on with the same
 * token, and documents packed whole, which do not become fewer in proportion, after the same part
 * of all passes. */
static int64_t next_sample_of(const struct checkpoint_manifest *manifest,
                              const struct config *config) {
    const int64_t next = manifest->state.next_sample, before = manifest->packed_sequences;
    if (manifest->seq_len == config->data.seq_len) return next;
    if (before > 0 && config->packed_sequences > 0)
        return (int64_t)((double)next / (double)before * (double)config->packed_sequences);
    return next * manifest->seq_len / config->data.seq_len;
}

/* Restores the scaler if the precision is unchanged. The counts of updates (Adam's t) and of
 * skipped steps are always restored. */
static void load_state(struct trainer *trainer, const struct checkpoint_manifest *manifest) {
    const struct precision *precision = &trainer->model.precision;
    struct step_state *scaler = &trainer->state.scaler;
    trainer->state = manifest->state;
    trainer->state.next_sample = next_sample_of(manifest, trainer->config);
    if (precision_effective(precision) != manifest->precision) {
        scaler->growth_tracker = 0;
        scaler->skipped_in_row = 0;
        scaler->at_floor = 0;
        scaler->loss_scale = (float)trainer->config->loss_scale.init_scale;
    }
    if (!precision->scale_loss) scaler->loss_scale = 1;
    trainer_restore_scaler(trainer);
}

/* Notes data that changed although their names may not have. */
static void note_data(struct trainer *trainer, const struct checkpoint_manifest *manifest,
                      FILE *notes) {
    static const char *const texts[HASHED_DATA] = {
        "data.train: the shards hold other tokens or masks than the checkpoint's; training goes on "
        "at the same sample number",
        "data.val: the shards hold other tokens or masks than the checkpoint's, so earlier "
        "validation losses are not compared",
        "distill.logits: they are of another teacher than the checkpoint's"};
    for (int i = 0; i < HASHED_DATA; i++) {
        const char *saved = manifest->data_hashes[i], *now = trainer->data_hashes[i];
        if (!saved[0] || !now || strcmp(saved, now) == 0) continue;
        note(notes, "note", "%s", texts[i]);
        if (i == HASHED_VAL) trainer->state.best = (struct best_validation){0};
    }
}

/* Prints the settings that differ from the checkpoint's and change numbers, and the consequences
 * for samples and validations. */
static void note_settings(struct trainer *trainer, const struct checkpoint_manifest *manifest,
                          const struct config *saved, FILE *notes) {
    const struct config *config = trainer->config;
    const struct config_option *rows[CONFIG_OPTION_LIMIT];
    const int count = config_changed_rows(rows, saved, config);
    unsigned changes = 0;
    for (int i = 0; i < count; i++) {
        if (rows[i]->changes == CHANGES_NOTHING) continue;
        note_difference(notes, rows[i], saved, config, "the checkpoint", "");
        changes |= rows[i]->changes;
    }
    if ((manifest->packed_sequences > 0) != (config->packed_sequences > 0)) changes |= CHANGES_DATA;
    if (changes & CHANGES_PAIRS && !config_reads_text(config)) changes |= CHANGES_DATA;
    if (precision_effective(&trainer->model.precision) != manifest->precision &&
        trainer->model.precision.scale_loss)
        note(notes, "note", "the loss scale starts at loss_scale.init_scale, %g",
             (double)trainer->state.scaler.loss_scale);
    if (changes & CHANGES_SAMPLES)
        note(notes, "note",
             "data: step %" PRId64 " begins at sample %" PRId64
             " of the order that these settings give, which is not the checkpoint's",
             trainer->state.step + 1, trainer->state.next_sample);
    if (changes & CHANGES_VALIDATION && trainer->state.best.step > 0) {
        note(notes, "note",
             "validation: earlier losses are not comparable, so the search for the lowest one "
             "begins anew");
        trainer->state.best = (struct best_validation){0};
    }
}

/* Uploads the amax history for the next step, if the checkpoint has one, and the maximum of each
 * column times the margin. */
static int load_history(const struct quantization *q, const char *directory, int64_t step,
                        struct error *error) {
    int64_t count = quantization_count(q), elements = q->history_length * count;
    char path[FILE_PATH_MAX];
    if (elements == 0) return 0;
    if (file_path_join(path, directory, AMAX_HISTORY_NAME, error)) return -1;
    if (!file_exists(path)) return 0;
    float *history = calloc((size_t)(elements + count), sizeof *history);
    if (!history) return fail_memory(error, "the history of fp8");
    int status = amax_history_read(history, q->history_length, count, path, step, error);
    float *amax = history + elements;
    for (int64_t i = 0; i < elements; i++)
        if (history[i] > amax[i % count]) amax[i % count] = history[i];
    for (int64_t i = 0; i < count; i++) amax[i] *= q->margin;
    if (status == 0) {
        backend_upload(q->be, q->history, history, (size_t)elements * sizeof *history);
        backend_upload(q->be, q->amax, amax, (size_t)count * sizeof *amax);
    }
    free(history);
    return status;
}

/* Fails if a key differs that determines what the weights compute. */
static int check_model(const struct config *saved, const struct config *now, struct error *error) {
    const struct config_option *rows[CONFIG_OPTION_LIMIT];
    const int count = config_changed_rows(rows, saved, now);
    int i = 0;
    while (i < count && rows[i]->changes != CHANGES_MODEL) i++;
    if (i == count) return 0;
    char before[CONFIG_VALUE_MAX], after[CONFIG_VALUE_MAX];
    const bool adapters = strncmp(rows[i]->key, "adapter.", 8) == 0;
    config_value_text(before, saved, rows[i]);
    config_value_text(after, now, rows[i]);
    return fail(error,
                "%s is %.80s in the checkpoint, now %.80s: %s\n"
                "set it as it was, or start a new run from these weights (%s.init_from=RUN)",
                rows[i]->key, before, after,
                adapters ? "these are other adapters" : "this is another model",
                adapters ? "adapter" : "model");
}

/* Sets *anew to true if the checkpoint has the moments of another optimizer, and the config allows
 * for that; else fails. Checkpoints without a name are of AdamW, the default. */
static int check_optimizer(bool *anew, const struct config *saved, const struct config *now,
                           struct error *error) {
    *anew = saved->optimizer.name != now->optimizer.name;
    if (!*anew || now->checkpoint.reset_optimizer) return 0;
    return fail(error,
                "optimizer.name is %.40s in the checkpoint, now %s, whose moments it lacks\n"
                "set it as it was, or set checkpoint.reset_optimizer to begin with moments of 0",
                config_name_of("optimizer.name", saved->optimizer.name),
                config_name_of("optimizer.name", now->optimizer.name));
}

/* Reads the config in a manifest. Keys that an older file lacks have their defaults. */
static int read_saved(struct config *config, const char *text, const char *path,
                      struct error *error) {
    struct config_origins origins = {.path = path, .saved = true};
    config_defaults(config);
    return config_read_text(config, &origins, text, strlen(text), error);
}

int checkpoint_load(struct trainer *trainer, const char *path, FILE *notes, struct error *error) {
    char manifest_path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    struct config saved;
    bool anew = false;
    if (file_path_join(manifest_path, path, checkpoint_manifest_name, error)) return -1;
    if (checkpoint_manifest_open(&manifest, manifest_path, error)) return -1;
    int status = read_saved(&saved, manifest.config, manifest_path, error);
    if (status == 0) status = check_model(&saved, trainer->config, error);
    if (status == 0) status = check_optimizer(&anew, &saved, trainer->config, error);
    if (status == 0) status = load_tensors(trainer, path, anew, &manifest, error);
    if (status == 0)
        status = load_history(&trainer->model.quantization, path, manifest.state.step, error);
    if (status == 0) {
        if (anew) manifest.state.scaler.updates = 0;
        load_state(trainer, &manifest);
        note_settings(trainer, &manifest, &saved, notes);
        note_data(trainer, &manifest, notes);
    }
    checkpoint_manifest_close(&manifest);
    return status;
}

int checkpoint_read_progress(int64_t *step, int64_t *next_sample, const struct config *config,
                             const char *path, struct error *error) {
    char manifest_path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    if (file_path_join(manifest_path, path, checkpoint_manifest_name, error) ||
        checkpoint_manifest_open(&manifest, manifest_path, error))
        return -1;
    *step = manifest.state.step;
    *next_sample = next_sample_of(&manifest, config);
    checkpoint_manifest_close(&manifest);
    return 0;
}

/* Like config_load, for the text in a manifest. */
static int config_from_text(struct config *config, const char *text, const char *path,
                            struct error *error) {
    const struct config_origins origins = {.path = path, .saved = true};
    if (read_saved(config, text, path, error)) return -1;
    config_resolve(config);
    return config_check(config, &origins, error);
}

/* Longest sequence for evaluating a Hugging Face model, whose context may be far longer. */
enum { FOREIGN_SEQ_LEN = 1024 };

static int config_of_model(struct config *config, const char *directory, struct error *error) {
    struct config_origins origins = {.path = directory};
    bool adapters = file_exists_in(directory, adapter_config_name);
    char *base = config->model.init_from;
    config_defaults(config);
    if (adapters && adapter_read_base(base, directory, error)) return -1;
    const char *adapter = directory;
    if (adapters) directory = base;
    snprintf(config->name, sizeof config->name, "model");
    config->data.seq_len =
        INT64_MAX; /* the model's context, which is known after reading its file */
    if (huggingface_read_config(config, directory, error)) return -1;
    if (adapters && adapter_read_config(config, adapter, error)) return -1;
    /* Data are not needed here, and the built-in data may not fit the tokenizer. */
    config->data.train[0] = config->data.val[0] = '\0';
    config->eval.every = 0;
    config->data.tokenizer = config_tokenizer_of_model(config->model.vocab_size, directory);
    config->data.seq_len = MIN(config->model.n_positions, FOREIGN_SEQ_LEN);
    config_resolve(config);
    return config_check(config, &origins, error);
}

int checkpoint_config(struct config *config, const char *path, struct error *error) {
    char manifest_path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    if (file_path_join(manifest_path, path, checkpoint_manifest_name, error)) return -1;
    if (!file_exists(manifest_path) && !file_exists_in(path, checkpoint_config_name) &&
        !file_exists_in(path, adapter_config_name)) {
        char fetch[FETCH_ADVICE_MAX];
        huggingface_fetch_advice(fetch, path);
        if (!file_exists(path))
            return fail(error, "there is no %.400s (from the current folder)\n%s", path, fetch);
        if (directory_refuse_file(path, error)) return -1;
        return fail(error,
                    "%.400s holds neither trainer.json nor config.json, so it is no checkpoint\n"
                    "name a directory such as runs/NAME/checkpoints/step-00001000",
                    path);
    }
    if (!file_exists(manifest_path)) return config_of_model(config, path, error);
    if (checkpoint_manifest_open(&manifest, manifest_path, error)) return -1;
    int status = config_from_text(config, manifest.config, manifest_path, error);
    checkpoint_manifest_close(&manifest);
    return status;
}
