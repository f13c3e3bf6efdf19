#include "model/io/base_files.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
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
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/utf8.h"
#include "model/config/config_keys.h"
#include "model/io/huggingface_larger.h"

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
    if (!text_ends(name, ".json") || check_json(path, *bytes, *size, error) == 0) return 0;
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

/* Stores whether the config has the sizes and parts of the model in a directory. */
static int compare_shape(bool *same, const struct config *config, const char *model,
                         struct error *error) {
    struct config read = *config;
    if (huggingface_read_config(&read, model, error)) return -1;
    const struct model_shape theirs = config_shape(&read), ours = config_shape(config);
    *same = read.model.type == config->model.type;
#define X(size)            *same &= theirs.size == ours.size;
#define Y(type, part, ...) *same &= theirs.part == ours.part;
    MODEL_SIZES(X)
    MODEL_PARTS(Y)
#undef X
#undef Y
    return 0;
}

static int read_model(struct base_files *base, const struct config *config, const char *model,
                      struct error *error) {
    if (read_json(&base->config, model, config_name, error) ||
        read_json(&base->generation, model, generation_name, error) ||
        huggingface_read_tokens(&base->tokens, config, model, error) ||
        compare_shape(&base->same_shape, config, model, error))
        return -1;
    const cJSON *text = larger_model_text(base->config.root);
    const cJSON *mtp = json_member(text ? text : base->config.root, "mtp_num_hidden_layers");
    base->leaves_out_mtp = cJSON_IsNumber(mtp) && mtp->valuedouble > 0;
    /* The text's part of a model of images and text gets a config.json of its own. */
    base->left_out = larger_model_of(base->config.root);
    if (base->left_out) json_file_close(&base->config);
    return 0;
}

/* True if the tokenizer keeps the file itself. */
static bool has_file(const struct tokenizer *tokenizer, const char *name) {
    for (int i = 0; tokenizer && i < tokenizer->file_count; i++)
        if (strcmp(tokenizer->files[i].name, name) == 0) return true;
    return false;
}

static int read_tokenizer(struct base_files *base, const struct tokenizer *tokenizer,
                          const char *directory, struct error *error) {
    for (int i = 0; i < BASE_TOKENIZER_FILES; i++)
        if (!has_file(tokenizer, tokenizer_names[i]) &&
            read_file(&base->tokenizer[i].bytes, &base->tokenizer[i].size, directory,
                      tokenizer_names[i], error))
            return -1;
    return 0;
}

/* Sets the tokens at which sampling stops if the model names none: those of the tokenizer. */
static void add_ends(struct base_files *base, const struct config *config,
                     const struct tokenizer *tokenizer, const char *directory) {
    struct tokenizer opened;
    struct error ignored;
    if (base->tokens.end_count > 0) return;
    const bool opens = !tokenizer && directory && tokenizer_in_directory(directory) &&
                       tokenizer_open(&opened, TOKENIZER_FILES, directory, &ignored) == 0;
    const struct huggingface_tokens ends =
        huggingface_tokens_of(config, opens ? &opened : tokenizer);
    for (int i = 0; i < ends.end_count; i++) huggingface_add_end(&base->tokens, ends.ends[i]);
    if (opens) tokenizer_close(&opened);
}

int base_files_open(struct base_files *base, const struct config *config,
                    const struct tokenizer *tokenizer, const char *model,
                    const char *tokenizer_directory, struct error *error) {
    bool has_model = model && model[0] && file_exists_in(model, config_name);
    *base = (struct base_files){.tokens = huggingface_tokens_of(config, tokenizer),
                                .is_new = !has_model};
    if ((has_model && read_model(base, config, model, error)) ||
        (tokenizer_directory && read_tokenizer(base, tokenizer, tokenizer_directory, error))) {
        base_files_close(base);
        return -1;
    }
    add_ends(base, config, tokenizer, tokenizer_directory);
    return 0;
}

void base_files_close(struct base_files *base) {
    json_file_close(&base->config);
    json_file_close(&base->generation);
    for (int i = 0; i < BASE_TOKENIZER_FILES; i++) free(base->tokenizer[i].bytes);
    *base = (struct base_files){0};
}

void base_files_note_left_out(const struct base_files *base, FILE *notes) {
    if (base->left_out)
        note(notes, "note",
             "the model of text in a %s is used, as a model of its own: the parts "
             "for images are left out",
             base->left_out->type);
    if (base->leaves_out_mtp)
        note(notes, "note",
             "the model's layers that predict several tokens at once (mtp) are left out");
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
        huggingface_add_end(&base->tokens, ends[i]);
        if (chat && chat_end_token(chat, tokenizer) == ends[i] && add_template(base, chat, error))
            return -1;
    }
    return count < 0 ? -1 : 0;
}

