#include "model/io/base_files.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/corpus/answer_ends.h"
#include "data/corpus/chat.h"
#include "data/corpus/chat_file.h"
#include "data/util/files.h"
#include "data/util/printed.h"
#include "model/config/config_keys.h"

enum { COPIED_MAX_BYTES = 64 << 20, EDITS_MAX = 64, CHAT_TEMPLATE = 0, TOKENIZER_CONFIG };

static const char config_name[] = "config.json", generation_name[] = "generation_config.json",
                  tokenizer_config_name[] = "tokenizer_config.json";

static const char *const tokenizer_names[BASE_TOKENIZER_FILES] = {
    [CHAT_TEMPLATE] = CHAT_TEMPLATE_NAME,
    [TOKENIZER_CONFIG] = tokenizer_config_name,
    "chat_template.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "tokenizer.json",
    "tokenizer.model",
};

/* ---- reading */

static bool begins_with(const char *path, const char *directory) {
    size_t length = strlen(directory);
    return strncmp(path, directory, length) == 0 && path[length] == '/';
}

/* True if a file's real path is in the directory, or in MODEL/blobs for a directory
 * MODEL/snapshots/REVISION. */
static bool is_inside(const char *real, const char *directory) {
    char base[PATH_MAX], blobs[PATH_MAX];
    if (!realpath(directory, base)) return false;
    if (begins_with(real, base)) return true;
    for (int i = 0; i < 2; i++) {
        char *slash = strrchr(base, '/');
        if (!slash || slash == base || (i == 1 && strcmp(slash, "/snapshots") != 0)) return false;
        *slash = '\0';
    }
    struct error ignored;
    return file_path_join(blobs, base, "blobs", &ignored) == 0 && begins_with(real, blobs);
}

/* Fails unless the file holds one JSON object. */
static int check_json(const char *path, const char *text, size_t size, struct error *error) {
    struct error reason;
    cJSON *root;
    size_t column;
    if (json_parse_row(&root, text, size, &column, &reason))
        return fail(error, "cannot parse %.400s as JSON: %s\nrestore it, or remove it", path,
                    reason.text);
    const bool is_object = cJSON_IsObject(root);
    cJSON_Delete(root);
    return is_object ? 0
                     : fail(error, "%.400s does not hold one JSON object\nrestore it, or remove it",
                            path);
}

int copied_file_read(char **bytes, size_t *size, const char *directory, const char *name,
                     struct error *error) {
    char path[FILE_PATH_MAX];
    struct stat status;
    *bytes = NULL;
    if (file_path_join(path, directory, name, error)) return -1;
    if (lstat(path, &status) != 0 && errno == ENOENT) return RESULT_NONE;
    char *real = realpath(path, NULL);
    if (!real) return fail(error, "cannot read %.400s: %s\nremove it", path, strerror(errno));
    bool inside = is_inside(real, directory);
    if (!inside)
        fail(error,
             "%.400s is a link to %.400s, outside its folder, so a file of yours could be "
             "published\nput a copy in its place if that is meant, or remove the link",
             path, real);
    int read = inside ? file_read_all(bytes, size, real, COPIED_MAX_BYTES, error) : -1;
    free(real);
    if (read) return -1;
    const size_t length = strlen(name);
    if (length < 5 || strcmp(name + length - 5, ".json") != 0 ||
        check_json(path, *bytes, *size, error) == 0)
        return 0;
    free(*bytes);
    *bytes = NULL;
    return -1;
}

/* Reads a file of a folder, if it exists. */
static int read_file(char **bytes, size_t *size, const char *directory, const char *name,
                     struct error *error) {
    int status = copied_file_read(bytes, size, directory, name, error);
    return status == RESULT_NONE ? 0 : status;
}

static int read_json(struct json_file *file, const char *directory, const char *name,
                     struct error *error) {
    char *bytes; /* read twice: the first time checks links */
    size_t size;
    int status = copied_file_read(&bytes, &size, directory, name, error);
    free(bytes);
    if (status) return status == RESULT_NONE ? 0 : -1;
    return json_file_open_in(file, directory, name, error);
}

