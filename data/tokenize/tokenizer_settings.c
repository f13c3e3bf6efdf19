#include "data/tokenize/tokenizer_settings.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

/* ---- the files */

static void find_class(struct tokenizer_settings *settings) {
    const char *name = json_text(settings->config.root, "tokenizer_class");
    const char *type = json_text(settings->model.root, "model_type");
    if (!name) name = json_text(settings->model.root, "tokenizer_class");
    if (!name && type && (strcmp(type, "qwen2") == 0 || strcmp(type, "qwen3") == 0))
        name = "Qwen2Tokenizer";
    if (!name) name = "GPT2Tokenizer";
    settings->class_name = name;
    if (strcmp(name, "GPT2Tokenizer") == 0 || strcmp(name, "GPT2TokenizerFast") == 0)
        settings->class = TOKENIZER_CLASS_GPT2;
    if (strcmp(name, "Qwen2Tokenizer") == 0 || strcmp(name, "Qwen2TokenizerFast") == 0)
        settings->class = TOKENIZER_CLASS_QWEN2;
}

int tokenizer_settings_open(struct tokenizer_settings *settings, const char *directory,
                            struct error *error) {
    *settings = (struct tokenizer_settings){0};
    if (json_file_open_optional(&settings->config, directory, "tokenizer_config.json", error) ||
        json_file_open_optional(&settings->map, directory, "special_tokens_map.json", error) ||
        json_file_open_optional(&settings->added, directory, "added_tokens.json", error) ||
        json_file_open_optional(&settings->model, directory, "config.json", error)) {
        tokenizer_settings_close(settings);
        return -1;
    }
    find_class(settings);
    return 0;
}

void tokenizer_settings_close(struct tokenizer_settings *settings) {
    json_file_close(&settings->config);
    json_file_close(&settings->map);
    json_file_close(&settings->added);
    json_file_close(&settings->model);
}

const char *tokenizer_settings_role(const struct tokenizer_settings *settings, const char *role) {
    const cJSON *const roots[] = {settings->config.root, settings->map.root};
    const char *content = NULL;
    for (int i = 0; i < 2 && !content; i++) {
        const cJSON *item = json_member(roots[i], role);
        content = cJSON_IsString(item) ? item->valuestring : json_text(item, "content");
    }
    return content;
}

/* ---- added tokens */

enum flag { SINGLE_WORD, LSTRIP, RSTRIP, NORMALIZED, SPECIAL, FLAGS };
static const char *const flag_names[FLAGS] = {"single_word", "lstrip", "rstrip", "normalized",
                                              "special"};

/* A token of the settings. */
struct token {
    int64_t id; /* orders the tokens of a list */
    const char *content;
    bool flags[FLAGS];
};

/* A tokenizer.json while tokens are added to it. */
struct target {
    const struct tokenizer_settings *settings;
    cJSON *list; /* its added_tokens */
    bool changed;
    struct known {
        char *key;
        cJSON *value;
    } * known; /* stb_ds: items of the list by content */
    struct role {
        char *key;
        bool value;
    } * roles; /* stb_ds: contents of tokens that have a role */
    struct error *error;
};

/* Reads the content and the flags of a token, which may be a string. Returns false if it is no
 * token. has_role: the token is special whatever its flags say. */
static bool read_token(struct token *token, const cJSON *item, bool has_role) {
    *token = (struct token){.content = cJSON_IsString(item) ? item->valuestring
                                                            : json_text(item, "content")};
    for (int flag = 0; flag < FLAGS; flag++)
        token->flags[flag] = cJSON_IsTrue(json_member(item, flag_names[flag]));
    if (cJSON_IsString(item)) token->flags[SPECIAL] = has_role;
    if (!json_member(item, flag_names[NORMALIZED]))
        token->flags[NORMALIZED] = !token->flags[SPECIAL];
    token->flags[SPECIAL] |= has_role;
    return token->content;
}