/* ---- writing */

/* A JSON object of the base, some members of which get another value. */
struct edited {
    const struct json_file *file;
    struct edit {
        const char *key;
        const char *value; /* [length] JSON */
        size_t length;
    } list[EDITS_MAX];
    int count;
    char ends[HUGGINGFACE_ENDS_TEXT];
};

static void add_edit(struct edited *edited, const char *key, const char *value, size_t length) {
    assert(edited->count < EDITS_MAX); /* far fewer members are printed */
    edited->list[edited->count++] = (struct edit){key, value, length};
}

/* Prints the object with its members changed in place, or added at its end. */
static void print_edited(FILE *out, const void *context) {
    const struct edited *edited = context;
    const struct json_file *file = edited->file;
    const char *at = file->text, *close = file->text + file->size, *last;
    bool any = file->root->child, added = false;
    const cJSON *item;
    size_t length;
    cJSON_ArrayForEach(item, file->root) {
        for (int i = 0; i < edited->count; i++) {
            if (strcmp(edited->list[i].key, item->string) != 0) continue;
            const char *value = json_source(item, file->text, &length);
            fwrite(at, 1, (size_t)(value - at), out);
            fwrite(edited->list[i].value, 1, edited->list[i].length, out);
            at = value + length;
        }
    }
    while (*--close != '}') continue;
    for (last = close; last > at && strchr(" \t\r\n", last[-1]);) last--;
    fwrite(at, 1, (size_t)(last - at), out);
    for (int i = 0; i < edited->count; i++) {
        const struct edit *edit = &edited->list[i];
        if (json_member(file->root, edit->key)) continue;
        fprintf(out, "%s\n  \"%s\": %.*s", any ? "," : "", edit->key, (int)edit->length,
                edit->value);
        any = added = true;
    }
    if (added) fputc('\n', out);
    else close = last;
    fwrite(close, 1, file->size - (size_t)(close - file->text), out);
}

/* Adds the edit of eos_token_id, unless the file has all tokens that end a text. */
static void edit_ends(struct edited *edited, const struct huggingface_tokens *tokens) {
    const cJSON *member = json_member(edited->file->root, "eos_token_id");
    int found = 0;
    for (int i = 0; i < tokens->end_count; i++) {
        const cJSON *value = cJSON_IsArray(member) ? member->child : member;
        while (value && !(cJSON_IsNumber(value) && value->valuedouble == tokens->ends[i]))
            value = cJSON_IsArray(member) ? value->next : NULL;
        found += value != NULL;
    }
    if (found == tokens->end_count) return;
    huggingface_ends_text(edited->ends, tokens);
    add_edit(edited, "eos_token_id", edited->ends, strlen(edited->ends));
}

/* True if the file has both spellings of rope's settings. */
static bool has_both_ropes(const cJSON *root) {
    return json_member(root, "rope_parameters") &&
           (json_member(root, "rope_theta") || json_member(root, "rope_scaling"));
}

/* Adds the edits of members that describe the shape: those that the file lacks, since there are
 * readers that need them, spellings of rope that may disagree, and all if the shape is another. The
 * dtype, tokens and settings of training stay. */
static void edit_shape(struct edited *edited, const cJSON *root, const char *text, bool all) {
    static const char others[] = "bos_token_id eos_token_id pad_token_id torch_dtype attn_pdrop "
                                 "embd_pdrop resid_pdrop attention_dropout initializer_range";
    const cJSON *base = edited->file->root, *item;
    const bool ropes = has_both_ropes(base);
    cJSON_ArrayForEach(item, root) {
        const cJSON *member = json_member(base, item->string);
        const bool differs = ropes && strncmp(item->string, "rope_", strlen("rope_")) == 0 &&
                             !cJSON_Compare(member, item, true);
        size_t length;
        const char *value = json_source(item, text, &length);
        if ((all || !member || differs) && !strstr(others, item->string))
            add_edit(edited, item->string, value, length);
    }
}

/* Adds the edits of the members that hold the dtype: torch_dtype, or dtype in newer files. */
static void edit_dtype(struct edited *edited, const cJSON *root, const char *text) {
    const cJSON *base = edited->file->root;
    size_t length;
    const char *value = json_source(json_member(root, "torch_dtype"), text, &length);
    bool newer = json_member(base, "dtype");
    if (newer) add_edit(edited, "dtype", value, length);
    if (!newer || json_member(base, "torch_dtype")) add_edit(edited, "torch_dtype", value, length);
}

static void print_config(FILE *out, const void *context) {
    const struct base_target *target = context;
    huggingface_print_config(out, target->config, &target->base->tokens, target->dtype);
}

