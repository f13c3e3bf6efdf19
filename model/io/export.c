#include "model/io/export.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/corpus/chat_file.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/files.h"
#include "data/util/json.h"
#include "model/config/config_keys.h"
#include "model/core/adapter_memory.h"
#include "model/io/adapter_config.h"
#include "model/io/adapter_merge.h"
#include "model/io/base_files.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_directory.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/gguf.h"
#include "model/io/gguf_model.h"
#include "model/io/huggingface.h"
#include "model/io/huggingface_larger.h"
#include "model/io/quantized_tensors.h"
#include "model/io/tensor_files.h"

/* A model being exported. */
struct export {
    const char *from, *directory; /* directory: the one being written */
    const char *model; /* folder of config.json and of the weights: from, or the adapters' model */
    enum dtype dtype;
    bool adapters;        /* from holds adapters, */
    bool merge;           /* which are merged into their model */
    struct config config; /* sizes of the model, and the limit of file sizes */
    struct base_files base;
    struct parameter *list;         /* exported parameters, and those of the adapters */
    struct parameter *adapter_list; /* stb_ds array, with adapters */
    struct tensor_files files, adapter_files;
    float *values; /* buffer for a piece in fp32 */
    struct merged_layer merged;
    struct stored_file *written;
    FILE *notes;
    struct error *error;
};

/* Stores values in a dtype. Fails if a finite one becomes infinite. */
static int store(const struct export *export, void *buffer, const struct stored_tensor *tensor,
                 const float *values, int64_t first, int64_t count) {
    dtype_store(buffer, export->dtype, 0, values, (size_t)count);
    if (export->dtype == DTYPE_F32) return 0;
    for (int64_t i = 0; i < count; i++) {
        float space, stored = *dtype_widen(&space, buffer, export->dtype, (size_t)i, 1);
        if (isfinite(values[i]) && !isfinite(stored))
            return fail(export->error,
                        "%.400s: tensor %.100s: element %lld is %g, too large for %s\nexport as "
                        "%s",
                        tensor->file->reader.path, tensor->entry->name, (long long)(first + i),
                        (double)values[i], dtype_name(export->dtype),
                        export->dtype == DTYPE_F16 ? "bf16 or fp32" : "fp32");
    }
    return 0;
}

/* Returns the tensor of a parameter, and loads the adapter that is merged into it. */
static const struct stored_tensor *find_tensor(struct export *export,
                                               const struct parameter *parameter) {
    if (export->adapters && !export->merge)
        return checkpoint_find_adapter(export->adapter_list, &export->adapter_files,
                                       parameter->name);
    if (export->merge && merged_layer_load(&export->merged, export->adapter_list,
                                           &export->adapter_files, parameter, export->error))
        return NULL;
    return checkpoint_find_weight(&export->files, parameter->name);
}

/* Reads elements first .. first + count of a parameter in fp32, with its adapter. */
static int read_values(void *context, float *values, const struct parameter *parameter,
                       int64_t first, int64_t count) {
    struct export *export = context;
    const struct stored_tensor *tensor = find_tensor(export, parameter);
    if (!tensor || checkpoint_widen(values, tensor, first, count, export->error)) return -1;
    if (export->merged.a) merged_layer_add(&export->merged, values, first, count);
    return 0;
}

/* The same in the export's dtype. */
static int read_parameter(struct export *export, void *buffer, const struct parameter *parameter,
                          int64_t first, int64_t count) {
    const struct stored_tensor *tensor = find_tensor(export, parameter);
    if (!tensor) return -1;
    if (checkpoint_dtype(tensor->entry) == export->dtype && !export->merged.a &&
        !tensor->quantized) {
        size_t size = dtype_bytes(export->dtype);
        return safetensors_read(buffer, tensor->file, tensor->entry, (uint64_t)first * size,
                                (size_t)count * size, export->error);
    }
    if (read_values(export, export->values, parameter, first, count)) return -1;
    return store(export, buffer, tensor, export->values, first, count);
}

static int read_weights(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                        struct error *error) {
    struct export *export = context;
    size_t size = dtype_bytes(export->dtype);
    (void)error; /* it is the export's */
    return read_parameter(export, buffer, &export->list[entry], (int64_t)(first / size),
                          (int64_t)(bytes / size));
}

