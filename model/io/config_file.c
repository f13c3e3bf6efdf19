#include "model/io/config_file.h"

#include "data/util/files.h"
#include "data/tokenize/tokenizer.h"
#include "data/util/nearest.h"
#include "data/util/program_names.h"
#include "data/util/utf8.h"
#include "kernels/arena.h"
#include "model/architecture/parameters.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/io/adapter_config.h"
#include "model/io/checkpoint_directory.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/huggingface.h"

#include <dirent.h>
#include <errno.h>
#include <libgen.h>
#include <stb/stb_ds.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the whole file and a NUL into *text, which the caller frees. The file may be a pipe, so its
 * size is not known first. */
static int read_file(const char *path, char **text, size_t *length, struct error *error) {
    char where[FILE_SHOWN_MAX];
    file_path_shown(where, path);
    FILE *file = fopen(path, "rb");
    if (!file) return fail(error, "cannot open the config %s: %s.", where, strerror(errno));
    *text = malloc(CONFIG_FILE_MAX + 1);
    *length = *text ? fread(*text, 1, CONFIG_FILE_MAX + 1, file) : 0;
    int number = ferror(file) ? errno : 0;
    fclose(file);
    if (!*text) return fail_memory(error, "%s", where);
    if (number == EISDIR) return fail(error, "%s is a folder; --config takes a file.", where);
    if (number) return fail(error, "cannot read %s: %s.", where, strerror(number));
    if (*length > CONFIG_FILE_MAX)
        return fail(error, "%s: larger than 1 MiB, so it cannot be a config.", where);
    (*text)[*length] = '\0';
    return 0;
}

/* Returns the length of a file's name without ".json". */
static size_t stem_length(const char *name) {
    const size_t length = strlen(name);
    return length > 5 && text_ends(name, ".json") ? length - 5 : length;
}

/* Derives the run's name from the path: "configs/bf16.json" gives "bf16". */
static void name_from_path(char name[CONFIG_STRING_MAX], const char *path) {
    const char *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    size_t length = stem_length(base);
    if (length >= CONFIG_STRING_MAX) length = CONFIG_STRING_MAX - 1;
    memcpy(name, base, length);
    name[length] = '\0';
}

/* Replaces the folder of a run, the value of the key, by its complete checkpoint. */
static int find_checkpoint(char directory[CONFIG_STRING_MAX], const char *key,
                           const struct config_check *check) {
    char path[FILE_PATH_MAX];
    struct error reason;
    if (!directory[0] || !file_exists_in(directory, "checkpoints")) return 0;
    if (checkpoint_locate(path, directory, CHECKPOINT_WEIGHTS, CHECKPOINT_KEPT, stderr, &reason))
        return config_refuse(check, key, "%s: %s", key, reason.text);
    if (strlen(path) >= CONFIG_STRING_MAX)
        return config_refuse(check, key, "%s: the path %.400s is too long", key, path);
    strcpy(directory, path);
    return 0;
}

/* Fails if the folder in model.init_from holds adapters without a model. */
static int refuse_adapters(const struct config_check *check) {
    const char *directory = check->config->model.init_from;
    if (!directory[0] || !file_exists_in(directory, adapter_config_name) ||
        file_exists_in(directory, "model.safetensors") ||
        file_exists_in(directory, "model.safetensors.index.json"))
        return 0;
    return config_refuse(
        check, "model.init_from",
        "model.init_from: %.300s holds adapters, not a model\n"
        "make a model of them: ./train --export DIR --merge --from %.300s\n"
        "or continue them: name their model in model.init_from, and the adapters in "
        "adapter.init_from",
        directory, directory);
}

/* True if the config gives every key that the model could determine. */
static bool is_complete(const struct config *config) {
#define X(size)            config_given(config, "model." #size) &&
#define Y(type, part, ...) config_given(config, "model." #part) &&
    return MODEL_SIZES(X) MODEL_PARTS(Y) config_given(config, "model.type") &&
           config_given(config, "data.tokenizer");
#undef X
#undef Y
}

enum tokenizer_kind config_tokenizer_of_model(int64_t vocab_size, const char *directory) {
    enum { GPT2_VOCABULARY = 50257 };
    if (vocab_size != 256 && tokenizer_in_directory(directory)) return TOKENIZER_FILES;
    if (vocab_size < GPT2_VOCABULARY) return TOKENIZER_BYTES;
    bool padded = vocab_size <= round_up(GPT2_VOCABULARY, VOCAB_ALIGNMENT);
    return padded ? TOKENIZER_GPT2 : TOKENIZER_FILES;
}

/* Fills sizes and the tokenizer that neither a key nor a preset gave from
 * model.init_from/config.json, if it exists. Fails if that file is not supported, and if the
 * directory is missing but needed. */
