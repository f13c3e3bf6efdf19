#include "model/io/checkpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "model/core/gpt_initialize.h"
#include "model/io/adapter_config.h"
#include "model/io/amax_history.h"
#include "model/io/checkpoint_directory.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/checkpoint_writer.h"
#include "kernels/collectives.h"
#include "model/config/config_check.h"
#include "model/io/huggingface.h"
#include "data/util/json.h"
#include "data/util/min_max.h"
#include "data/util/utf8.h"
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
static int check_heads(const struct gpt *gpt, const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    struct config saved;
    if (file_path_join(path, directory, checkpoint_config_name, error)) return -1;
    if (!file_exists(path)) return 0;
    config_defaults(&saved);
    if (huggingface_read_config(&saved, directory, error)) return -1;
    if (saved.model.n_head == gpt->shape.n_head) return 0;
    return fail(error,
                "%.400s: n_head is %" PRId64 ", but model.n_head is %" PRId64
                "\nset model.n_head to %" PRId64 ", or use another directory",
                path, saved.model.n_head, gpt->shape.n_head, saved.model.n_head);
}

enum tensor_kind { MODEL, ADAPTERS, MOMENTS };

/* Opens the files of a kind in a directory, and checks them. After a failure nothing is open.
 * optimizer: that of moments. */
static int open_tensors(struct tensor_files *files, enum tensor_kind kind, const struct gpt *gpt,
                        const struct optimizer *optimizer, const char *directory,
                        struct error *error) {
    const char *const stems[] = {checkpoint_model_stem, checkpoint_adapter_stem,
                                 checkpoint_optimizer_stem};
    if (tensor_files_open_directory(files, directory, stems[kind], error)) return -1;
    int status = kind == MODEL      ? checkpoint_check_weights(gpt->list, files, error)
                 : kind == ADAPTERS ? checkpoint_check_adapters(gpt->list, files, error)
                                    : checkpoint_check_moments(optimizer, files, error);
    if (status == 0 && kind == MODEL) status = check_heads(gpt, directory, error);
    if (status) tensor_files_close(files);
    return status;
}

static int finish_upload(struct gpt *gpt, struct error *error) {
    masters_refresh(&gpt->masters, gpt->be);
    return gpt->be->failure.text[0] ? fail(error, "%s", gpt->be->failure.text) : 0;
}

int checkpoint_check_base(const char *directory, struct error *error) {
    if (file_exists(directory)) return 0;
    return fail(
        error,
        "there is no %.400s, the model of the adapters\nif it has moved, name its folder by "
        "--set model.init_from=DIR",
        directory);
}

/* Loads the model that adapters are trained on. expected: its fingerprint, or "". */
static int load_base(struct gpt *gpt, const char *directory, const char *expected,
                     struct error *error) {
    struct tensor_files files;
    if (checkpoint_check_base(directory, error) ||
        open_tensors(&files, MODEL, gpt, NULL, directory, error))
        return -1;
    int status = tensor_files_fingerprint(gpt->base_fingerprint, &files, error);
    if (status == 0 && expected[0] && strcmp(expected, gpt->base_fingerprint) != 0)
        status = fail(error,
                      "%.400s is another model than the one that the adapters were trained on\n"
                      "name that one by --set model.init_from=DIR",
                      directory);
    if (status == 0)
        status = checkpoint_read(gpt, NULL, saved_weights(gpt->list, false), &files, error);
    tensor_files_close(&files);
    return status;
}

/* Returns the kind of weights that a checkpoint of the model has. */
static enum tensor_kind kind_of(const struct gpt *gpt) {
    return shape_has_adapters(&gpt->shape) ? ADAPTERS : MODEL;
}

/* Reads the open files of kind_of, and with adapters their model. */
static int read_stored(struct gpt *gpt, const struct config *config,
                       const struct tensor_files *files, const char *fingerprint,
                       struct error *error) {
    const bool adapters = kind_of(gpt) == ADAPTERS;
    if (adapters && load_base(gpt, config->model.init_from, fingerprint, error)) return -1;
    return checkpoint_read(gpt, NULL, saved_weights(gpt->list, adapters), files, error);
}