/* True if the config has the sizes and parts of the model in a directory. */
static int compare_shape(bool *same, const struct config *config, const char *model,
                         struct error *error) {
    struct config read = *config;
    if (huggingface_read_config(&read, model, error)) return -1;
    const struct gpt_shape theirs = config_shape(&read), ours = config_shape(config);
    *same = read.model.type == config->model.type;
#define X(size)       *same &= theirs.size == ours.size;
#define Y(type, part) *same &= theirs.part == ours.part;
    MODEL_SIZES(X)
    MODEL_PARTS(Y)
#undef X
#undef Y
    return 0;
}

static int read_model(struct base_files *base, const struct config *config, const char *model,
                      struct error *error) {
    return read_json(&base->config, model, config_name, error) ||
                   read_json(&base->generation, model, generation_name, error) ||
                   huggingface_read_tokens(&base->tokens, config, model, error) ||
                   compare_shape(&base->same_shape, config, model, error)
               ? -1
               : 0;
}

/* True if the tokenizer keeps the file itself. */
static bool has_file(const struct tokenizer *tokenizer, const char *name) {
    for (int i = 0; tokenizer && i < tokenizer->file_count; i++)
        if (strcmp(tokenizer->files[i].name, name) == 0) return true;
    return false;
}

static int read_tokenizer(struct base_files *base, const struct tokenizer *tokenizer,
                          const char *directory, bool only_template, struct error *error) {
    char **template = &base->tokenizer[CHAT_TEMPLATE].bytes;
    for (int i = 0; i < (only_template ? CHAT_TEMPLATE + 1 : BASE_TOKENIZER_FILES); i++)
        if (!has_file(tokenizer, tokenizer_names[i]) &&
            read_file(&base->tokenizer[i].bytes, &base->tokenizer[i].size, directory,
                      tokenizer_names[i], error))
            return -1;
    if (!only_template || *template) return 0;
    if (chat_file_read(template, directory, error) < 0) return -1;
    base->tokenizer[CHAT_TEMPLATE].size = *template ? strlen(*template) : 0;
    return 0;
}

int base_files_open(struct base_files *base, const struct config *config,
                    const struct tokenizer *tokenizer, const char *model,
                    const char *tokenizer_directory, struct error *error) {
    bool has_model = model && model[0] && file_exists_in(model, config_name);
    *base = (struct base_files){.tokens = huggingface_tokens_of(config, tokenizer)};
    if ((!has_model || read_model(base, config, model, error) == 0) &&
        (!tokenizer_directory ||
         read_tokenizer(base, tokenizer, tokenizer_directory, !has_model, error) == 0))
        return 0;
    base_files_close(base);
    return -1;
}

void base_files_close(struct base_files *base) {
    json_file_close(&base->config);
    json_file_close(&base->generation);
    for (int i = 0; i < BASE_TOKENIZER_FILES; i++) free(base->tokenizer[i].bytes);
    *base = (struct base_files){0};
}

/* Finds whether tokenizer_config.json or a file of its own has a chat template. */
static int find_template(bool *found, const struct base_files *base, struct error *error) {
    const char *text = base->tokenizer[TOKENIZER_CONFIG].bytes;
    cJSON *root = NULL;
    size_t column;
    if (text &&
        json_parse_row(&root, text, base->tokenizer[TOKENIZER_CONFIG].size, &column, error)) {
        const struct error reason = *error;
        return fail(error, "%s: %s", tokenizer_config_name, reason.text);
    }
    const cJSON *member = json_member(root, "chat_template");
    *found = (member && !cJSON_IsNull(member)) || base->tokenizer[CHAT_TEMPLATE].bytes;
    cJSON_Delete(root);
    return 0;
}

/* Adds the template of a chat, if the base has none. */
static int add_template(struct base_files *base, const struct chat_template *chat,
                        struct error *error) {
    bool found;
    if (find_template(&found, base, error)) return -1;
    if (!found) base->chat_template = chat_template_text(chat);
    return 0;
}