static int take_from_model(struct config *config, const struct config_origins *origins,
                           struct error *error) {
    static const char key[] = "model.init_from";
    const struct config_check check = {config, origins, error};
    const char *directory = config->model.init_from;
    struct config read = *config;
    struct error reason;
    if (find_checkpoint(config->model.init_from, key, &check) || refuse_adapters(&check)) return -1;
    if (directory_refuse_file(directory, &reason))
        return config_refuse(&check, key, "%s", reason.text);
    if (!directory[0] || is_complete(config)) return 0;
    if (!file_exists(directory) && !config_given(config, "model.n_layer")) {
        char fetch[FETCH_ADVICE_MAX];
        huggingface_fetch_advice(fetch, directory);
        return config_refuse(
            &check, key,
            "there is no %.400s (from the current folder)\n%s\na run that began with it "
            "resumes without it by --config runs/NAME/config.json --resume",
            directory, fetch);
    }
    if (!file_exists_in(directory, "config.json")) return 0;
    if (huggingface_read_config(&read, directory, &reason))
        return config_refuse(&check, key, "model.init_from: %s", reason.text);
#define TAKE(key) \
    if (!config_given(config, "model." #key)) config->model.key = read.model.key;
#define X(type, part, ...) TAKE(part)
    if (config->model.preset == CONFIG_PRESET_NONE) {
        MODEL_SIZES(TAKE)
        MODEL_PARTS(X)
        TAKE(type)
    }
#undef TAKE
#undef X
    if (!config_given(config, "data.tokenizer"))
        config->data.tokenizer = config_tokenizer_of_model(read.model.vocab_size, directory);
    return 0;
}

/* Fills the settings of adapters from the run or the adapter of PEFT that they begin with. */
static int take_from_adapter(struct config *config, const struct config_origins *origins,
                             struct error *error) {
    static const char key[] = "adapter.init_from";
    const struct config_check check = {config, origins, error};
    const char *directory = config->adapter.init_from;
    struct error reason;
    if (find_checkpoint(config->adapter.init_from, key, &check)) return -1;
    if (!directory[0] || !file_exists_in(directory, adapter_config_name)) return 0;
    if (adapter_read_config(config, directory, &reason))
        return config_refuse(&check, key, "%s: %s", key, reason.text);
    return 0;
}

/* Applies --set texts, then the model's sizes, the preset and the computed defaults, and checks the
 * config. */
static int finish(struct config *config, struct config_origins *origins, char *const *overrides,
                  int override_count, struct error *error) {
    for (int i = 0; i < override_count; i++)
        if (config_read_flag(config, origins, overrides[i], error)) return -1;
    if (config->name[0] == '\0') name_from_path(config->name, origins->path);
    if (take_from_model(config, origins, error) || take_from_adapter(config, origins, error))
        return -1;
    config_resolve(config);
    return config_check(config, origins, error);
}

int config_override(struct config *config, const char *path, char *const *overrides,
                    int override_count, struct error *error) {
    struct config_origins origins = {.path = path};
    return finish(config, &origins, overrides, override_count, error);
}

/* Reads the defaults and the file at origins->path. */
static int read_config(struct config *config, struct config_origins *origins, struct error *error) {
    char *text = NULL;
    size_t length = 0;
    config_defaults(config);
    int status = read_file(origins->path, &text, &length, error);
    if (status == 0) status = config_read_text(config, origins, text, length, error);
    free(text);
    return status ? -1 : 0;
}

int config_load(struct config *config, const char *path, char *const *overrides, int override_count,
                struct error *error) {
    struct config_origins origins = {.path = path};
    if (read_config(config, &origins, error)) return -1;
    return finish(config, &origins, overrides, override_count, error);
}

/* Removes the last component of path and copies it to name, or "" if it is no plain name, as in
 * "runs/..". */
static void split_last(char path[FILE_PATH_MAX], char name[FILE_PATH_MAX]) {
    char copy[FILE_PATH_MAX];
    memcpy(copy, path, FILE_PATH_MAX);
    snprintf(name, FILE_PATH_MAX, "%s", basename(copy));
    if (!file_name_is_plain(name)) name[0] = '\0';
    memcpy(copy, path, FILE_PATH_MAX);
    snprintf(path, FILE_PATH_MAX, "%s", dirname(copy));
}

/* Splits the directory of a run, or of a checkpoint RUN/checkpoints/STEP, into the directory around
 * the run and the run's name. Returns false if path does not spell these components. */
static bool split_run(char around[FILE_PATH_MAX], char name[FILE_PATH_MAX], const char *path,
                      bool is_checkpoint) {
    snprintf(around, FILE_PATH_MAX, "%s", path);
    if (is_checkpoint) {
        split_last(around, name);
        if (!name[0]) return false;
        split_last(around, name);
        if (strcmp(name, "checkpoints") != 0) return false;
    }
    split_last(around, name);
    return name[0];
}

int config_load_run(struct config *config, const char *directory, char *const *overrides,
                    int override_count, struct error *error) {
    char around[FILE_PATH_MAX], name[FILE_PATH_MAX], path[FILE_PATH_MAX];
    struct config_origins origins = {.path = path, .saved = true};
    bool is_checkpoint = file_exists_in(directory, checkpoint_manifest_name);
    if (!split_run(around, name, directory, is_checkpoint)) {
        char *real = realpath(directory, NULL);
        bool found = real && split_run(around, name, real, is_checkpoint);
        free(real);
        if (!found)
            return fail(error,
                        "%.400s: it is not %s\ngive the run's config with --config, or name the "
                        "directory of a run, such as runs/NAME",
                        directory, is_checkpoint ? "in RUN/checkpoints" : "the directory of a run");
    }
    if (strlen(around) >= sizeof config->run_dir || strlen(name) >= sizeof config->name)
        return fail(error, "the path %.400s... is too long\nmove the run, or use a shorter path",
                    directory);
    snprintf(path, sizeof path, "%s", around);
    if (strcmp(utf8_mask(path), around) != 0)
        return fail(error, "%.400s: the path holds a control character\nrename the directory",
                    around);
    snprintf(path, sizeof path, "%s/%s/config.json", around, name);
    int descriptor = file_open_regular(path, error); /* a pipe would block */
    if (descriptor < 0) return -1;
    close(descriptor);
    if (read_config(config, &origins, error)) return -1;
    memcpy(config->run_dir, around, strlen(around) + 1);
    memcpy(config->name, name, strlen(name) + 1);
    return finish(config, &origins, overrides, override_count, error);
}

/* Stores the path of configs/ beside the executable, with the slash; "" if it is unknown. */
static void shipped_folder(char folder[FILE_PATH_MAX]) {
    program_folder(folder);
    const size_t used = strlen(folder);
    if (used == 0 || used + sizeof "configs/" > FILE_PATH_MAX) folder[0] = '\0';
    else memcpy(folder + used, "configs/", sizeof "configs/");
}

/* Writes " Did you mean \"bf16.json\"?" if a config of a similar name is in the folder, else "".
 * Names are compared without ".json", which would make short ones similar. */
static void hint_nearest_file(char *hint, size_t size, const char *folder, const char *name) {
    char **names = NULL;
    DIR *stream = folder[0] ? opendir(folder) : NULL;
    hint[0] = '\0';
    if (!stream) return;
    for (struct dirent *entry; (entry = readdir(stream)) && arrlen(names) < 1000;) {
        const bool shown = entry->d_name[0] != '.' && text_ends(entry->d_name, ".json");
        char *stem = shown ? strndup(entry->d_name, stem_length(entry->d_name)) : NULL;
        if (stem) arrput(names, stem);
    }
    closedir(stream);
    int nearest =
        nearest_text((const char *const *)names, (int)arrlen(names), name, stem_length(name));
    if (nearest >= 0) snprintf(hint, size, " Did you mean \"%s.json\"?", names[nearest]);
    for (ptrdiff_t i = 0; i < arrlen(names); i++) free(names[i]);
    arrfree(names);
}

/* Fails with the paths in `tried` and the name of a similar file. */
static int refuse_unfound(const char *name, const char *folder, const char *tried,
                          struct error *error) {
    char hint[320], shown[FILE_SHOWN_MAX];
    hint_nearest_file(hint, sizeof hint, folder, name);
    if (!hint[0]) hint_nearest_file(hint, sizeof hint, "configs", name);
    return fail(error, "there is no config \"%s\".%s\ntried%s", file_path_shown(shown, name), hint,
                tried);
}

int config_find(char *path, size_t size, const char *name, struct error *error) {
    char shipped[FILE_PATH_MAX], shown[FILE_SHOWN_MAX], tried[ERROR_MAX] = "";
    if (name[0] == '\0') return fail(error, "--config takes the name of a file.");
    shipped_folder(shipped);
    const char *const folders[] = {"", shipped, "configs/"}, *const endings[] = {"", ".json"};
    const int ending_count = text_ends(name, ".json") ? 1 : 2;
    const int count = (strchr(name, '/') ? 1 : 3) * ending_count;
    for (int i = 0; i < count; i++) {
        const char *folder = folders[i / ending_count];
        if (i >= ending_count && !folder[0]) continue;
        int length = snprintf(path, size, "%s%s%s", folder, name, endings[i % ending_count]);
        if ((size_t)length >= size)
            return fail(error, "the path of the config is longer than %zu bytes.", size - 1);
        if (file_exists(path)) return 0;
        size_t used = strlen(tried);
        snprintf(tried + used, sizeof tried - used, "%s %s", used ? "," : "",
                 file_path_shown(shown, path));
    }
    return refuse_unfound(name, shipped, tried, error);
}