/* Adds a token, or changes the flags of the one that is there. */
static int add_token(struct target *target, const struct token *token) {
    const ptrdiff_t index = shgeti(target->known, token->content);
    struct token before = {0};
    cJSON *item = index >= 0 ? target->known[index].value : cJSON_CreateObject();
    if (index >= 0) {
        read_token(&before, item, false);
        if (memcmp(before.flags, token->flags, sizeof before.flags) == 0) return 0;
    } else if (!cJSON_AddItemToArray(target->list, item) ||
               !cJSON_AddNumberToObject(item, "id", 0) ||
               !cJSON_AddStringToObject(item, "content", token->content)) {
        return fail_memory(target->error, "a tokenizer");
    }
    for (int flag = 0; flag < FLAGS; flag++) {
        cJSON_DeleteItemFromObjectCaseSensitive(item, flag_names[flag]);
        cJSON_AddBoolToObject(item, flag_names[flag], token->flags[flag]);
    }
    if (index < 0) shput(target->known, (char *)token->content, item);
    target->changed = true;
    return 0;
}

static int compare_ids(const void *a, const void *b) {
    const int64_t left = ((const struct token *)a)->id, right = ((const struct token *)b)->id;
    return (left > right) - (left < right);
}

/* Adds tokens in the order of their ids, and frees the array. */
static int add_sorted(struct target *target, struct token *tokens) {
    int status = 0;
    if (tokens) qsort(tokens, arrlenu(tokens), sizeof *tokens, compare_ids);
    for (size_t i = 0; i < arrlenu(tokens) && !status; i++) status = add_token(target, &tokens[i]);
    arrfree(tokens);
    return status;
}

static int refuse(const struct target *target, const struct json_file *file, const char *what,
                  const char *name) {
    return fail(target->error, "%s: \"%.60s\" in %s is not a token of transformers", file->where,
                name, what);
}

/* Adds the tokens of added_tokens_decoder: {"406": {"content": ..., flags}, ...}. */
static int add_decoder(struct target *target, const cJSON *decoder) {
    struct token *tokens = NULL, token;
    const cJSON *item;
    cJSON_ArrayForEach(item, decoder) {
        char *end;
        const long id = strtol(item->string, &end, 10);
        if (!read_token(&token, item, false) || *end || end == item->string || id < 0) {
            arrfree(tokens);
            return refuse(target, &target->settings->config, "added_tokens_decoder", item->string);
        }
        token.id = id;
        token.flags[SPECIAL] |= shgeti(target->roles, token.content) >= 0;
        arrput(tokens, token);
    }
    return add_sorted(target, tokens);
}

/* Adds the tokens of added_tokens.json: {"<tool>": 406, ...}. A token of tokenizer.json with the
 * same number is used instead. */
static int add_file(struct target *target) {
    struct {
        int64_t key;
        bool value;
    } *numbers = NULL;
    struct token *tokens = NULL;
    const cJSON *item;
    cJSON_ArrayForEach(item, target->list) {
        const cJSON *id = json_member(item, "id");
        if (cJSON_IsNumber(id)) hmput(numbers, (int64_t)id->valuedouble, true);
    }
    cJSON_ArrayForEach(item, target->settings->added.root) {
        struct token token = {.content = item->string};
        if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble < 1e9)) {
            arrfree(tokens);
            hmfree(numbers);
            return refuse(target, &target->settings->added, "the file", item->string);
        }
        token.id = (int64_t)item->valuedouble;
        token.flags[SPECIAL] = shgeti(target->roles, token.content) >= 0;
        token.flags[NORMALIZED] = !token.flags[SPECIAL];
        if (hmgeti(numbers, token.id) < 0) arrput(tokens, token);
    }
    hmfree(numbers);
    return add_sorted(target, tokens);
}

/* ---- roles */

/* Calls `use` with each token that has a role, in transformers' order. Newer lists replace older
 * ones. */
static int each_role(struct target *target, int (*use)(struct target *, const cJSON *)) {
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    static const char extra[] = "extra_special_tokens", older[] = "additional_special_tokens";
    const cJSON *config = target->settings->config.root, *map = target->settings->map.root, *item;
    if (json_member(config, "added_tokens_decoder")) map = NULL;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        const cJSON *mapped = json_member(map, roles[i]);
        if (use(target, mapped ? mapped : json_member(config, roles[i]))) return -1;
    }
    cJSON_ArrayForEach(item, config) {
        const char *suffix = strrchr(item->string, '_');
        bool named = !suffix || strcmp(suffix, "_token") != 0;
        for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
            named |= strcmp(item->string, roles[i]) == 0;
        if (!named && use(target, item)) return -1;
    }
    const cJSON *lists[] = {json_member(config, extra), json_member(config, older),
                            json_member(map, extra), json_member(map, older)};
    if (cJSON_GetArraySize(lists[0]) > 0) lists[1] = NULL;
    if (cJSON_GetArraySize(lists[0]) + cJSON_GetArraySize(lists[1]) + cJSON_GetArraySize(lists[2]))
        lists[3] = NULL;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) cJSON_ArrayForEach(item, lists[i]) {
            if (use(target, item)) return -1;
        }
    return 0;
}

