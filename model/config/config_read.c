#include "model/config/config_read.h"

#include "data/util/nearest.h"
#include "data/util/program_names.h"
#include "data/util/utf8.h"
#include "data/util/json.h"
#include "model/config/config_nearest.h"
#include "model/config/config_print.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

/* A value being parsed into a field. */
struct candidate {
    const struct config_option *option;
    const cJSON *json;
    const char *where; /* start of the message */
    const char *raw;   /* text of the value as written by the user */
    size_t raw_length;
    struct config *config;
    struct error *error;
};

/* Returns the "key=value" of an override: all of it, or what follows the flag that set it, as in
 * "--tokens sample.tokens=8". */
static const char *override_text(const char *flag) {
    const char *space = strncmp(flag, "--", 2) == 0 ? strchr(flag, ' ') : NULL;
    return space ? space + 1 : flag;
}

/* Names the flag that set an override, or --set with its text. */
static const char *flag_where(char where[CONFIG_WHERE_MAX], const char *flag) {
    char excerpt[JSON_EXCERPT_MAX];
    const char *text = override_text(flag);
    if (text > flag) snprintf(where, CONFIG_WHERE_MAX, "%.*s", (int)(text - 1 - flag), flag);
    else
        snprintf(where, CONFIG_WHERE_MAX, "--set %s",
                 json_text_excerpt(excerpt, flag, strlen(flag)));
    return where;
}

static const char *show_source(char excerpt[JSON_EXCERPT_MAX], const cJSON *item,
                               const char *text) {
    size_t length;
    const char *source = json_source(item, text, &length);
    return json_text_excerpt(excerpt, source, length);
}

static const char *line_where(char where[CONFIG_WHERE_MAX], const char *path, size_t line) {
    file_path_shown(where, path);
    size_t length = strlen(where);
    snprintf(where + length, CONFIG_WHERE_MAX - length, ":%zu", line);
    return where;
}

const char *config_where(char where[CONFIG_WHERE_MAX], const struct config_origins *origins,
                         int row) {
    if (origins->flags[row]) return flag_where(where, origins->flags[row]);
    if (origins->lines[row]) return line_where(where, origins->path, origins->lines[row]);
    return file_path_shown(where, origins->path);
}

static int refuse_value(const struct candidate *c) {
    char found[JSON_EXCERPT_MAX], allowed[320];
    json_text_excerpt(found, c->raw, c->raw_length);
    if (cJSON_IsObject(c->json)) strcpy(found, "an object {...}");
    if (c->raw_length == 0) strcpy(found, "empty");
    config_describe_allowed(c->option, allowed, sizeof allowed);
    return fail(c->error, "%s: %s is %s, but must be %s.", c->where, c->option->key, found,
                allowed);
}

static int set_number(const struct candidate *c) {
    const struct config_option *option = c->option;
    if (!cJSON_IsNumber(c->json)) return refuse_value(c);
    double value = cJSON_GetNumberValue(c->json);
    bool in_range = value >= option->minimum && value <= option->maximum &&
                    !(option->below_maximum && value == option->maximum);
    if (!in_range || (option->type == CONFIG_INTEGER && value != floor(value)))
        return refuse_value(c);
    config_set(c->config, option, value + 0.0); /* -0 becomes 0 */
    return 0;
}

static int set_string(const struct candidate *c) {
    if (!cJSON_IsString(c->json)) return refuse_value(c);
    const char *value = cJSON_GetStringValue(c->json);
    size_t length = strlen(value);
    if (length >= CONFIG_STRING_MAX)
        return fail(c->error, "%s: %s has %zu bytes; at most %d are allowed.", c->where,
                    c->option->key, length, CONFIG_STRING_MAX - 1);
    if ((double)length < c->option->minimum)
        return fail(c->error, "%s: %s must not be empty.", c->where, c->option->key);
    if (!utf8_valid(value, length))
        return fail(c->error, "%s: %s is not UTF-8.", c->where, c->option->key);
    char masked[CONFIG_STRING_MAX];
    memcpy(masked, value, length + 1);
    /* A prompt may contain anything; it is masked when samples are printed. */
    if (strcmp(utf8_mask(masked), value) != 0 && strcmp(c->option->key, "sample.prompt") != 0)
        return fail(c->error, "%s: %s holds a control character, shown as ? here: %.200s", c->where,
                    c->option->key, masked);
    memcpy((char *)c->config + c->option->offset, value, length + 1);
    return 0;
}

