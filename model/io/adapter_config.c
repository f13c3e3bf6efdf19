#include "model/io/adapter_config.h"

#include <string.h>
#include <strings.h>

#include <cjson/cJSON.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/json_escape.h"
#include "model/architecture/adapters.h"
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/io/adapter_targets.h"
#include "model/io/huggingface_larger.h"

const char adapter_config_name[] = "adapter_config.json";

/* Modules of a larger model that may have the names of the text's: an expression of Python. */
static const char tower_modules[] = ".*(visual|vision|connector|projector).*";

void adapter_print_config(FILE *out, const void *context) {
    const struct config *config = context;
    const bool is_part = larger_model_module(config->model.init_from);
    struct model_shape shape = config_shape(config);
    char alpha[CONFIG_NUMBER_MAX], dropout[CONFIG_NUMBER_MAX], excluded[100];
    snprintf(excluded, sizeof excluded, "\n  \"exclude_modules\": \"%s\",", tower_modules);
    unsigned printed = 0; /* GPT-2 has two layers of one name */
    fputs("{\n  \"base_model_name_or_path\": ", out);
    json_print_string(out, config->model.init_from);
    fprintf(out,
            ",\n  \"bias\": \"none\",%s\n  \"fan_in_fan_out\": %s,\n  \"inference_mode\": true,\n"
            "  \"lora_alpha\": %s,\n  \"lora_dropout\": %s,\n  \"peft_type\": \"LORA\",\n"
            "  \"r\": %lld,\n  \"target_modules\": [",
            is_part ? excluded : "", shape.weights_out_in ? "false" : "true",
            config_format_number(alpha, config->adapter.alpha),
            config_format_number(dropout, config->adapter.dropout),
            (long long)config->adapter.rank);
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++) {
        if (!(shape.adapter_targets & ~printed & 1u << i)) continue;
        fprintf(out, "%s\"%s\"", printed ? ", " : "", adapter_target_name(&shape, i));
        printed |= adapter_targets_named(&shape, adapter_target_name(&shape, i));
    }
    /* PEFT refuses keys that it does not know; use_rslora came with 0.8. */
    fprintf(out, "],\n  \"task_type\": \"CAUSAL_LM\"%s\n}\n",
            config->adapter.rslora ? ",\n  \"use_rslora\": true" : "");
}

/* An adapter_config.json while it is read into a config. */
struct adapter_reader {
    const cJSON *root;
    struct config *config;
    const char *where;
    struct error *error;
};

/* Fails with the value of a key, and `but`, which continues the sentence. */
static int refuse_value(const struct adapter_reader *reader, const char *key, const char *but,
                        const char *wanted) {
    const cJSON *member = json_member(reader->root, key);
    char *found = member ? cJSON_PrintUnformatted(member) : NULL;
    int status = fail(reader->error, "%s: %s is %.80s,\n%s %s", reader->where, key,
                      found ? found : "missing", but, wanted);
    cJSON_free(found);
    return status;
}

static int refuse(const struct adapter_reader *reader, const char *key, const char *wanted) {
    return refuse_value(reader, key, "but mantissa's adapters need", wanted);
}

/* True if the key is absent, null, false, "none" or empty. */
static bool is_unused(const cJSON *member) {
    return !member || cJSON_IsNull(member) || cJSON_IsFalse(member) ||
           (cJSON_IsString(member) && strcmp(member->valuestring, "none") == 0) ||
           ((cJSON_IsObject(member) || cJSON_IsArray(member)) && !member->child);
}

/* Keys of LoraConfig that are read here, or do not change what an adapter computes once it is
 * trained. Any other key is refused unless its value is empty (is_unused), since it may
 * change the result. */
static const char *const known_keys[] = {
    "peft_type",
    "base_model_name_or_path",
    "r",
    "lora_alpha",
    "use_rslora",
    "target_modules",
    "init_lora_weights",
    "task_type",
    "auto_mapping",
    "peft_version",
    "revision",
    "inference_mode",
    "runtime_config",
    "lora_dropout",
    "fan_in_fan_out",      /* the kind of layer decides */
    "layers_pattern",      /* matters with layers_to_transform */
    "ensure_weight_tying", /* matters with modules_to_save */
    "qalora_group_size",   /* matters with use_qalora */
    "megatron_core",       /* matters with megatron_config */
    "eva_config",
    "corda_config",
    "lora_ga_config",
    "loftq_config", /* initializations */
};