static int note_role(struct target *target, const cJSON *item) {
    struct token token;
    if (read_token(&token, item, true)) shput(target->roles, (char *)token.content, true);
    return 0;
}

/* Adds a token with a role, unless it is added already: those flags stay. */
static int add_role(struct target *target, const cJSON *item) {
    struct token token;
    return !read_token(&token, item, true) || shgeti(target->known, token.content) >= 0
               ? 0
               : add_token(target, &token);
}

/* Qwen's class adds its tokens with a role again, without the flags that they had. */
static int add_role_plainly(struct target *target, const cJSON *item) {
    struct token token;
    if (!read_token(&token, item, true)) return 0;
    token = (struct token){.content = token.content, .flags[SPECIAL] = true};
    return add_token(target, &token);
}

/* ---- the pre-tokenizer */

/* Sets add_prefix_space of ByteLevel, alone or in a Sequence. */
static void set_prefix_space(struct target *target, cJSON *node, bool adds) {
    static const char key[] = "add_prefix_space";
    const char *type = json_text(node, "type");
    cJSON *part, *parts = cJSON_GetObjectItemCaseSensitive(node, "pretokenizers");
    cJSON_ArrayForEach(part, parts) {
        const char *kind = json_text(part, "type");
        if (kind && strcmp(kind, "ByteLevel") == 0) set_prefix_space(target, part, adds);
    }
    if (!type || strcmp(type, "ByteLevel") != 0) return;
    const cJSON *flag = json_member(node, key);
    if (flag && cJSON_IsTrue(flag) == adds) return;
    cJSON_DeleteItemFromObjectCaseSensitive(node, key);
    cJSON_AddBoolToObject(node, key, adds);
    target->changed = true;
}

/* ---- the template */

/* Returns the number of the token with a role that add_bos_token or add_eos_token adds, -1 if none
 * is added, or -2 if its number is not that of the vocabulary. */
static int64_t added_role(const struct target *target, const cJSON *root, const char *flag,
                          const char *role, const char **content) {
    const cJSON *config = target->settings->config.root;
    const cJSON *vocabulary = json_member(json_member(root, "model"), "vocab");
    const cJSON *named = json_member(config, role);
    struct token token;
    if (!cJSON_IsTrue(json_member(config, flag)) || cJSON_IsNull(named)) return -1;
    *content = named && read_token(&token, named, true) ? token.content : "<|endoftext|>";
    const cJSON *number = json_member(vocabulary, *content);
    return cJSON_IsNumber(number) ? (int64_t)number->valuedouble : -2;
}

/* Appends {"KIND": {"id": ID, "type_id": TYPE}}. */
static void add_part(cJSON *list, const char *kind, const char *id, int type) {
    cJSON *part = cJSON_CreateObject(), *inner = cJSON_AddObjectToObject(part, kind);
    cJSON_AddStringToObject(inner, "id", id);
    cJSON_AddNumberToObject(inner, "type_id", type);
    cJSON_AddItemToArray(list, part);
}

/* Adds the template of add_bos_token and add_eos_token, which transformers makes where there is no
 * tokenizer.json. */