static int find_word(const struct config_option *option, const char *text) {
    for (int i = 0; option->names[i]; i++)
        if (strcmp(option->names[i], text) == 0) return i;
    return -1;
}

static int refuse_word(const struct candidate *c, const char *text) {
    char found[JSON_EXCERPT_MAX], allowed[320], hint[80] = "";
    int count = config_name_count(c->option);
    int nearest = nearest_text(c->option->names, count, text, strlen(text));
    static const char *const others[] = {"float32", "fp32", "float16", "fp16", "bfloat16", "bf16",
                                         "gpu",     "cuda", "int4",    "nf4",  "4bit",     "nf4"};
    for (int i = 0; i < 12; i += 2)
        if (strcasecmp(text, others[i]) == 0) nearest = find_word(c->option, others[i + 1]);
    if (nearest >= 0)
        snprintf(hint, sizeof hint, " Did you mean \"%s\"?", c->option->names[nearest]);
    if (strcmp(c->option->key, "optimizer.name") == 0 && strstr(text, "8bit"))
        snprintf(hint, sizeof hint, " 8-bit moments are optimizer.moments \"int8\".");
    json_text_excerpt(found, text, strlen(text));
    config_describe_allowed(c->option, allowed, sizeof allowed);
    return fail(c->error, "%s: %s%s \"%s\", but must be %s.%s", c->where, c->option->key,
                c->option->type == CONFIG_LIST ? " names" : " is", found, allowed, hint);
}

static int set_word(const struct candidate *c) {
    const char *text = cJSON_GetStringValue(c->json);
    if (cJSON_IsBool(c->json) && config_has_switch(c->option))
        text = cJSON_IsTrue(c->json) ? "on" : "off";
    if (!text) return refuse_value(c);
    int word = find_word(c->option, text);
    if (word < 0) return refuse_word(c, text);
    config_set(c->config, c->option, word);
    return 0;
}

/* Sets a list, or a single name without the brackets around it. */
static int set_list(const struct candidate *c) {
    const bool single = cJSON_IsString(c->json);
    if (!single && !cJSON_IsArray(c->json)) return refuse_value(c);
    struct config_words list = {0};
    for (const cJSON *item = single ? c->json : c->json->child; item;
         item = single ? NULL : item->next) {
        if (!cJSON_IsString(item)) return refuse_value(c);
        const char *text = cJSON_GetStringValue(item);
        int word = find_word(c->option, text);
        if (word < 0) return refuse_word(c, text);
        for (int i = 0; i < list.count; i++)
            if (list.items[i] == c->option->names[word])
                return fail(c->error, "%s: %s names \"%s\" twice.", c->where, c->option->key, text);
        if (list.count == CONFIG_WORDS_MAX) return refuse_value(c);
        list.items[list.count++] = c->option->names[word];
    }
    memcpy((char *)c->config + c->option->offset, &list, sizeof list);
    return 0;
}

static int set_value(const struct candidate *c) {
    switch (c->option->type) {
    case CONFIG_STRING: return set_string(c);
    case CONFIG_ENUM: return set_word(c);
    case CONFIG_INTEGER:
    case CONFIG_NUMBER: return set_number(c);
    case CONFIG_LIST: return set_list(c);
    case CONFIG_BOOLEAN: break;
    }
    if (!cJSON_IsBool(c->json)) return refuse_value(c);
    config_set(c->config, c->option, cJSON_IsTrue(c->json));
    return 0;
}

struct reader {
    struct config *config;
    struct config_origins *origins;
    const char *text;
    struct error *error;
};

static void list_names(char *text, size_t size, int block) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < config_option_count && used < size; i++)
        if (config_option_block(&config_options[i]) == block)
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "",
                                     config_option_name(&config_options[i]));
    for (int i = 0; block < 0 && i < config_block_count && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, ", %s", config_blocks[i].name);
}

/* Rejects an unknown name in a block, or at the top level (-1). An object suggests the name of a
 * block. */
