#include "model/io/adapter_config.h"

#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "model/architecture/adapters.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"

const char adapter_config_name[] = "adapter_config.json";

void adapter_print_config(FILE *out, const struct config *config) {
    struct gpt_shape shape = config_shape(config);
    char alpha[CONFIG_NUMBER_MAX], dropout[CONFIG_NUMBER_MAX];
    unsigned printed = 0; /* GPT-2 has two layers of one name */
    fputs("{\n  \"base_model_name_or_path\": ", out);
    json_print_string(out, config->model.init_from);
    fprintf(
        out,
        ",\n  \"bias\": \"none\",\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n"
        "  \"lora_alpha\": %s,\n  \"lora_dropout\": %s,\n  \"peft_type\": \"LORA\",\n"
        "  \"r\": %lld,\n  \"target_modules\": [",
        shape.weights_out_in ? "false" : "true", config_format_number(alpha, config->adapter.alpha),
        config_format_number(dropout, config->adapter.dropout), (long long)config->adapter.rank);
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++) {
        if (!(shape.adapter_targets & ~printed & 1u << i)) continue;
        fprintf(out, "%s\"%s\"", printed ? ", " : "", adapter_target_name(&shape, i));
        printed |= adapter_targets_named(&shape, adapter_target_name(&shape, i));
    }
    fprintf(out, "],\n  \"task_type\": \"CAUSAL_LM\",\n  \"use_rslora\": %s\n}\n",
            config->adapter.rslora ? "true" : "false");
}

/* An adapter_config.json while it is read into a config. */
struct adapter_reader {
    const cJSON *root;
    struct config *config;
    const char *where;
    struct error *error;
};

static int refuse(const struct adapter_reader *reader, const char *key, const char *wanted) {
    const cJSON *member = json_member(reader->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status = fail(reader->error, "%s: %s is %.80s,\nbut mantissa's adapters need %s",
                      reader->where, key, found ? found : "missing", wanted);
    cJSON_free(found);
    return status;
}

/* True if the key is absent, null, false, "none" or empty. */
static bool is_unused(const cJSON *member) {
    return !member || cJSON_IsNull(member) || cJSON_IsFalse(member) ||
           (cJSON_IsString(member) && strcmp(member->valuestring, "none") == 0) ||
           ((cJSON_IsObject(member) || cJSON_IsArray(member)) && !member->child);
}

/* Refuses what would change the result and is not supported. */
static int check_kind(const struct adapter_reader *reader) {
    static const char *const unused[] = {"use_dora",
                                         "use_qalora",
                                         "bias",
                                         "lora_bias",
                                         "rank_pattern",
                                         "alpha_pattern",
                                         "layers_to_transform",
                                         "modules_to_save",
                                         "layer_replication",
                                         "trainable_token_indices",
                                         "target_parameters",
                                         "alora_invocation_tokens",
                                         "exclude_modules",
                                         "arrow_config",
                                         "corda_config",
                                         "eva_config",
                                         "megatron_config"};
    const cJSON *type = json_member(reader->root, "peft_type");
    if (!cJSON_IsString(type) || strcmp(type->valuestring, "LORA") != 0)
        return refuse(reader, "peft_type", "\"LORA\"");
    for (size_t i = 0; i < sizeof unused / sizeof *unused; i++)
        if (!is_unused(json_member(reader->root, unused[i])))
            return refuse(reader, unused[i], "none of it: it is another kind of adapter");
    return 0;
}

/* True if --set does not give the key, which it then marks as given by the file. */
static bool takes(struct config *config, const char *key) {
    unsigned char *source = &config->sources[config_option_of(key) - config_options];
    if (*source == CONFIG_SOURCE_FLAG) return false;
    *source = CONFIG_SOURCE_FILE;
    return true;
}

/* Reads a number within the range of its key, which is absent from no file of PEFT. */
static int read_number(const struct adapter_reader *reader, const char *name, const char *key) {
    const struct config_option *option = config_option_of(key);
    const cJSON *member = json_member(reader->root, name);
    double value = cJSON_IsNumber(member) ? member->valuedouble : option->minimum - 1;
    if (!(value >= option->minimum && value <= option->maximum) ||
        (option->type == CONFIG_INTEGER && value != (double)(int64_t)value))
        return refuse(reader, name, "a number in the range of the config's key");
    if (takes(reader->config, key)) config_set(reader->config, option, value);
    return 0;
}

static int add_target(const struct adapter_reader *reader, struct config_words *list,
                      const cJSON *name) {
    const struct config_option *option = config_option_of("adapter.targets");
    if (list->count == CONFIG_WORDS_MAX) return refuse(reader, "target_modules", "fewer names");
    for (int i = 0; cJSON_IsString(name) && option->names[i]; i++)
        if (strcmp(option->names[i], name->valuestring) == 0) {
            list->items[list->count++] = option->names[i];
            return 0;
        }
    return refuse(reader, "target_modules", "names of linear layers, such as \"q_proj\"");
}

/* A list of names, or one that stands for all linear layers. */
static int read_targets(const struct adapter_reader *reader) {
    const cJSON *targets = json_member(reader->root, "target_modules"), *name;
    struct config_words list = {0};
    if (cJSON_IsString(targets) && add_target(reader, &list, targets)) return -1;
    if (!cJSON_IsString(targets) && (!cJSON_IsArray(targets) || !targets->child))
        return refuse(reader, "target_modules", "a list of names");
    if (cJSON_IsArray(targets)) cJSON_ArrayForEach(name, targets) {
            if (add_target(reader, &list, name)) return -1;
        }
    if (takes(reader->config, "adapter.targets")) reader->config->adapter.targets = list;
    return 0;
}

static int open_file(struct json_file *file, const char *directory, struct error *error) {
    char path[FILE_PATH_MAX];
    return file_path_join(path, directory, adapter_config_name, error) ||
                   json_file_open(file, path, error)
               ? -1
               : 0;
}

int adapter_read_config(struct config *config, const char *directory, struct error *error) {
    struct json_file file;
    struct config read = *config;
    if (open_file(&file, directory, error)) return -1;
    struct adapter_reader reader = {file.root, &read, file.where, error};
    int status = check_kind(&reader) || read_number(&reader, "r", "adapter.rank") ||
                         read_number(&reader, "lora_alpha", "adapter.alpha") ||
                         read_targets(&reader)
                     ? -1
                     : 0;
    if (status == 0 && takes(&read, "adapter.rslora"))
        read.adapter.rslora = cJSON_IsTrue(json_member(file.root, "use_rslora"));
    if (status == 0 && takes(&read, "adapter.type")) read.adapter.type = CONFIG_ADAPTER_LORA;
    if (status == 0) *config = read;
    json_file_close(&file);
    return status;
}

int adapter_read_base(char base[CONFIG_STRING_MAX], const char *directory, struct error *error) {
    struct json_file file;
    if (open_file(&file, directory, error)) return -1;
    const cJSON *path = json_member(file.root, "base_model_name_or_path");
    bool fits = cJSON_IsString(path) && strlen(path->valuestring) < CONFIG_STRING_MAX;
    if (fits) strcpy(base, path->valuestring);
    int status = fits ? 0
                      : fail(error,
                             "%s: base_model_name_or_path is no path\nname the folder of "
                             "the base model there",
                             file.where);
    json_file_close(&file);
    return status;
}