/* Opens what the weights are read from, and lists the parameters that are written. */
static int open_weights(struct export *export) {
    struct model_shape shape = config_shape(&export->config);
    int64_t count;
    if (export->adapters) {
        export->adapter_list = parameter_list(&shape, &count);
        if (tensor_files_open_directory(&export->adapter_files, export->from,
                                        checkpoint_adapter_stem, export->error) ||
            checkpoint_check_adapters(export->adapter_list, &export->adapter_files, export->error))
            return -1;
        export->merged.scale = export->merge ? adapter_scale(&export->config) : 0;
        export->merged.out_in = shape.weights_out_in;
    }
    if (!export->adapters || export->merge) shape.adapter_rank = 0;
    export->list = parameter_list(&shape, &count);
    if (export->adapters && !export->merge) return 0;
    return tensor_files_open_directory(&export->files, export->model, checkpoint_model_stem,
                                       export->error) ||
                   quantized_tensors_open(&export->files, export->model, export->error) ||
                   checkpoint_check_weights(export->list, &export->files, export->error)
               ? -1
               : 0;
}

/* Fails if the model that adapters are merged into is not the one that they were trained on. */
static int check_base(struct export *export) {
    char path[FILE_PATH_MAX], found[SHA256_HEX_MAX];
    struct checkpoint_manifest manifest;
    if (!export->merge || !file_exists_in(export->from, checkpoint_manifest_name)) return 0;
    if (file_path_join(path, export->from, checkpoint_manifest_name, export->error) ||
        tensor_files_fingerprint(found, &export->files, export->error) ||
        checkpoint_manifest_open(&manifest, path, export->error))
        return -1;
    bool same = !manifest.base_fingerprint[0] || strcmp(found, manifest.base_fingerprint) == 0;
    checkpoint_manifest_close(&manifest);
    if (same) return 0;
    return fail(export->error,
                "%.400s is another model than the one that the adapters were trained on\n"
                "name that one by --base DIR",
                export->model);
}

static int write_weights(struct export *export) {
    const struct tensor_source source = {read_weights, export};
    if (open_weights(export) || check_base(export)) return -1;
    export->values =
        malloc(TENSOR_PIECE_BYTES / dtype_bytes(export->dtype) * sizeof *export->values);
    if (!export->values) return fail_memory(export->error, "%.400s", export->directory);
    const bool adapters = parameter_adapter_count(export->list) > 0;
    struct saved_tensor *tensors = saved_weights(export->list, adapters);
    saved_rename(tensors, larger_model_module(export->model));
    struct safetensors_entry *entries = saved_entries(tensors, export->dtype);
    int status = tensor_shards_write(
        export->directory, adapters ? checkpoint_adapter_stem : checkpoint_model_stem, entries,
        (int)arrlen(entries), (uint64_t)(export->config.checkpoint.shard_gb * 1e9), &source,
        &export->written, export->error);
    arrfree(entries);
    arrfree(tensors);
    return status;
}

static void print_tokenizer(FILE *out, const void *context) {
    tokenizer_print_json(out, context);
}

/* Finds whether tokenizer_config.json says that texts are cut as GPT-2 cuts them. */
static int find_gpt2_class(bool *found, const char *directory, struct error *error) {
    char *text;
    size_t size, column;
    cJSON *root = NULL;
    const int read = copied_file_read(&text, &size, directory, "tokenizer_config.json", error);
    *found = false;
    if (read) return read == RESULT_NONE ? 0 : -1;
    const int status = json_parse_row(&root, text, size, &column, error);
    const char *class = json_text(root, "tokenizer_class");
    *found = class && strncmp(class, "GPT2Tokenizer", strlen("GPT2Tokenizer")) == 0;
    cJSON_Delete(root);
    free(text);
    return status;
}

/* Writes tokenizer.json beside vocab.json and merges.txt: transformers 5 reads the tokenizer of a
 * Mistral from it alone. Files that are not of GPT-2's kind, or that cannot be opened, are only
 * copied. */
static int write_tokenizer(struct export *export) {
    struct tokenizer tokenizer;
    struct error ignored;
    int status = 0;
    bool is_gpt2;
    if (!file_exists_in(export->from, "vocab.json") ||
        !file_exists_in(export->from, "merges.txt") ||
        file_exists_in(export->from, "tokenizer.json"))
        return 0;
    if (find_gpt2_class(&is_gpt2, export->from, export->error)) return -1;
    if (!is_gpt2 || tokenizer_open(&tokenizer, TOKENIZER_FILES, export->from, &ignored)) return 0;
    if (tokenizer.kind == TOKENIZER_GPT2)
        status = stored_file_print(&export->written, export->directory, "tokenizer.json",
                                   print_tokenizer, &tokenizer, export->error);
    tokenizer_close(&tokenizer);
    return status;
}