static int add_template(struct target *target, cJSON *root) {
    const char *ends[2] = {NULL, NULL};
    const int64_t numbers[] = {added_role(target, root, "add_bos_token", "bos_token", &ends[0]),
                               added_role(target, root, "add_eos_token", "eos_token", &ends[1])};
    if (numbers[0] == -1 && numbers[1] == -1) return 0;
    for (int i = 0; i < 2; i++)
        if (numbers[i] == -2)
            return fail(target->error,
                        "%s: add_%s_token is true, but the vocabulary has no \"%.60s\"",
                        target->settings->config.where, i ? "eos" : "bos", ends[i]);
    cJSON *processor = cJSON_CreateObject();
    cJSON_DeleteItemFromObjectCaseSensitive(root, "post_processor");
    cJSON_AddStringToObject(processor, "type", "TemplateProcessing");
    for (int texts = 1; texts <= 2; texts++) {
        cJSON *list = cJSON_AddArrayToObject(processor, texts == 1 ? "single" : "pair");
        for (int type = 0; type < texts; type++) {
            if (numbers[0] >= 0) add_part(list, "SpecialToken", ends[0], type);
            add_part(list, "Sequence", type ? "B" : "A", type);
            if (numbers[1] >= 0) add_part(list, "SpecialToken", ends[1], type);
        }
    }
    cJSON *tokens = cJSON_AddObjectToObject(processor, "special_tokens");
    for (int i = 0; i < 2; i++) {
        if (numbers[i] < 0 || json_member(tokens, ends[i])) continue;
        cJSON *token = cJSON_AddObjectToObject(tokens, ends[i]);
        cJSON_AddStringToObject(token, "id", ends[i]);
        cJSON_AddItemToArray(cJSON_AddArrayToObject(token, "ids"),
                             cJSON_CreateNumber((double)numbers[i]));
        cJSON_AddItemToArray(cJSON_AddArrayToObject(token, "tokens"), cJSON_CreateString(ends[i]));
    }
    return cJSON_AddItemToObject(root, "post_processor", processor)
               ? 0
               : fail_memory(target->error, "a tokenizer");
}

/* ---- all */

/* Makes the list of added tokens if there is none, and indexes it. */
static int open_target(struct target *target, cJSON *root) {
    cJSON *item;
    target->list = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    if (cJSON_IsNull(target->list)) {
        cJSON_DeleteItemFromObjectCaseSensitive(root, "added_tokens");
        target->list = NULL;
    }
    if (!target->list) target->list = cJSON_AddArrayToObject(root, "added_tokens");
    if (!target->list) return fail_memory(target->error, "a tokenizer");
    cJSON_ArrayForEach(item, target->list) {
        const char *content = json_text(item, "content");
        if (content) shput(target->known, (char *)content, item);
    }
    return 0;
}

/* Adds <|endoftext|> if a role lacks a token. Qwen2 numbers it after a vocabulary that lacks it;
 * GPT-2 adds it only if the vocabulary has it. */
static int add_default(struct target *target, const cJSON *root) {
    const struct tokenizer_settings *settings = target->settings;
    static const struct token token = {.content = "<|endoftext|>", .flags[SPECIAL] = true};
    const cJSON *vocabulary = json_member(json_member(root, "model"), "vocab");
    const char *const roles[] = {"eos_token", "unk_token",
                                 settings->class == TOKENIZER_CLASS_GPT2 ? "bos_token"
                                                                         : "pad_token"};
    bool missing = false;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        missing |= !json_member(settings->config.root, roles[i]);
    const bool in_model =
        settings->class == TOKENIZER_CLASS_QWEN2 || json_member(vocabulary, token.content);
    if (!missing || !in_model || shgeti(target->known, token.content) >= 0) return 0;
    return add_token(target, &token);
}

static int apply(struct target *target, cJSON *root, bool rebuilt) {
    const struct tokenizer_settings *settings = target->settings;
    const cJSON *config = settings->config.root;
    const cJSON *decoder = json_member(config, "added_tokens_decoder");
    if (open_target(target, root) || each_role(target, note_role)) return -1;
    if ((decoder ? add_decoder(target, decoder) : add_file(target)) || each_role(target, add_role))
        return -1;
    if (!rebuilt) return 0;
    set_prefix_space(target, cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer"),
                     cJSON_IsTrue(json_member(config, "add_prefix_space")));
    if (settings->class == TOKENIZER_CLASS_QWEN2 && each_role(target, add_role_plainly)) return -1;
    return add_default(target, root);
}

int tokenizer_settings_apply(const struct tokenizer_settings *settings, cJSON *root,
                             bool from_class, bool *changed, struct error *error) {
    struct target target = {.settings = settings, .error = error};
    const bool named = settings->config.root && settings->class != TOKENIZER_CLASS_OTHER;
    int status = apply(&target, root, from_class || named);
    if (!status && from_class) status = add_template(&target, root);
    *changed = target.changed;
    shfree(target.known);
    shfree(target.roles);
    return status;
}