static void print_generation(FILE *out, const void *context) {
    huggingface_print_generation_config(out, &((const struct base_target *)context)->base->tokens);
}

static void print_tokenizer_config(FILE *out, const void *context) {
    const struct base_target *target = context;
    huggingface_print_tokenizer_config(out, target->config, target->tokenizer);
}

static int write_config(const struct base_target *target, struct stored_file **written,
                        struct error *error) {
    const struct base_files *base = target->base;
    struct edited edited = {.file = &base->config};
    struct printed printed;
    cJSON *root = NULL;
    if (!base->config.root)
        return stored_file_print(written, target->directory, config_name, print_config, target,
                                 error);
    if (printed_open(&printed)) return fail_memory(error, "%s", config_name);
    print_config(printed.out, target);
    int status = printed_close(&printed)
                     ? fail_memory(error, "%s", config_name)
                     : json_parse(&root, printed.text, printed.size, config_name, error);
    if (status == 0) {
        edit_shape(&edited, root, printed.text, !base->same_shape);
        edit_dtype(&edited, root, printed.text);
        edit_ends(&edited, &base->tokens);
        if (json_member(base->config.root, "quantization_config")) /* weights are written plain */
            add_edit(&edited, "quantization_config", "null", strlen("null"));
        status = stored_file_print(written, target->directory, config_name, print_edited, &edited,
                                   error);
    }
    cJSON_Delete(root);
    free(printed.text);
    return status;
}

static int write_generation(const struct base_target *target, struct stored_file **written,
                            struct error *error) {
    struct edited edited = {.file = &target->base->generation};
    const bool has_base = edited.file->root;
    if (has_base) edit_ends(&edited, &target->base->tokens);
    return stored_file_print(written, target->directory, generation_name,
                             has_base ? print_edited : print_generation,
                             has_base ? (const void *)&edited : target, error);
}

/* Writes tokenizer_config.json. A new model has a context of its own, and transformers 4 does not
 * know transformers 5's name of a class that both have. */
static int write_settings(const struct base_target *target, struct stored_file **written,
                          struct error *error) {
    static const char both[] = "\"PreTrainedTokenizerFast\"";
    const struct base_files *base = target->base;
    struct json_file file = {.text = base->tokenizer[TOKENIZER_CONFIG].bytes,
                             .size = base->tokenizer[TOKENIZER_CONFIG].size};
    struct edited edited = {.file = &file};
    char positions[24];
    const int length = sprintf(positions, "%" PRId64, target->config->model.n_positions);
    if (json_parse(&file.root, file.text, file.size, tokenizer_config_name, error)) return -1;
    const char *class = json_text(file.root, "tokenizer_class");
    if (base->is_new) add_edit(&edited, "model_max_length", positions, (size_t)length);
    if (class && strcmp(class, "TokenizersBackend") == 0)
        add_edit(&edited, "tokenizer_class", both, strlen(both));
    const int status = stored_file_print(written, target->directory, tokenizer_config_name,
                                         print_edited, &edited, error);
    cJSON_Delete(file.root);
    return status;
}

/* Writes the files of the tokenizer, and tokenizer_config.json also for one whose folder has none.
 */
static int write_tokenizer(const struct base_target *target, struct stored_file **written,
                           struct error *error) {
    const struct base_files *base = target->base;
    const struct tokenizer *tokenizer = target->tokenizer;
    const char *template = base->chat_template;
    int status = 0;
    for (int i = 0; status == 0 && tokenizer && i < tokenizer->file_count; i++) {
        const struct tokenizer_file *file = &tokenizer->files[i];
        status = stored_file_write(written, target->directory, file->name, file->bytes, file->size,
                                   error);
    }
    for (int i = 0; status == 0 && i < BASE_TOKENIZER_FILES; i++)
        if (i == TOKENIZER_CONFIG && base->tokenizer[i].bytes)
            status = write_settings(target, written, error);
        else if (base->tokenizer[i].bytes)
            status = stored_file_write(written, target->directory, tokenizer_names[i],
                                       base->tokenizer[i].bytes, base->tokenizer[i].size, error);
    if (status == 0 && template)
        status = stored_file_write(written, target->directory, CHAT_TEMPLATE_NAME, template,
                                   strlen(template), error);
    if (status || !tokenizer || tokenizer->file_count == 0 ||
        base->tokenizer[TOKENIZER_CONFIG].bytes)
        return status;
    return stored_file_print(written, target->directory, tokenizer_config_name,
                             print_tokenizer_config, target, error);
}

int base_files_write(const struct base_target *target, bool is_model, struct stored_file **written,
                     struct error *error) {
    return (is_model && write_config(target, written, error)) ||
                   write_generation(target, written, error) ||
                   write_tokenizer(target, written, error)
               ? -1
               : 0;
}
