#include "model/io/huggingface_larger.h"

#include <stddef.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "data/util/json.h"

static const char language[] = "model.language_model.", text_model[] = "model.text_model.";

const struct larger_model larger_models[] = {
    {"gemma3", "gemma3_text", FAMILY_GEMMA3, false, language, 0, 0, 0, 0, 0},
    {"qwen2_vl", "qwen2_vl_text", FAMILY_QWEN2, true, language, 8, 1e-5, 1e6, 151643, 151645},
    {"qwen2_5_vl", "qwen2_5_vl_text", FAMILY_QWEN2, true, language, 8, 1e-5, 1e6, 151643, 151645},
    {"qwen3_vl", "qwen3_vl_text", FAMILY_QWEN3, false, language, 0, 0, 5e5, 0, 0},
    {"qwen3_5", "qwen3_5_text", FAMILY_QWEN3_5, false, language, 0, 0, 0, 0, 0},
    {"mistral3", "mistral", FAMILY_MISTRAL, false, language, 0, 0, 0, 0, 0},
    {"smolvlm", "llama", FAMILY_LLAMA, false, text_model, 0, 0, 0, 0, 0},
    {"idefics3", "llama", FAMILY_LLAMA, false, text_model, 0, 0, 0, 0, 0},
    {NULL, NULL, FAMILY_GPT2, false, NULL, 0, 0, 0, 0, 0},
};

const struct larger_model *larger_model_of(const cJSON *root) {
    const char *type = json_text(root, "model_type");
    for (const struct larger_model *row = larger_models; type && row->type; row++)
        if (strcmp(row->type, type) == 0) return row;
    return NULL;
}

const cJSON *larger_model_text(const cJSON *root) {
    const struct larger_model *row = larger_model_of(root);
    const cJSON *text = json_member(root, "text_config");
    if (!row) return NULL;
    return cJSON_IsObject(text) ? text : row->flat && !text ? root : NULL;
}

bool larger_model_family(enum model_family *family, const cJSON *root) {
    const struct larger_model *row = larger_model_of(root);
    const cJSON *text = larger_model_text(root);
    const char *type = json_text(text, "model_type");
    if (!text) return false;
    *family = row->family;
    if (!type || text == root || strcmp(type, row->text_type) == 0) return true;
    for (enum model_family i = FAMILY_GPT2 + 1; i < FAMILY_COUNT; i++)
        if (strcmp(type, families[i].type) == 0) {
            *family = i;
            return true;
        }
    return false;
}

const char *larger_model_module(const char *directory) {
    struct json_file file;
    struct error ignored;
    if (!directory[0] || json_file_open_optional(&file, directory, "config.json", &ignored))
        return NULL;
    const struct larger_model *row = larger_model_of(file.root);
    json_file_close(&file);
    return row ? row->module : NULL;
}
