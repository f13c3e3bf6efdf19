/* adapter_config.json as PEFT reads it: the modules that are selected, and what is refused. */
#include "model/io/adapter_config.h"
#include "model/io/adapter_targets.h"
#include "model/io/tensor_files.h"

#include <cjson/cJSON.h>

#include "model/config/config_keys.h"
#include "test/model/families.h"
#include "test/model/io/checkpoint_fixture.h"
#include "test/model/io/foreign_weights.h"

TestSuite(adapter_config, .init = make_folder, .fini = remove_folder);

static void two_layers(struct config *config, int family) {
    config_defaults(config);
    set_family(config, family);
    config->model.n_layer = 2;
}

/* Results of PEFT 0.21.2 with models of two layers, for GPT-2 (0) and Llama (1): the linear layers
 * that get an adapter, or -1 if it fails, or if these are not the same in all layers or include the
 * head or the embedding. */
static const struct {
    int family;
    const char *modules;
    int targets;
} selections[] = {
    {0, "\"all-linear\"", 0x59},
    {1, "\"all-linear\"", 0x7f},
    {0, "[\"q_proj\", \"v_proj\"]", -1},
    {1, "[\"q_proj\", \"v_proj\"]", 0x5},
    {0, "[\"down_proj\", \"q_proj\", \"nothing\"]", -1},
    {1, "[\"down_proj\", \"q_proj\", \"nothing\"]", 0x41},
    {0, "[\"self_attn.q_proj\"]", -1},
    {1, "[\"self_attn.q_proj\"]", 0x1},
    {0, "[\"attn.c_proj\"]", 0x8},
    {1, "[\"attn.c_proj\"]", -1},
    {0, "[\"mlp.c_proj\", \"c_attn\"]", 0x41},
    {1, "[\"mlp.c_proj\", \"c_attn\"]", -1},
    {0, "[\"c_proj\"]", 0x48},
    {1, "[\"c_proj\"]", -1},
    {0, "[\"proj\"]", -1},
    {1, "[\"proj\"]", -1},
    {0, "[\"attn.q_proj\"]", -1},
    {1, "[\"attn.q_proj\"]", -1},
    {0, "[\"model.layers.0.self_attn.q_proj\", \"model.layers.1.self_attn.q_proj\"]", -1},
    {1, "[\"model.layers.0.self_attn.q_proj\", \"model.layers.1.self_attn.q_proj\"]", 0x1},
    {0, "[\"model.layers.0.self_attn.q_proj\"]", -1},
    {1, "[\"model.layers.0.self_attn.q_proj\"]", -1},
    {0, "[\"layers.1.mlp.up_proj\", \"layers.0.mlp.up_proj\"]", -1},
    {1, "[\"layers.1.mlp.up_proj\", \"layers.0.mlp.up_proj\"]", 0x20},
    {0, "[\"1.mlp.up_proj\", \"0.mlp.up_proj\"]", -1},
    {1, "[\"1.mlp.up_proj\", \"0.mlp.up_proj\"]", 0x20},
    {0, "[\"transformer.h.0.attn.c_proj\", \"transformer.h.1.attn.c_proj\"]", 0x8},
    {1, "[\"transformer.h.0.attn.c_proj\", \"transformer.h.1.attn.c_proj\"]", -1},
    {0, "[\"h.0.mlp.c_fc\", \"h.1.mlp.c_fc\"]", 0x10},
    {1, "[\"h.0.mlp.c_fc\", \"h.1.mlp.c_fc\"]", -1},
    {0, "[\"q_proj\", \"lm_head\"]", -1},
    {1, "[\"q_proj\", \"lm_head\"]", -1},
    {0, "[\"lm_head\"]", -1},
    {1, "[\"lm_head\"]", -1},
    {0, "[\"embed_tokens\", \"q_proj\"]", -1},
    {1, "[\"embed_tokens\", \"q_proj\"]", -1},
    {0, "\".*proj\"", 0x48},
    {1, "\".*proj\"", 0x7f},
    {0, "\".*\\\\.(q|v)_proj\"", -1},
    {1, "\".*\\\\.(q|v)_proj\"", 0x5},
    {0, "\".*\\\\.[qkvo]_proj\"", -1},
    {1, "\".*\\\\.[qkvo]_proj\"", 0xf},
    {0, "\"q_proj\"", -1},
    {1, "\"q_proj\"", -1},
    {0, "\"model\\\\.layers\\\\.0\\\\..*_proj\"", -1},
    {1, "\"model\\\\.layers\\\\.0\\\\..*_proj\"", -1},
    {0, "\".*self_attn.*?(q_proj|o_proj)\"", -1},
    {1, "\".*self_attn.*?(q_proj|o_proj)\"", 0x9},
    {0, "\".*\\\\.mlp\\\\.(gate|up|down)_proj\"", -1},
    {1, "\".*\\\\.mlp\\\\.(gate|up|down)_proj\"", 0x70},
    {0, "\"^.*\\\\.(c_attn|q_proj)$\"", 0x1},
    {1, "\"^.*\\\\.(c_attn|q_proj)$\"", 0x1},
    {0, "\".*\\\\.h\\\\.[0-9]{1,2}\\\\.(attn|mlp)\\\\.c_proj\"", 0x48},
    {1, "\".*\\\\.h\\\\.[0-9]{1,2}\\\\.(attn|mlp)\\\\.c_proj\"", -1},
    {0, "\"transformer\\\\.h\\\\.\\\\w+\\\\.attn\\\\.c_.*\"", 0x9},
    {1, "\"transformer\\\\.h\\\\.\\\\w+\\\\.attn\\\\.c_.*\"", -1},
    {0, "\".*_proj|lm_head\"", -1},
    {1, "\".*_proj|lm_head\"", -1},
    {0, "\"(.*)layers(.*)(down)_proj\"", -1},
    {1, "\"(.*)layers(.*)(down)_proj\"", 0x40},
    {0, "\".*\\\\.[^k]_proj\"", 0x48},
    {1, "\".*\\\\.[^k]_proj\"", 0xd},
    {0, "\".*(c_fc|up_proj)\"", 0x10},
    {1, "\".*(c_fc|up_proj)\"", 0x20},
};