static int refuse_name(const char *where, int block, const char *name, bool object,
                       struct error *error) {
    char excerpt[JSON_EXCERPT_MAX], names[320], full[CONFIG_STRING_MAX], named[PROGRAM_TEXT_MAX];
    bool exact;
    size_t length =
        (size_t)snprintf(full, sizeof full, "%s%s%s", block >= 0 ? config_blocks[block].name : "",
                         block >= 0 ? "." : "", name);
    if (length >= sizeof full) length = sizeof full - 1;
    json_text_excerpt(excerpt, full, length);
    const char *answer = config_suggest(full, length, block, &exact);
    int near_block = config_nearest_block(name, strlen(name));
    if (block < 0 && near_block >= 0 && (object || !answer))
        return fail(error, "%s: there is no block \"%s\". Did you mean \"%s\"?", where, excerpt,
                    config_blocks[near_block].name);
    if (answer && strchr(answer, ' '))
        return fail(error, "%s: there is no key \"%s\". %s", where, excerpt,
                    program_text(named, answer));
    if (answer)
        return fail(error, "%s: there is no key \"%s\". Did you mean %s%s?", where, excerpt,
                    answer[0] == '-' ? "the flag " : "", answer);
    list_names(names, sizeof names, block);
    return fail(error, "%s: there is no key \"%s\".\n%s has: %s.", where, excerpt,
                block >= 0 ? config_blocks[block].name : "The config", names);
}

static int read_option(const struct reader *reader, int row, const cJSON *item, const char *where) {
    struct candidate candidate = {.option = &config_options[row],
                                  .json = item,
                                  .where = where,
                                  .config = reader->config,
                                  .error = reader->error};
    candidate.raw = json_source(item, reader->text, &candidate.raw_length);
    reader->origins->lines[row] = json_line(item, reader->text);
    reader->config->sources[row] = CONFIG_SOURCE_FILE;
    return set_value(&candidate);
}

/* True for a removed key with its old default, which every config.json of an earlier version has.
 * In a saved config other values are skipped, too, and the key is noted. */
static bool skip_removed(const struct reader *reader, const char *key, const cJSON *item) {
    static const char *const removed[] = {"log.csv", "log.tensorboard",
                                          "precision_switch.forward_only", "fp8.sums"};
    struct config_words *noted = &reader->config->removed;
    size_t i = 0;
    while (i < sizeof removed / sizeof *removed && strcmp(key, removed[i]) != 0) i++;
    if (i == sizeof removed / sizeof *removed) return false;
    if (cJSON_IsFalse(item)) return true;
    if (cJSON_IsString(item) && strcmp(item->valuestring, "exact") == 0) return true;
    if (!reader->origins->saved) return false;
    if (noted->count < CONFIG_WORDS_MAX) noted->items[noted->count++] = removed[i];
    return true;
}

static int read_block(const struct reader *reader, int block, const cJSON *object) {
    const cJSON *item;
    char where[CONFIG_WHERE_MAX], key[CONFIG_STRING_MAX];
    cJSON_ArrayForEach(item, object) {
        line_where(where, reader->origins->path, json_line(item, reader->text));
        int length = snprintf(key, sizeof key, "%s.%s", config_blocks[block].name, item->string);
        int row = config_option_index(key, (size_t)length < sizeof key ? (size_t)length : 0);
        if (row < 0 && skip_removed(reader, key, item)) continue;
        if (row < 0)
            return refuse_name(where, block, item->string, cJSON_IsObject(item), reader->error);
        if (read_option(reader, row, item, where)) return -1;
    }
    return 0;
}

static int read_top_member(const struct reader *reader, const cJSON *item, const char *where) {
    struct error *error = reader->error;
    const char *name = item->string;
    char found[JSON_EXCERPT_MAX];
    size_t length = strlen(name);
    int row = config_option_index(name, length);
    int block = config_block_index(name, length);
    /* In a file, a key with a dot is not the name of a row; only --set takes such names. */
    if (row >= 0 && config_option_block(&config_options[row]) < 0)
        return read_option(reader, row, item, where);
    if (row >= 0)
        return fail(error, "%s: write %s as \"%s\" in the block \"%.*s\": {...}.", where, name,
                    config_option_name(&config_options[row]), (int)strcspn(name, "."), name);
    if (block >= 0 && cJSON_IsObject(item)) return read_block(reader, block, item);
    if (block >= 0)
        return fail(error, "%s: %s is %s, but must be a block of keys: {...}.", where, name,
                    show_source(found, item, reader->text));
    if (strcmp(name, "$schema") != 0)
        return refuse_name(where, -1, name, cJSON_IsObject(item), error);
    if (cJSON_IsString(item)) return 0;
    return fail(error, "%s: $schema, which is for editors, must be a string.", where);
}

