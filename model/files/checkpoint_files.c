#include "model/files/checkpoint_files.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "data/base/files.h"
#include "data/base/printed.h"
#include "model/files/huggingface.h"

/* Appends an entry of that name and stores its path. */
static struct checkpoint_file *add(struct checkpoint_files *files, char path[FILE_PATH_MAX],
                                   const char *directory, const char *name, struct error *error) {
    assert(files->count < CHECKPOINT_FILES_MAX && strlen(name) < CHECKPOINT_FILE_NAME_MAX);
    struct checkpoint_file *file = &files->list[files->count++];
    snprintf(file->name, sizeof file->name, "%s", name);
    return file_path_join(path, directory, name, error) ? NULL : file;
}

static int write_bytes(struct checkpoint_files *files, const char *directory, const char *name,
                       const void *bytes, size_t size, struct error *error) {
    char path[FILE_PATH_MAX];
    struct checkpoint_file *file = add(files, path, directory, name, error);
    if (!file) return -1;
    file->bytes = size;
    return file_write_whole(path, bytes, size, file->sha256, error);
}

/* Begins a text file that is one of them; NULL with a message. */
static struct checkpoint_file *begin_text(struct checkpoint_files *files, struct printed *printed,
                                          char path[FILE_PATH_MAX], const char *directory,
                                          const char *name, struct error *error) {
    struct checkpoint_file *file = add(files, path, directory, name, error);
    if (!file || printed_open(printed) == 0) return file;
    fail(error, "out of memory while writing %.400s", path);
    return NULL;
}

static int end_text(struct checkpoint_file *file, struct printed *printed, const char *path,
                    struct error *error) {
    int status = printed_write(printed, path, file->sha256, error);
    file->bytes = printed->size;
    return status;
}

static int write_configs(const struct trainer *trainer, struct checkpoint_files *files,
                         const char *directory, struct error *error) {
    const struct config *config = trainer->config;
    struct huggingface_tokens tokens = huggingface_tokens_of(config, trainer->tokenizer);
    char path[FILE_PATH_MAX];
    struct printed out;
    struct checkpoint_file *file =
        begin_text(files, &out, path, directory, checkpoint_config_name, error);
    if (!file) return -1;
    huggingface_print_config(out.out, config, &tokens, DTYPE_F32);
    if (end_text(file, &out, path, error)) return -1;
    file = begin_text(files, &out, path, directory, checkpoint_generation_name, error);
    if (!file) return -1;
    huggingface_print_generation_config(out.out, &tokens);
    return end_text(file, &out, path, error);
}

static int write_tokenizer(const struct trainer *trainer, struct checkpoint_files *files,
                           const char *directory, struct error *error) {
    const struct tokenizer *tokenizer = trainer->tokenizer;
    char path[FILE_PATH_MAX];
    struct printed out;
    if (!tokenizer || tokenizer->file_count == 0) return 0;
    for (int i = 0; i < tokenizer->file_count; i++) {
        const struct tokenizer_file *file = &tokenizer->files[i];
        if (write_bytes(files, directory, file->name, file->bytes, file->size, error)) return -1;
    }
    struct checkpoint_file *file =
        begin_text(files, &out, path, directory, "tokenizer_config.json", error);
    if (!file) return -1;
    huggingface_print_tokenizer_config(out.out, trainer->config, tokenizer);
    return end_text(file, &out, path, error);
}

int checkpoint_write_files(const struct trainer *trainer, struct checkpoint_files *files,
                           const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    files->count = 0;
    struct checkpoint_file *file = add(files, path, directory, checkpoint_model_name, error);
    if (!file || checkpoint_write_weights(&trainer->gpt, path, file, error)) return -1;
    if (write_configs(trainer, files, directory, error)) return -1;
    if (write_tokenizer(trainer, files, directory, error)) return -1;
    file = add(files, path, directory, checkpoint_optimizer_name, error);
    return file ? checkpoint_write_moments(&trainer->optimizer, path, file, error) : -1;
}