Test(adapter_config, selects_the_modules_that_peft_selects) {
    for (size_t i = 0; i < COUNT(selections); i++) {
        struct config config;
        two_layers(&config, selections[i].family);
        struct model_shape shape = config_shape(&config);
        cJSON *modules = cJSON_Parse(selections[i].modules);
        unsigned targets = 0;
        cr_assert_not_null(modules, "%s", selections[i].modules);
        int status = adapter_targets_match(&targets, modules, &shape, &error);
        cr_expect_eq(status ? -1 : (int)targets, selections[i].targets, "%s in family %d: %d, %x",
                     selections[i].modules, selections[i].family, status, targets);
        cJSON_Delete(modules);
    }
}

/* Each of these is refused, not matched in another way than Python would. */
/* PEFT passes the keys of the file to a class, which fails with one that it lacks. The list is that
 * of PEFT 0.4. Later releases read the same, and use_rslora from 0.8 on. */
Test(adapter_config, has_keys_that_old_releases_of_peft_know) {
    static const char known[] = " auto_mapping base_model_name_or_path bias fan_in_fan_out "
                                "inference_mode init_lora_weights layers_pattern "
                                "layers_to_transform lora_alpha lora_dropout modules_to_save "
                                "peft_type r revision target_modules task_type ";
    for (int i = 0; i < 4; i++) {
        struct config config;
        char *text, name[40];
        size_t size;
        two_layers(&config, i % 2);
        config.adapter.type = CONFIG_ADAPTER_LORA;
        config.adapter.rslora = i >= 2;
        FILE *out = open_memstream(&text, &size);
        adapter_print_config(out, &config);
        fclose(out);
        cJSON *root = cJSON_Parse(text), *member;
        cJSON_ArrayForEach(member, root) {
            snprintf(name, sizeof name, " %s ", member->string);
            cr_expect(strstr(known, name) || (i >= 2 && strcmp(name, " use_rslora ") == 0), "%s",
                      name);
        }
        cr_expect_eq(cJSON_IsTrue(cJSON_GetObjectItem(root, "use_rslora")), i >= 2, "%s", text);
        cJSON_Delete(root);
        free(text);
    }
}

Test(adapter_config, refuses_expressions_that_it_cannot_translate) {
    static const char *const patterns[] = {
        ".*\\.(?!k_proj)\\w_proj",
        "(?P<a>.*)\\.v_proj",
        "(?i).*Q_PROJ",
        ".*\\b(q_proj)",
        ".*\\.(q)_\\1proj",
        "(.*q_proj",
        ".*[q_proj",
        ".*q_proj\\",
        ".*[[:alpha:]]_proj",
        ".*+q_proj",
        ".**",
        "(.{99}){99}q_proj",
        ".{,3}q_proj",
        ".*q_proj{x}",
    };
    struct config config;
    two_layers(&config, 1);
    struct model_shape shape = config_shape(&config);
    for (size_t i = 0; i < COUNT(patterns); i++) {
        cJSON *modules = cJSON_CreateString(patterns[i]);
        unsigned targets;
        cr_expect_eq(adapter_targets_match(&targets, modules, &shape, &error), -1, "%s",
                     patterns[i]);
        cr_expect_not_null(strstr(error.text, "not supported"), "%s: %s", patterns[i], error.text);
        cJSON_Delete(modules);
    }
}