/* Loads weights and, unless the optimizer begins anew, moments. */
static int load_tensors(struct trainer *trainer, const char *directory, bool anew,
                        const struct checkpoint_manifest *manifest, struct error *error) {
    struct gpt *gpt = &trainer->gpt;
    struct tensor_files weights, moments;
    struct optimizer *optimizer = &trainer->optimizer;
    if (open_tensors(&weights, kind_of(gpt), gpt, NULL, directory, error)) return -1;
    int status = anew ? 0 : open_tensors(&moments, MOMENTS, gpt, optimizer, directory, error);
    if (status == 0) {
        status = read_stored(gpt, trainer->config, &weights, manifest->base_fingerprint, error);
        if (status == 0 && !anew)
            status = checkpoint_read(gpt, optimizer, saved_moments(optimizer), &moments, error);
        if (!anew) tensor_files_close(&moments);
        if (status == 0) status = finish_upload(gpt, error);
    }
    tensor_files_close(&weights);
    return status;
}

int checkpoint_load_weights(struct gpt *gpt, const struct config *config, const char *directory,
                            struct error *error) {
    struct checkpoint_manifest manifest = {0};
    struct tensor_files files;
    char path[FILE_PATH_MAX];
    if (file_path_join(path, directory, checkpoint_manifest_name, error)) return -1;
    if (shape_has_adapters(&gpt->shape) && file_exists(path) &&
        checkpoint_manifest_open(&manifest, path, error))
        return -1;
    int status = open_tensors(&files, kind_of(gpt), gpt, NULL, directory, error);
    if (status == 0) {
        status = read_stored(gpt, config, &files, manifest.base_fingerprint, error);
        tensor_files_close(&files);
    }
    checkpoint_manifest_close(&manifest);
    return status ? -1 : finish_upload(gpt, error);
}

/* Rank 0 checks if the directory is a checkpoint, and verifies it for all ranks. */
static int verify_model(const struct gpt *gpt, const char *directory, struct error *error) {
    const struct ranks *ranks = gpt->be->collectives->ranks;
    bool verifies = ranks->rank == 0 && file_exists_in(directory, checkpoint_manifest_name);
    int status = verifies ? checkpoint_verify(directory, CHECKPOINT_WEIGHTS, error) : 0;
    return ranks_agree(ranks, status, error);
}

int checkpoint_load_initial(struct gpt *gpt, const struct config *config, struct error *error) {
    const char *base = config->model.init_from, *adapters = config->adapter.init_from;
    if (!base[0])
        return fail(error, "adapters are trained on a model, and there is none\nname its folder in "
                           "model.init_from");
    if (verify_model(gpt, base, error)) return -1;
    if (!shape_has_adapters(&gpt->shape)) return checkpoint_load_weights(gpt, config, base, error);
    if (adapters[0])
        return verify_model(gpt, adapters, error) ||
                       checkpoint_load_weights(gpt, config, adapters, error)
                   ? -1
                   : 0;
    if (load_base(gpt, base, "", error)) return -1;
    gpt_initialize_adapters(gpt, (uint64_t)config->seed);
    return finish_upload(gpt, error);
}

/* Returns the next sample, counted in sequences of this length. */
static int64_t next_sample_of(const struct checkpoint_manifest *manifest, int64_t seq_len) {
    return manifest->state.next_sample * manifest->seq_len / seq_len;
}

/* Restores the scaler if the precision is unchanged. The counts of updates (Adam's t) and of
 * skipped steps are always restored. */
static void load_state(struct trainer *trainer, const struct checkpoint_manifest *manifest) {
    const struct precision *precision = &trainer->gpt.precision;
    struct step_state *scaler = &trainer->state.scaler;
    trainer->state = manifest->state;
    trainer->state.next_sample = next_sample_of(manifest, trainer->config->data.seq_len);
    if (precision_effective(precision) != manifest->precision) {
        scaler->growth_tracker = 0;
        scaler->skipped_in_row = 0;
        scaler->at_floor = 0;
        scaler->loss_scale = (float)trainer->config->loss_scale.init_scale;
    }
    if (!precision->scale_loss) scaler->loss_scale = 1;
    trainer_restore_scaler(trainer);
}

static void note_precision(const struct trainer *trainer,
                           const struct checkpoint_manifest *manifest, FILE *notes) {
    const struct precision *precision = &trainer->gpt.precision;
    if (precision_effective(precision) == manifest->precision) return;
    fprintf(notes, "precision: the checkpoint was trained in %s, training goes on in %s",
            config_precision_name(manifest->precision), precision_name(precision));
    if (precision->scale_loss)
        fprintf(notes, "; the loss scale starts at loss_scale.init_scale, %g",
                (double)trainer->state.scaler.loss_scale);
    fputc('\n', notes);
}

