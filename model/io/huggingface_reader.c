#include "model/io/huggingface_reader.h"

#include <math.h>
#include <string.h>

#include "data/util/json.h"
#include "model/config/config_print.h"

enum { SHOWN_MAX = 80 };

int reader_refuse(const struct config_reader *reader, const char *key, const char *wanted) {
    const cJSON *member = json_member(reader->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status =
        fail(reader->error, "%s: %s%s is %.*s, but mantissa's %s needs %s", reader->where,
             reader->inside, key, SHOWN_MAX, found ? found : "missing", reader->rules, wanted);
    cJSON_free(found);
    return status;
}

bool reader_lacks(const struct config_reader *reader, const char *key) {
    return !json_member(reader->root, key);
}

bool reader_is_null(const struct config_reader *reader, const char *key) {
    return reader_lacks(reader, key) || cJSON_IsNull(json_member(reader->root, key));
}

bool reader_is_text(const cJSON *member, const char *text) {
    return cJSON_IsString(member) && strcmp(member->valuestring, text) == 0;
}

int reader_need(const struct config_reader *reader, const char *key, bool allowed,
                const char *wanted) {
    return reader_lacks(reader, key) || allowed ? 0 : reader_refuse(reader, key, wanted);
}

int reader_flag(bool *value, const struct config_reader *reader, const char *key) {
    const cJSON *member = json_member(reader->root, key);
    if (cJSON_IsBool(member)) *value = cJSON_IsTrue(member);
    return reader_need(reader, key, cJSON_IsBool(member), "true or false");
}

void reader_set(const struct config_reader *reader, const char *path, double value) {
    const struct config_option *option = config_option_of(path);
    config_set(reader->config, option, value);
    reader->config->sources[option - config_options] = CONFIG_SOURCE_FILE;
}

/* Stores a JSON value for config_set. Returns false if the row of the option table does not allow
 * it. */
static bool value_of(double *value, const struct config_option *option, const cJSON *member) {
    if (option->type == CONFIG_BOOLEAN) {
        *value = cJSON_IsTrue(member);
        return cJSON_IsBool(member);
    }
    if (option->type == CONFIG_ENUM) {
        int word = 0;
        while (option->names[word] && !reader_is_text(member, option->names[word])) word++;
        *value = word;
        return option->names[word];
    }
    *value = cJSON_IsNumber(member) ? member->valuedouble : NAN;
    return *value >= option->minimum && *value <= option->maximum &&
           (option->type == CONFIG_NUMBER || *value == floor(*value));
}

int reader_key(const struct config_reader *reader, const char *key, const char *path, double absent,
               double null) {
    const struct config_option *option = config_option_of(path);
    const cJSON *member = json_member(reader->root, key);
    double value = !member ? absent : cJSON_IsNull(member) ? null : NAN;
    char allowed[320];
    if (isnan(value) && !value_of(&value, option, member)) {
        config_describe_allowed(option, allowed, sizeof allowed);
        return reader_refuse(reader, key, allowed);
    }
    reader_set(reader, path, value);
    return 0;
}