/* Reads a config with one member more, on a GPT-2 of two layers. */
static int read_with(struct config *config, const char *member) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 8, \"target_modules\": "
             "[\"attn.c_proj\", \"c_fc\"], %s}",
             member);
    put_text("adapter_config.json", text);
    two_layers(config, 0);
    error.text[0] = '\0';
    return adapter_read_config(config, folder, &error);
}

Test(adapter_config, accepts_what_leaves_a_trained_adapter_as_it_is) {
    static const char *const members[] = {
        "\"init_lora_weights\": true",
        "\"init_lora_weights\": false",
        "\"init_lora_weights\": \"gaussian\"",
        "\"init_lora_weights\": \"eva\", \"eva_config\": {\"rho\": 2.0}",
        "\"init_lora_weights\": \"orthogonal\"",
        "\"init_lora_weights\": \"mica\"",
        "\"init_lora_weights\": \"lora_ga\", \"lora_ga_config\": {\"direction\": \"ArB2r\"}",
        "\"auto_mapping\": {\"base_model_class\": \"GPT2LMHeadModel\"}",
        "\"megatron_core\": \"megatron.core\", \"qalora_group_size\": 16",
        "\"lora_dropout\": 0.1, \"revision\": \"main\", \"peft_version\": \"0.21.2\"",
        "\"kasa_config\": null, \"use_bdlora\": null, \"a_later_key\": {}",
        "\"fan_in_fan_out\": true, \"bias\": \"none\", \"rank_pattern\": {}",
    };
    for (size_t i = 0; i < COUNT(members); i++) {
        struct config config;
        cr_expect_eq(read_with(&config, members[i]), 0, "%s: %s", members[i], error.text);
        cr_expect_eq(config.adapter.targets.count, 2);
        cr_expect_str_eq(config.adapter.targets.items[0], "attn.c_proj");
        cr_expect_str_eq(config.adapter.targets.items[1], "c_fc");
    }
}

Test(adapter_config, refuses_by_name_what_changes_the_result) {
    static const char *const members[][2] = {
        {"init_lora_weights", "\"pissa\""},
        {"init_lora_weights", "\"pissa_niter_16\""},
        {"init_lora_weights", "\"olora\""},
        {"init_lora_weights", "\"OLoRA\""},
        {"init_lora_weights", "\"corda\""},
        {"init_lora_weights", "\"loftq\""},
        {"init_lora_weights", "\"a_later_one\""},
        {"init_lora_weights", "3"},
        {"kasa_config", "{\"beta\": 0.0001}"},
        {"use_bdlora", "{\"nblocks\": 2}"},
        {"use_bdlora", "true"},
        {"velora_config", "{\"num_groups\": 64}"},
        {"monteclora_config", "{\"num_samples\": 8}"},
        {"arrow_config", "{\"top_k\": 3}"},
        {"layers_to_transform", "[0]"},
        {"layers_to_transform", "0"},
        {"alpha_pattern", "{\"c_fc\": 4}"},
        {"exclude_modules", "\".*0.*\""},
        {"lora_bias", "true"},
        {"target_parameters", "[\"x\"]"},
        {"trainable_token_indices", "[1]"},
        {"a_later_key", "true"},
        {"a_later_key", "{\"x\": 1}"},
    };
    for (size_t i = 0; i < COUNT(members); i++) {
        struct config config;
        char member[128];
        snprintf(member, sizeof member, "\"%s\": %s", members[i][0], members[i][1]);
        cr_expect_eq(read_with(&config, member), -1, "%s", member);
        cr_expect_not_null(strstr(error.text, members[i][0]), "%s: %s", member, error.text);
        cr_expect_eq(config.adapter.type, CONFIG_ADAPTER_NONE);
    }
    struct config config;
    read_with(&config, "\"init_lora_weights\": \"pissa\"");
    cr_expect_not_null(strstr(error.text, "path_initial_model_for_weight_conversion"));
}

/* A written file selects the same layers again. */
Test(adapter_config, one_of_two_layers_of_a_name) {
    struct config config, again;
    cr_assert_eq(read_with(&config, "\"bias\": \"none\""), 0, "%s", error.text);
    config.adapter.type = CONFIG_ADAPTER_LORA;
    FILE *out = fopen(in_folder("adapter_config.json"), "w");
    adapter_print_config(out, &config);
    fclose(out);
    two_layers(&again, 0);
    cr_assert_eq(adapter_read_config(&again, folder, &error), 0, "%s", error.text);
    cr_expect_eq(config_shape(&again).adapter_targets, 1u << ADAPTER_O | 1u << ADAPTER_GATE);
}

Test(adapter_config, weights_of_pickle_are_named) {
    struct tensor_files files;
    put_text("adapter_model.bin", "PK");
    cr_assert_eq(tensor_files_open_directory(&files, folder, "adapter_model", &error), -1);
    cr_expect_not_null(strstr(error.text, "adapter_model.bin: only safetensors"), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "AutoPeftModelForCausalLM"), "%s", error.text);
}