static int read_root(const struct reader *reader, const cJSON *root) {
    char where[CONFIG_WHERE_MAX], found[JSON_EXCERPT_MAX];
    const cJSON *item;
    if (!cJSON_IsObject(root))
        return fail(reader->error, "%s: a config is an object, {...}, but this file holds %s",
                    line_where(where, reader->origins->path, json_line(root, reader->text)),
                    show_source(found, root, reader->text));
    cJSON_ArrayForEach(item, root) {
        line_where(where, reader->origins->path, json_line(item, reader->text));
        if (read_top_member(reader, item, where)) return -1;
    }
    return 0;
}

int config_read_text(struct config *config, struct config_origins *origins, const char *text,
                     size_t length, struct error *error) {
    char path[CONFIG_WHERE_MAX];
    const struct reader reader = {config, origins, text, error};
    cJSON *root;
    file_path_shown(path, origins->path);
    int status = json_parse(&root, text, length, path, error);
    if (status == 0) status = read_root(&reader, root);
    cJSON_Delete(root);
    return status;
}

/* Parses "a,b" as a list, so that --set needs no quoted JSON. Returns NULL when out of memory. */
static cJSON *split_list(const char *text) {
    cJSON *list = cJSON_CreateArray();
    if (!list || *text == '\0') return list;
    do {
        char word[CONFIG_STRING_MAX];
        size_t length = strcspn(text, ",");
        /* A truncated item is longer than any name of the table, so it is rejected anyway. */
        snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word - 1),
                 text);
        if (!cJSON_AddItemToArray(list, cJSON_CreateString(word))) {
            cJSON_Delete(list);
            return NULL;
        }
        text += length;
    } while (*text++ == ',');
    return list;
}

/* Parses the value of a flag: as JSON if the key accepts that type, else as plain text. */
static cJSON *parse_flag_value(const struct config_option *option, const char *text) {
    struct error ignored;
    cJSON *json;
    json_parse(&json, text, strlen(text), "", &ignored);
    bool textual = option->type == CONFIG_STRING ||
                   (option->type == CONFIG_ENUM && !config_has_switch(option));
    if (textual && !cJSON_IsString(json)) {
        cJSON_Delete(json);
        return cJSON_CreateString(text);
    }
    if (option->type == CONFIG_LIST && !json) return split_list(text);
    return json ? json : cJSON_CreateString(text);
}

static int refuse_flag_key(const char *where, const char *key, size_t length, struct error *error) {
    char name[CONFIG_STRING_MAX];
    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1),
             key);
    if (config_block_index(key, length) >= 0)
        return fail(error, "%s: %s is a block; name one of its keys, as %s.KEY=VALUE.", where, name,
                    name);
    const char *dot = memchr(key, '.', length);
    int block = dot ? config_block_index(key, (size_t)(dot - key)) : -1;
    return refuse_name(where, block, block >= 0 ? name + (dot - key) + 1 : name, false, error);
}

int config_read_flag(struct config *config, struct config_origins *origins, const char *flag,
                     struct error *error) {
    char where[CONFIG_WHERE_MAX];
    flag_where(where, flag);
    const char *key = override_text(flag), *equals = strchr(key, '=');
    if (!equals || equals == key)
        return fail(error, "%s: --set takes KEY=VALUE, such as --set train.steps=100", where);
    int row = config_option_index(key, (size_t)(equals - key));
    if (row < 0) return refuse_flag_key(where, key, (size_t)(equals - key), error);

    const char *text = equals + 1;
    cJSON *json = parse_flag_value(&config_options[row], text);
    if (!json) return fail_memory(error, "%s", where);
    struct candidate candidate = {.option = &config_options[row],
                                  .json = json,
                                  .where = where,
                                  .raw = text,
                                  .raw_length = strlen(text),
                                  .config = config,
                                  .error = error};
    int status = set_value(&candidate);
    cJSON_Delete(json);
    origins->flags[row] = flag;
    config->sources[row] = CONFIG_SOURCE_FLAG;
    return status;
}