/* Refuses initializations that subtract something from the base, which only PEFT's own files of
 * that base or a conversion make right again. */
static int check_initialization(const struct adapter_reader *reader) {
    static const char key[] = "init_lora_weights";
    static const char *const keep_base[] = {"gaussian", "eva", "orthogonal", "mica", "lora_ga"};
    static const char *const change_base[] = {"pissa", "corda", "olora", "loftq"};
    const cJSON *kind = json_member(reader->root, key);
    if (!kind || cJSON_IsNull(kind) || cJSON_IsBool(kind)) return 0;
    const char *name = cJSON_IsString(kind) ? kind->valuestring : "";
    for (size_t i = 0; i < sizeof keep_base / sizeof *keep_base; i++)
        if (strcasecmp(name, keep_base[i]) == 0) return 0;
    for (size_t i = 0; i < sizeof change_base / sizeof *change_base; i++)
        if (strncasecmp(name, change_base[i], strlen(change_base[i])) == 0)
            return refuse(reader, key,
                          "one that left its base unchanged\nsave the adapter again by PEFT's "
                          "save_pretrained with path_initial_model_for_weight_conversion, or merge "
                          "it there");
    return refuse(reader, key, "true, false, or an initialization that PEFT is known to have");
}

/* Refuses what would change the result and is not supported, and keys that are not known. */
static int check_kind(const struct adapter_reader *reader) {
    const char *type = json_text(reader->root, "peft_type");
    const cJSON *member;
    const size_t count = sizeof known_keys / sizeof *known_keys;
    if (!type || strcmp(type, "LORA") != 0) return refuse(reader, "peft_type", "\"LORA\"");
    cJSON_ArrayForEach(member, reader->root) {
        size_t i = 0;
        while (i < count && strcmp(known_keys[i], member->string) != 0) i++;
        const bool towers = strcmp(member->string, "exclude_modules") == 0 &&
                            cJSON_IsString(member) &&
                            strcmp(member->valuestring, tower_modules) == 0;
        if (i < count || is_unused(member) || towers) continue;
        const bool whole = strcmp(member->string, "modules_to_save") == 0;
        return refuse(
            reader, member->string,
            whole ? "none of it: whole weights. Merge them in PEFT (merge_and_unload), save "
                    "the model and the tokenizer, and give that folder to model.init_from"
                  : "none of it: it is of another kind of adapter, or unknown");
    }
    return check_initialization(reader);
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

/* Stores the names that select the modules of target_modules in the model of the config. */
static int read_targets(const struct adapter_reader *reader) {
    const struct config_option *option = config_option_of("adapter.targets");
    struct config resolved = *reader->config;
    struct config_words list = {0};
    struct error reason;
    unsigned targets;
    config_resolve(&resolved);
    struct model_shape shape = config_shape(&resolved);
    if (adapter_targets_match(&targets, json_member(reader->root, "target_modules"), &shape,
                              &reason))
        return refuse_value(reader, "target_modules", "which", reason.text);
    shape.adapter_targets = targets;
    for (enum adapter_target i = 0; i < ADAPTER_TARGET_COUNT; i++) {
        if (!(targets >> i & 1)) continue;
        const char *const *name = option->names;
        while (strcmp(*name, adapter_target_name(&shape, i)) != 0) name++;
        list.items[list.count++] = *name;
        targets &= ~adapter_targets_named(&shape, *name);
    }
    if (takes(reader->config, "adapter.targets")) reader->config->adapter.targets = list;
    return 0;
}

int adapter_read_config(struct config *config, const char *directory, struct error *error) {
    struct json_file file;
    struct config read = *config;
    if (json_file_open_in(&file, directory, adapter_config_name, error)) return -1;
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
    if (json_file_open_in(&file, directory, adapter_config_name, error)) return -1;
    const char *path = json_text(file.root, "base_model_name_or_path");
    bool fits = path && strlen(path) < CONFIG_STRING_MAX;
    if (fits) strcpy(base, path);
    int status = fits ? 0
                      : fail(error,
                             "%s: base_model_name_or_path is no path\nname the folder of "
                             "the base model there",
                             file.where);
    json_file_close(&file);
    return status;
}