/* Returns the folder of the tokenizer. Files beside adapters that were trained here are already
 * right in their own folder; other adapters have their model's. */
static const char *tokenizer_directory(const struct export *export) {
    return tokenizer_in_directory(export->from) ? export->from : export->model;
}

static int open_files(struct export *export) {
    const char *model =
        file_exists_in(export->from, checkpoint_config_name) ? export->from : export->model;
    if (base_files_open(&export->base, &export->config, NULL, model, tokenizer_directory(export),
                        export->error))
        return -1;
    base_files_note_left_out(&export->base, export->notes);
    return 0;
}

/* Writes the files beside the weights. */
static int write_files(struct export *export) {
    struct error *error = export->error;
    bool is_model = !export->adapters || export->merge;
    if (open_files(export)) return -1;
    if (!is_model && stored_file_print(&export->written, export->directory, adapter_config_name,
                                       adapter_print_config, &export->config, error))
        return -1;
    const struct base_target target = {&export->base, &export->config, NULL, export->dtype,
                                       export->directory};
    return base_files_write(&target, is_model, &export->written, error);
}

static void close_job(struct export *export) {
    tensor_files_close(&export->files);
    tensor_files_close(&export->adapter_files);
    merged_layer_close(&export->merged);
    base_files_close(&export->base);
    arrfree(export->list);
    arrfree(export->adapter_list);
    arrfree(export->written);
    free(export->values);
}

/* True if the directory at path is empty. */
static bool is_empty(const char *path) {
    DIR *stream = opendir(path);
    int names = 0;
    if (!stream) return false;
    while (names <= 2 && readdir(stream)) names++; /* "." and ".." are always listed */
    closedir(stream);
    return names <= 2;
}

/* Paths of an export: the final one, without links or trailing slashes, and the temporary directory
 * beside it. */
struct export_paths {
    char final[FILE_PATH_MAX], unfinished[FILE_PATH_MAX];
};

/* Accepts an existing empty directory, also through symbolic links. */
static int take_existing(struct export_paths *paths, struct error *error) {
    if (!is_empty(paths->final))
        return fail(
            error,
            "%.400s already exists and is not empty\nexport to another directory, or remove it "
            "first",
            paths->final);
    char *real = realpath(paths->final, NULL);
    bool fits = real && strlen(real) < FILE_PATH_MAX;
    if (fits) strcpy(paths->final, real);
    free(real);
    if (fits) return 0;
    return fail(error, "%.400s cannot be replaced\nexport to another directory", paths->final);
}

static int find_paths(struct export_paths *paths, const char *to, struct error *error) {
    struct stat status;
    size_t length = strlen(to);
    while (length > 1 && to[length - 1] == '/') length--;
    if (length == 0 || length >= FILE_PATH_MAX)
        return fail(error, "the path to export to has %zu bytes\nname another one", length);
    snprintf(paths->final, FILE_PATH_MAX, "%.*s", (int)length, to);
    if (lstat(paths->final, &status) == 0 && take_existing(paths, error)) return -1;
    const char *slash = strrchr(paths->final, '/');
    const char *name = slash ? slash + 1 : paths->final;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return fail(error, "%.400s does not exist\nexport to a directory with a name", to);
    if (snprintf(paths->unfinished, FILE_PATH_MAX, "%.*s.%s.tmp",
                 slash ? (int)(name - paths->final) : 2, slash ? paths->final : "./",
                 name) < FILE_PATH_MAX)
        return 0;
    return fail(error, "the path %.400s is too long\nexport to another directory", to);
}

/* Creates and locks an empty temporary directory. Returns the descriptor of its lock, or -1. */
static int begin(struct export_paths *paths, const char *to, struct error *error) {
    int lock;
    bool has_lock;
    if (find_paths(paths, to, error) || directory_refuse_link(paths->unfinished, error)) return -1;
    int status = directory_lock(&lock, &has_lock, paths->unfinished, error);
    if (status == RESULT_NONE)
        return fail(error,
                    "another process is exporting to %.400s\nwait for it, or export to another "
                    "directory",
                    paths->final);
    if (status) return -1;
    /* Another export may have ended before the lock. A killed one has left files. */
    if (find_paths(paths, to, error) == 0 && directory_clear(paths->unfinished, error) == 0)
        return lock;
    close(lock);
    return -1;
}

/* Renames the temporary directory to its final name. An existing empty directory is replaced. */
static int publish(const struct export_paths *paths, struct error *error) {
    if (rename(paths->unfinished, paths->final) != 0)
        return fail(error, "cannot rename %.400s to %.400s: %s\nexport to another directory",
                    paths->unfinished, paths->final, strerror(errno));
    return directory_sync_above(paths->final, error);
}