/* True if two values of a key are equivalent. So are all tokenizers except bytes, because older
 * files name the same tokenizer differently. A key that an older file lacks was off. */
static bool same_setting(const char *key, const cJSON *a, const cJSON *b) {
    if (!a) return cJSON_IsFalse(b) || (cJSON_IsNumber(b) && b->valuedouble == 0);
    if (cJSON_Compare(a, b, true)) return true;
    if (strcmp(key, "tokenizer") != 0 || !cJSON_IsString(a) || !cJSON_IsString(b)) return false;
    const char *bytes = config_tokenizer_name(CONFIG_TOKENIZER_BYTES);
    return strcmp(a->valuestring, bytes) != 0 && strcmp(b->valuestring, bytes) != 0;
}

/* Prints the members that are in both objects and differ. */
static void note_differences(const cJSON *saved, const cJSON *now, const char *block, FILE *notes) {
    const cJSON *member;
    cJSON_ArrayForEach(member, saved) {
        const cJSON *other = json_member(now, member->string);
        if (!other || same_setting(member->string, member, other)) continue;
        char *before = cJSON_PrintUnformatted(member), *after = cJSON_PrintUnformatted(other);
        if (before && after)
            fprintf(notes, "%s.%s: %s in the checkpoint, now %s\n", block, member->string,
                    utf8_mask(before), utf8_mask(after));
        cJSON_free(before);
        cJSON_free(after);
    }
}

/* The other keys of the model are those of its weights. */
static void note_model(const cJSON *saved, const char *key, double now, FILE *notes) {
    const cJSON *before = json_member(saved, key);
    if (before && before->valuedouble != now)
        fprintf(notes, "model.%s: %g in the checkpoint, now %g\n", key, before->valuedouble, now);
}

/* Keys besides the seed that determine what a sample is, and the samples of a validation. */
static const char *const sample_keys[][2] = {
    {"data", "train"}, {"data", "tokenizer"}, {"data", "seq_len"}, {"data", "isolate"}, {NULL},
};
static const char *const validation_keys[][2] = {
    {"data", "val"},
    {"data", "tokenizer"},
    {"data", "seq_len"},
    {"data", "isolate"},
    {"model", "window"},
    {"model", "window_from"},
    {"model", "window_pattern"},
    {"train", "micro_batch_size"},
    {"eval", "batches"},
    {NULL},
};

static bool settings_differ(const cJSON *saved, const cJSON *now, const char *const keys[][2]) {
    for (size_t i = 0; keys[i][0]; i++) {
        const cJSON *before = json_member(json_member(saved, keys[i][0]), keys[i][1]);
        const cJSON *after = json_member(json_member(now, keys[i][0]), keys[i][1]);
        if (!same_setting(keys[i][1], before, after)) return true;
    }
    return false;
}

/* Returns a config's text as a tree, or NULL. */
static cJSON *tree_of(const char *text) {
    cJSON *tree = NULL;
    struct error ignored;
    if (text) json_parse(&tree, text, strlen(text), "", &ignored);
    return tree;
}