int base_files_add_answers(struct base_files *base, const struct tokens *text,
                           const struct tokenizer *tokenizer, struct error *error) {
    int32_t ends[ANSWER_ENDS_MAX];
    const struct chat_template *chat = chat_template_of(tokenizer);
    int count = answer_ends(ends, text, tokenizer, error);
    for (int i = 0; i < count; i++) {
        int before = base->tokens.end_count;
        huggingface_add_end(&base->tokens, ends[i]);
        base->new_ends |= base->tokens.end_count > before;
        if (chat && chat_end_token(chat, tokenizer) == ends[i] && add_template(base, chat, error))
            return -1;
    }
    return count < 0 ? -1 : 0;
}

/* ---- writing */

/* A member of a JSON object that gets another value. */
struct edit {
    const char *key;
    const char *value; /* [length] JSON */
    size_t length;
};

struct edits {
    struct edit list[EDITS_MAX];
    int count;
};

static void add_edit(struct edits *edits, const char *key, const char *value, size_t length) {
    assert(edits->count < EDITS_MAX); /* far fewer members are printed */
    edits->list[edits->count++] = (struct edit){key, value, length};
}

static void print_edit(FILE *out, const struct edit *edit) {
    fwrite(edit->value, 1, edit->length, out);
}

/* Prints an object with the given members changed in place, or added at its end. */
static void print_edited(FILE *out, const struct json_file *file, const struct edits *edits) {
    const char *at = file->text, *close = file->text + file->size, *last;
    bool any = file->root->child, added = false;
    const cJSON *item;
    size_t length;
    cJSON_ArrayForEach(item, file->root) {
        for (int i = 0; i < edits->count; i++) {
            if (strcmp(edits->list[i].key, item->string) != 0) continue;
            const char *value = json_source(item, file->text, &length);
            fwrite(at, 1, (size_t)(value - at), out);
            print_edit(out, &edits->list[i]);
            at = value + length;
        }
    }
    while (*--close != '}') continue;
    for (last = close; last > at && strchr(" \t\r\n", last[-1]);) last--;
    fwrite(at, 1, (size_t)(last - at), out);
    for (int i = 0; i < edits->count; i++) {
        if (json_member(file->root, edits->list[i].key)) continue;
        fprintf(out, "%s\n  \"%s\": ", any ? "," : "", edits->list[i].key);
        print_edit(out, &edits->list[i]);
        any = added = true;
    }
    if (added) fputc('\n', out);
    else close = last;
    fwrite(close, 1, file->size - (size_t)(close - file->text), out);
}

static int write_printed(struct printed *printed, const char *name, const char *directory,
                         struct stored_file **written, struct error *error) {
    int status = printed_close(printed) ? fail(error, "out of memory while writing %s", name)
                                        : stored_file_write(written, directory, name, printed->text,
                                                            printed->size, error);
    free(printed->text);
    return status;
}

static int write_edited(const struct json_file *file, const struct edits *edits, const char *name,
                        const char *directory, struct stored_file **written, struct error *error) {
    struct printed printed;
    if (printed_open(&printed)) return fail(error, "out of memory while writing %s", name);
    print_edited(printed.out, file, edits);
    return write_printed(&printed, name, directory, written, error);
}

/* Appends the edit of eos_token_id, if answers end otherwise than the base says. Its value is
 * printed to `value`. */
static void edit_ends(struct edits *edits, const struct base_files *base, struct printed *value) {
    if (!base->new_ends) return;
    if (printed_open(value)) end_out_of_memory();
    huggingface_print_ends(value->out, &base->tokens);
    if (printed_close(value)) end_out_of_memory();
    add_edit(edits, "eos_token_id", value->text, value->size);
}

/* Appends the edits of all members but the dtype and tokens, which describe the shape. */
static void edit_shape(struct edits *edits, const cJSON *root, const char *text) {
    static const char *const others[] = {"bos_token_id", "eos_token_id", "pad_token_id",
                                         "torch_dtype"};
    const cJSON *item;
    cJSON_ArrayForEach(item, root) {
        size_t length;
        bool other = false;
        for (size_t i = 0; i < sizeof others / sizeof *others; i++)
            other |= strcmp(item->string, others[i]) == 0;
        const char *value = json_source(item, text, &length);
        if (!other) add_edit(edits, item->string, value, length);
    }
}

