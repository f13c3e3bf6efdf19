#include "model/io/huggingface_source.h"

#include <math.h>
#include <string.h>

#include "data/util/json.h"
#include "model/config/config_print.h"

enum { SHOWN_MAX = 80 };

int huggingface_refuse(const struct huggingface_source *source, const char *key,
                       const char *wanted) {
    const cJSON *member = json_member(source->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status = fail(source->error, "%s: %s is %.*s,\nbut mantissa's %s needs %s", source->where,
                      key, SHOWN_MAX, found ? found : "missing", source->family, wanted);
    cJSON_free(found);
    return status;
}

bool huggingface_is_absent(const struct huggingface_source *source, const char *key) {
    return !json_member(source->root, key);
}

bool huggingface_is_null(const struct huggingface_source *source, const char *key) {
    return huggingface_is_absent(source, key) || cJSON_IsNull(json_member(source->root, key));
}

int huggingface_need_number(const struct huggingface_source *source, const char *key, double wanted,
                            const char *text) {
    if (huggingface_is_absent(source, key)) return 0;
    const cJSON *member = json_member(source->root, key);
    /* Some files have values that were rounded to fp32. */
    if (cJSON_IsNumber(member) && fabs(member->valuedouble - wanted) <= 1e-6 * wanted) return 0;
    return huggingface_refuse(source, key, text);
}

int huggingface_need_boolean(const struct huggingface_source *source, const char *key,
                             bool wanted) {
    if (huggingface_is_absent(source, key)) return 0;
    const cJSON *member = json_member(source->root, key);
    if (cJSON_IsBool(member) && cJSON_IsTrue(member) == wanted) return 0;
    return huggingface_refuse(source, key, wanted ? "true" : "false");
}

static int refuse_value(const struct huggingface_source *source, const char *key, int row) {
    char allowed[320];
    config_describe_allowed(&config_options[row], allowed, sizeof allowed);
    return huggingface_refuse(source, key, allowed);
}

int huggingface_read_whole(const struct huggingface_source *source, const char *key,
                           const char *path, int64_t *field, struct config *config) {
    int row = config_option_index(path, strlen(path));
    const struct config_option *option = &config_options[row];
    if (!json_whole(field, source->root, key, (int64_t)option->minimum, (int64_t)option->maximum))
        return refuse_value(source, key, row);
    config->sources[row] = CONFIG_SOURCE_FILE;
    return 0;
}

int huggingface_read_number(const struct huggingface_source *source, const char *key,
                            const char *path, double *field, struct config *config) {
    int row = config_option_index(path, strlen(path));
    const struct config_option *option = &config_options[row];
    const cJSON *member = json_member(source->root, key);
    if (!cJSON_IsNumber(member) || !(member->valuedouble >= option->minimum) ||
        !(member->valuedouble <= option->maximum))
        return refuse_value(source, key, row);
    *field = member->valuedouble;
    config->sources[row] = CONFIG_SOURCE_FILE;
    return 0;
}