/* Reads the sizes, and for adapters their settings and the folder of their model. */
static int read_config(struct export *export, const struct export_options *options,
                       struct error *error) {
    struct config of_adapters;
    export->model = export->from;
    export->adapters = file_exists_in(export->from, adapter_config_name);
    export->merge = options->merge;
    if (options->merge && !export->adapters)
        return fail(error, "%.400s has no adapters to merge\nleave out --merge", export->from);
    if (!export->adapters) return huggingface_read_config(&export->config, export->from, error);
    if (checkpoint_config(&of_adapters, export->from, error)) return -1;
    of_adapters.checkpoint.shard_gb = export->config.checkpoint.shard_gb;
    export->config = of_adapters;
    export->model = options->base ? options->base : export->config.model.init_from;
    return export->merge ? checkpoint_check_base(export->model, error) : 0;
}

static int write_directory(struct export *export, const char *to, struct error *error) {
    struct export_paths paths;
    struct error ignored;
    int lock = begin(&paths, to, error);
    if (lock < 0) return -1;
    export->directory = paths.unfinished;
    int status = write_weights(export) || write_files(export) || write_tokenizer(export) ? -1 : 0;
    close_job(export);
    if (status == 0) status = publish(&paths, error);
    if (status) directory_remove(paths.unfinished, &ignored);
    close(lock);
    return status;
}

/* ---- GGUF */

static const char gguf_suffix[] = ".gguf";

bool export_is_gguf(const char *to) {
    size_t length = strlen(to), end = sizeof gguf_suffix - 1;
    return length > end && strcasecmp(to + length - end, gguf_suffix) == 0 &&
           to[length - end - 1] != '/';
}

/* Writes the model, whose files are open, with the tokenizer and the template of its folder. */
static int write_gguf(struct export *export, const char *to, const struct export_options *options) {
    struct tokenizer tokenizer;
    const char *directory = tokenizer_directory(export), *slash = strrchr(to, '/');
    bool has_tokenizer = tokenizer_in_directory(directory);
    char *chat_template, *name;
    if (chat_file_read(&chat_template, directory, export->error) < 0) return -1;
    if (has_tokenizer && tokenizer_open(&tokenizer, TOKENIZER_FILES, directory, export->error)) {
        free(chat_template);
        return -1;
    }
    if (has_tokenizer) tokenizer_leave_out(&tokenizer, export->config.model.vocab_size);
    name = strdup(slash ? slash + 1 : to);
    if (name) name[strlen(name) - strlen(gguf_suffix)] = '\0';
    const struct gguf_model model = {
        .name = name ? name : "",
        .shape = config_shape(&export->config),
        .list = export->list,
        .tokenizer = has_tokenizer ? &tokenizer : NULL,
        .tokens = &export->base.tokens,
        .chat_template = chat_template,
        .read = read_values,
        .context = export,
        .error = export->error,
    };
    int status = gguf_write_model(to, options->gguf_type, &model, options->notes);
    if (has_tokenizer) tokenizer_close(&tokenizer);
    free(chat_template);
    free(name);
    return status;
}

static int write_file(struct export *export, const char *to, const struct export_options *options) {
    struct error *error = export->error;
    const struct model_shape shape = config_shape(&export->config);
    char parent[FILE_PATH_MAX];
    if (export->adapters && !export->merge)
        return fail(error, "%.400s holds adapters, and a GGUF file a model\nadd --merge",
                    export->from);
    if (strlen(to) >= FILE_PATH_MAX) return fail(error, "the path to export to is too long");
    if (gguf_refuse_existing(to, error)) return -1;
    snprintf(parent, sizeof parent, "%s", to);
    char *slash = strrchr(parent, '/');
    if (slash) slash[slash == parent] = '\0';
    if (gguf_check_shape(&shape, error) || (slash && directory_create(parent, error))) return -1;
    int result = open_weights(export) || check_base(export) || open_files(export) ||
                         write_gguf(export, to, options)
                     ? -1
                     : 0;
    close_job(export);
    return result;
}

int export_model(const char *to, const char *from, const struct export_options *options,
                 struct error *error) {
    struct export export = {
        .from = from, .dtype = options->dtype, .notes = options->notes, .error = error};
    config_defaults(&export.config);
    if (options->shard_gb > 0) export.config.checkpoint.shard_gb = options->shard_gb;
    if (read_config(&export, options, error)) return -1;
    return export_is_gguf(to) ? write_file(&export, to, options)
                              : write_directory(&export, to, error);
}