/* Appends the edits of the members that hold the dtype: torch_dtype, or dtype in newer files. */
static void edit_dtype(struct edits *edits, const cJSON *base, const cJSON *root,
                       const char *text) {
    size_t length;
    const char *value = json_source(json_member(root, "torch_dtype"), text, &length);
    bool newer = json_member(base, "dtype");
    if (newer) add_edit(edits, "dtype", value, length);
    if (!newer || json_member(base, "torch_dtype")) add_edit(edits, "torch_dtype", value, length);
}

int base_files_write_config(const struct base_files *base, const struct config *config,
                            enum dtype dtype, const char *directory, struct stored_file **written,
                            struct error *error) {
    struct printed printed, ends = {0};
    struct edits edits = {0};
    cJSON *root = NULL;
    if (printed_open(&printed)) return fail(error, "out of memory while writing %s", config_name);
    huggingface_print_config(printed.out, config, &base->tokens, dtype);
    if (!base->config.root) return write_printed(&printed, config_name, directory, written, error);
    int status = printed_close(&printed)
                     ? fail(error, "out of memory while writing %s", config_name)
                     : json_parse(&root, printed.text, printed.size, config_name, error);
    if (status == 0) {
        if (!base->same_shape) edit_shape(&edits, root, printed.text);
        edit_dtype(&edits, base->config.root, root, printed.text);
        edit_ends(&edits, base, &ends);
        status = write_edited(&base->config, &edits, config_name, directory, written, error);
    }
    cJSON_Delete(root);
    free(printed.text);
    free(ends.text);
    return status;
}

int base_files_write_generation(const struct base_files *base, const char *directory,
                                struct stored_file **written, struct error *error) {
    struct printed printed;
    struct edits edits = {0};
    if (base->generation.root) {
        struct printed ends = {0};
        edit_ends(&edits, base, &ends);
        int status =
            write_edited(&base->generation, &edits, generation_name, directory, written, error);
        free(ends.text);
        return status;
    }
    if (printed_open(&printed))
        return fail(error, "out of memory while writing %s", generation_name);
    huggingface_print_generation_config(printed.out, &base->tokens);
    return write_printed(&printed, generation_name, directory, written, error);
}

/* Prints tokenizer_config.json for a tokenizer whose folder has none. */
static int write_tokenizer_config(const struct config *config, const struct tokenizer *tokenizer,
                                  const char *directory, struct stored_file **written,
                                  struct error *error) {
    struct printed printed;
    if (printed_open(&printed))
        return fail(error, "out of memory while writing %s", tokenizer_config_name);
    huggingface_print_tokenizer_config(printed.out, config, tokenizer);
    return write_printed(&printed, tokenizer_config_name, directory, written, error);
}

int base_files_write_tokenizer(const struct base_files *base, const struct config *config,
                               const struct tokenizer *tokenizer, const char *directory,
                               struct stored_file **written, struct error *error) {
    bool needs_config = tokenizer && tokenizer->file_count > 0;
    for (int i = 0; tokenizer && i < tokenizer->file_count; i++) {
        const struct tokenizer_file *file = &tokenizer->files[i];
        if (stored_file_write(written, directory, file->name, file->bytes, file->size, error))
            return -1;
    }
    for (int i = 0; i < BASE_TOKENIZER_FILES; i++) {
        if (!base->tokenizer[i].bytes) continue;
        if (stored_file_write(written, directory, tokenizer_names[i], base->tokenizer[i].bytes,
                              base->tokenizer[i].size, error))
            return -1;
        if (i == TOKENIZER_CONFIG) needs_config = false;
    }
    if (base->chat_template &&
        stored_file_write(written, directory, CHAT_TEMPLATE_NAME, base->chat_template,
                          strlen(base->chat_template), error))
        return -1;
    return needs_config ? write_tokenizer_config(config, tokenizer, directory, written, error) : 0;
}