static void note_settings(struct trainer *trainer, const struct checkpoint_manifest *manifest,
                          FILE *notes) {
    const struct config *config = trainer->config;
    char *text = config_json_text(config, NULL);
    cJSON *saved = tree_of(manifest->config), *now = tree_of(text);
    const cJSON *seed = json_member(saved, "seed");
    bool other_seed = !cJSON_Compare(seed, json_member(now, "seed"), true);
    if (seed && other_seed)
        fprintf(notes, "seed: %.0f in the checkpoint, now %" PRId64 "\n", seed->valuedouble,
                config->seed);
    note_model(json_member(saved, "model"), "dropout", config->model.dropout, notes);
    note_model(json_member(saved, "model"), "window", (double)config->model.window, notes);
    note_model(json_member(saved, "model"), "window_from", (double)config->model.window_from,
               notes);
    note_model(json_member(saved, "model"), "window_pattern", (double)config->model.window_pattern,
               notes);
    for (int i = 0; i < config_block_count; i++) {
        const char *block = config_blocks[i].name;
        if (config_blocks[i].training)
            note_differences(json_member(saved, block), json_member(now, block), block, notes);
    }
    if (saved && now && (other_seed || settings_differ(saved, now, sample_keys)))
        fprintf(notes,
                "data: step %" PRId64 " begins at sample %" PRId64 " of the order that these "
                "settings give, which is not the checkpoint's\n",
                trainer->state.step + 1, trainer->state.next_sample);
    if (saved && now && settings_differ(saved, now, validation_keys))
        trainer->state.best =
            (struct best_validation){0}; /* losses of different data are not comparable */
    cJSON_Delete(saved);
    cJSON_Delete(now);
    free(text);
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
    if (!history) return fail(error, "out of memory for the history of fp8");
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

/* Fails if the adapters of a checkpoint are others than the config's: they would compute something
 * else. */
static int check_adapter_settings(const struct config *config,
                                  const struct checkpoint_manifest *manifest, struct error *error) {
    static const char *const keys[] = {"type", "rank", "alpha", "rslora", "targets"};
    char *text = config_json_text(config, NULL);
    cJSON *saved = tree_of(manifest->config), *now = tree_of(text);
    const cJSON *before = json_member(saved, "adapter"), *after = json_member(now, "adapter");
    int status = 0;
    for (size_t i = 0; before && status == 0 && i < sizeof keys / sizeof *keys; i++) {
        const cJSON *a = json_member(before, keys[i]), *b = json_member(after, keys[i]);
        if (cJSON_Compare(a, b, true)) continue;
        char *found = cJSON_PrintUnformatted(a), *given = cJSON_PrintUnformatted(b);
        status = fail(error,
                      "adapter.%s is %.80s in the checkpoint, now %.80s: these are other adapters\n"
                      "set it as it was, or begin another run (adapter.init_from)",
                      keys[i], found ? found : "missing", given ? given : "missing");
        cJSON_free(found);
        cJSON_free(given);
        if (config->adapter.type == CONFIG_ADAPTER_NONE) break;
    }
    cJSON_Delete(saved);
    cJSON_Delete(now);
    free(text);
    return status;
}

/* Sets *anew to true if the checkpoint has the moments of another optimizer, and the config allows
 * for that; else fails. Checkpoints without a name are of AdamW. */
static int check_optimizer(bool *anew, const struct config *config,
                           const struct checkpoint_manifest *manifest, struct error *error) {
    cJSON *saved = tree_of(manifest->config);
    const char *before = json_text(json_member(saved, "optimizer"), "name");
    const char *now = config_name_of("optimizer.name", config->optimizer.name);
    if (!before) before = config_name_of("optimizer.name", CONFIG_OPTIMIZER_ADAMW);
    int status = 0;
    *anew = strcmp(before, now) != 0;
    if (*anew && !config->checkpoint.reset_optimizer)
        status = fail(error,
                      "optimizer.name is %.40s in the checkpoint, now %s, whose moments it lacks\n"
                      "set it as it was, or set checkpoint.reset_optimizer to begin with moments "
                      "of 0",
                      before, now);
    cJSON_Delete(saved);
    return status;
}

int checkpoint_load(struct trainer *trainer, const char *path, FILE *notes, struct error *error) {
    char manifest_path[FILE_PATH_MAX];
    struct checkpoint_manifest manifest;
    bool anew = false;
    if (file_path_join(manifest_path, path, checkpoint_manifest_name, error)) return -1;
    if (checkpoint_manifest_open(&manifest, manifest_path, error)) return -1;
    int status = check_adapter_settings(trainer->config, &manifest, error);
    if (status == 0) status = check_optimizer(&anew, trainer->config, &manifest, error);
    if (status == 0) status = load_tensors(trainer, path, anew, &manifest, error);
    if (status == 0)
        status = load_history(&trainer->gpt.quantization, path, manifest.state.step, error);
    if (status == 0) {
        if (anew) manifest.state.scaler.updates = 0;
        load_state(trainer, &manifest);
        note_precision(trainer, &manifest, notes);
        note_settings(trainer, &manifest, notes);
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
    *next_sample = next_sample_of(&manifest, config->data.seq_len);
    checkpoint_manifest_close(&manifest);
    return 0;
}

/* Like config_load, for the text in a manifest. */
static int config_from_text(struct config *config, const char *text, const char *path,
                            struct error *error) {
    struct config_origins origins = {.path = path, .saved = true};
    config_defaults(config);
    if (config_read_text(config, &origins, text, strlen(text), error)) return -1;
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
        char fetch[300];
        huggingface_fetch_advice(fetch, path);
        if (!file_exists(path))
            return fail(error, "there is no %.400s (from the current folder)\n%s", path, fetch);
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
