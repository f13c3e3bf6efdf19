/* Expected values are those of transformers 5.24: AutoConfig.from_pretrained of the same file, and
 * the frequencies of LlamaRotaryEmbedding. */
#include "data/util/files.h"
#include "test/model/io/checkpoint_fixture.h"

#include "model/io/huggingface.h"
#include "model/io/huggingface_keys.h"

TestSuite(huggingface_keys, .init = make_folder, .fini = remove_folder);

#define SIZES                                                               \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"hidden_size\":64," \
    "\"intermediate_size\":200,\"max_position_embeddings\":64,\"vocab_size\":331"

/* Reads a config.json of these members after its sizes. */
static int read_members(struct config *config, const char *type, const char *sizes,
                        const char *members) {
    char text[1200];
    const int size =
        snprintf(text, sizeof text, "{\"model_type\":\"%s\",%s%s}", type, sizes, members);
    cr_assert(file_write_whole(in_folder("config.json"), text, (size_t)size, NULL, &error) == 0);
    config_defaults(config);
    return huggingface_read_config(config, folder, &error);
}

#define LLAMA3 \
    "\"rope_type\":\"llama3\",\"factor\":4,\"low_freq_factor\":1.5,\"high_freq_factor\":3"

Test(huggingface_keys, rope_is_read_from_both_objects) {
    static const struct {
        const char *members;
        double theta;
        int64_t original; /* 0: unscaled */
    } cases[] = {
        {"", 10000, 0},
        {",\"rope_theta\":5e5", 5e5, 0},
        {",\"rope_scaling\":null,\"rope_parameters\":null,\"rope_theta\":5e5", 5e5, 0},
        {",\"rope_scaling\":{},\"rope_parameters\":{},\"rope_theta\":5e5", 5e5, 0},
        {",\"rope_scaling\":{\"factor\":2}", 10000, 0},
        {",\"rope_theta\":null,\"rope_parameters\":{\"rope_theta\":7.0}", 7, 0},
        {",\"rope_theta\":9,\"rope_scaling\":{\"rope_theta\":7,\"rope_type\":\"default\"}", 7, 0},
        {",\"rope_theta\":9,\"rope_parameters\":{\"rope_type\":\"default\"}", 9, 0},
        {",\"rope_scaling\":{},\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}", 7,
         0},
        {",\"rope_scaling\":{\"rope_type\":\"default\"},\"rope_theta\":9,"
         "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":7}",
         9, 0},
        {",\"rope_scaling\":{\"type\":\"linear\",\"rope_type\":\"default\",\"factor\":2}", 10000,
         0},
        {",\"rope_scaling\":{" LLAMA3 "},\"rope_theta\":5e5", 5e5, 64},
        {",\"rope_parameters\":{" LLAMA3 "}", 10000, 64},
        {",\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":32,\"rope_theta\":7},"
         "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":9}",
         7, 32},
        {",\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":32},"
         "\"original_max_position_embeddings\":16,\"rope_theta\":5e5",
         5e5, 16},
        {",\"rope_scaling\":{\"type\":\"default\"},\"rope_parameters\":{" LLAMA3 "}", 10000, 0},
        {",\"partial_rotary_factor\":0.5", 10000, 0},
        {",\"partial_rotary_factor\":0.5,"
         "\"rope_scaling\":{" LLAMA3 ",\"partial_rotary_factor\":1}",
         10000, 64},
    };
    struct config config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        cr_expect_eq(read_members(&config, "llama", SIZES, cases[i].members), 0, "%s\n%s",
                     cases[i].members, error.text);
        cr_expect_eq(config.model.rope_theta, cases[i].theta, "%s", cases[i].members);
        cr_expect_eq(config.model.rope_scaling, cases[i].original ? ROPE_LLAMA3 : ROPE_UNSCALED,
                     "%s", cases[i].members);
        if (cases[i].original)
            cr_expect_eq(config.model.rope_original_positions, cases[i].original, "%s",
                         cases[i].members);
    }
}

/* Kinds that are not computed here, or that transformers cannot read, in either object. */
Test(huggingface_keys, other_ropes_are_refused_by_name) {
    static const char *const kinds[] = {"longrope", "proportional", "none", "su", "mrope"};
    static const char *const objects[] = {"rope_scaling", "rope_parameters"};
    static const struct {
        const char *members, *reason;
    } others[] = {
        {",\"rope_theta\":null", "rope_theta is null"},
        {",\"rope_parameters\":{\"rope_theta\":null}", "rope_parameters.rope_theta is null"},
        {",\"rope_parameters\":{\"rope_type\":null}", "rope_parameters.rope_type is null"},
        {",\"rope_scaling\":\"x\"", "rope_scaling is \"x\""},
        {",\"rope_scaling\":{" LLAMA3 "},\"partial_rotary_factor\":0.5",
         "partial_rotary_factor is 0.5"},
        {",\"rope_scaling\":{" LLAMA3 ",\"original_max_position_embeddings\":null}",
         "original_max_position_embeddings is null"},
        {",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":4}}",
         "rope_parameters.full_attention is"},
    };
    struct config config;
    for (size_t i = 0; i < COUNT(kinds) * 8; i++) {
        const char *other = i / 4 % 2 ? ",\"rope_scaling\":{\"rope_type\":\"default\"}" : "";
        const char *object = objects[i / 4 % 2], *key = i % 2 ? "type" : "rope_type";
        char members[300], reason[80];
        snprintf(members, sizeof members, ",\"%s\":{\"%s\":\"%s\",\"factor\":1.0}%s", object, key,
                 kinds[i / 8], i % 4 > 1 ? other : "");
        snprintf(reason, sizeof reason, "%s.%s is \"%s\"", object, key, kinds[i / 8]);
        cr_expect_eq(read_members(&config, i % 3 ? "llama" : "qwen3", SIZES, members), -1, "%s",
                     members);
        expect_text(error.text, reason);
    }
    for (size_t i = 0; i < COUNT(others); i++) {
        cr_expect_eq(read_members(&config, "llama", SIZES, others[i].members), -1, "%s",
                     others[i].members);
        expect_text(error.text, others[i].reason);
    }
}

#define YARN "\"rope_type\":\"yarn\",\"original_max_position_embeddings\":16"

Test(huggingface_keys, scaled_ropes_are_read) {
    static const struct {
        const char *members;
        enum rope_scaling kind;
        double theta, factor;
        int64_t positions, original; /* original 0: not used */
        double attention, fast, slow;
        bool truncate;
    } cases[] = {
        {",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}", ROPE_LINEAR, 1e4, 4, 64, 0, 0, 32,
         1, true},
        {",\"rope_parameters\":{\"rope_type\":\"dynamic\",\"factor\":2.55,\"rope_theta\":7}",
         ROPE_DYNAMIC, 7, 2.55, 163, 64, 0, 32, 1, true},
        {",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4}", ROPE_YARN, 1e4, 4, 64, 64, 0, 32, 1,
         true},
        {",\"rope_scaling\":{" YARN ",\"factor\":4,\"attention_factor\":0.5,\"beta_fast\":16,"
         "\"beta_slow\":2,\"truncate\":false,\"mscale\":3,\"mscale_all_dim\":2},\"rope_theta\":9",
         ROPE_YARN, 9, 4, 64, 16, 0.5, 16, 2, false},
        {",\"rope_parameters\":{" YARN ",\"factor\":null,\"attention_factor\":null,"
         "\"beta_fast\":null,\"beta_slow\":null,\"truncate\":null,\"finetuned\":null}",
         ROPE_YARN, 1e4, 4, 64, 16, 0, 32, 1, false},
        {",\"rope_scaling\":{" YARN ",\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":1.3}",
         ROPE_YARN, 1e4, 4, 64, 16, 0.9295234923939468, 32, 1, true},
        {",\"rope_scaling\":{" YARN ",\"factor\":4,\"mscale\":0.7}", ROPE_YARN, 1e4, 4, 64, 16, 0,
         32, 1, true},
        {",\"rope_scaling\":{" YARN ",\"factor\":4,\"mscale\":0.7,\"mscale_all_dim\":0}", ROPE_YARN,
         1e4, 4, 64, 16, 0, 32, 1, true},
        {",\"rope_scaling\":{" YARN ",\"factor\":4},\"original_max_position_embeddings\":8",
         ROPE_YARN, 1e4, 4, 64, 8, 0, 32, 1, true},
        {",\"rope_scaling\":{\"rope_type\":\"linear\",\"type\":\"yarn\",\"factor\":3},"
         "\"rope_parameters\":{" YARN ",\"factor\":4,\"rope_theta\":5}",
         ROPE_LINEAR, 1e4, 3, 64, 0, 0, 32, 1, true},
    };
    static const char *const types[] = {"llama", "mistral", "qwen2", "qwen3"};
    struct config config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *text = cases[i].members;
        cr_expect_eq(read_members(&config, types[i % 4], SIZES, text), 0, "%s\n%s", text,
                     error.text);
        cr_expect_eq(config.model.rope_scaling, cases[i].kind, "%s", text);
        cr_expect_eq(config.model.rope_theta, cases[i].theta, "%s", text);
        cr_expect_eq(config.model.rope_factor, cases[i].factor, "%s", text);
        cr_expect_eq(config.model.n_positions, cases[i].positions, "%s", text);
        if (cases[i].original)
            cr_expect_eq(config.model.rope_original_positions, cases[i].original, "%s", text);
        cr_expect_float_eq(config.model.rope_attention_factor, cases[i].attention, 1e-15, "%s",
                           text);
        cr_expect_eq(config.model.rope_beta_fast, cases[i].fast, "%s", text);
        cr_expect_eq(config.model.rope_beta_slow, cases[i].slow, "%s", text);
        cr_expect_eq(config.model.rope_truncate, cases[i].truncate, "%s", text);
    }
}

/* Settings that a kind lacks, or whose values it cannot compute with. */
Test(huggingface_keys, other_settings_of_ropes_are_refused) {
    static const struct {
        const char *members, *reason;
    } cases[] = {
        {"\"rope_type\":\"linear\"", "rope_scaling.factor is missing"},
        {"\"rope_type\":\"linear\",\"factor\":0.5", "rope_scaling.factor is 0.5"},
        {"\"rope_type\":\"linear\",\"factor\":null", "rope_scaling.factor is null"},
        {"\"rope_type\":\"linear\",\"factor\":2,\"beta_fast\":32", "rope_scaling.beta_fast is 32"},
        {"\"rope_type\":\"linear\",\"factor\":2,\"partial_rotary_factor\":0.5",
         "rope_scaling.partial_rotary_factor is 0.5"},
        {"\"rope_type\":\"dynamic\",\"factor\":2,\"alpha\":1000", "rope_scaling.alpha is 1000"},
        {"\"rope_type\":\"dynamic\",\"factor\":2,\"original_max_position_embeddings\":16",
         "rope_scaling.original_max_position_embeddings is 16"},
        {"\"rope_type\":\"dynamic\",\"factor\":20000", "rope_scaling.factor is 20000"},
        {YARN ",\"factor\":4,\"finetuned\":true", "rope_scaling.finetuned is true"},
        {YARN ",\"factor\":4,\"low_freq_factor\":1", "rope_scaling.low_freq_factor is 1"},
        {YARN ",\"factor\":4,\"attention_factor\":0", "rope_scaling.attention_factor is 0"},
        {YARN ",\"factor\":4,\"mscale\":\"x\"", "rope_scaling.mscale is \"x\""},
        {YARN ",\"factor\":4,\"mscale_all_dim\":-1", "rope_scaling.mscale_all_dim is -1"},
        {YARN ",\"factor\":4,\"truncate\":1", "rope_scaling.truncate is 1"},
        {"\"rope_type\":\"yarn\",\"factor\":null,\"original_max_position_embeddings\":128",
         "rope_scaling.factor is null"},
        {LLAMA3 ",\"attention_factor\":1", "rope_scaling.attention_factor is 1"},
    };
    struct config config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char members[300];
        snprintf(members, sizeof members, ",\"rope_scaling\":{%s}", cases[i].members);
        cr_expect_eq(read_members(&config, "llama", SIZES, members), -1, "%s", members);
        expect_text(error.text, cases[i].reason);
    }
}

/* GPT2Config maps the names of other classes to its own, and they win. */
Test(huggingface_keys, a_gpt2_may_have_the_names_of_others) {
    struct config config;
    SUCCEEDS(read_members(&config, "gpt2", SIZES, ",\"n_embd\":24,\"n_ctx\":16"));
    cr_expect(config.model.n_embd == 64 && config.model.n_layer == 2 && config.model.n_head == 4);
    cr_expect_eq(config.model.n_positions, 64);
    cr_expect_eq(config.model.norm_eps, 1e-5);
}

/* All are tanh's approximation or SiLU, equal to 1e-12 in fp64. */
Test(huggingface_keys, activations_have_other_names) {
    static const char *const names[] = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast",
                                        "gelu_accurate", "gelu_python_tanh"};
    struct config config;
    for (size_t i = 0; i < COUNT(names); i++) {
        char member[80];
        snprintf(member, sizeof member, ",\"activation_function\":\"%s\"", names[i]);
        SUCCEEDS(read_members(&config, "gpt2", SIZES, member));
        cr_expect_eq(read_members(&config, "gpt2", SIZES, ",\"activation_function\":\"gelu_ne\""),
                     -1);
    }
    SUCCEEDS(read_members(&config, "qwen2", SIZES, ",\"hidden_act\":\"swish\""));
}

/* Classes ignore keys that they lack, and files may have keys that nobody knows. */
Test(huggingface_keys, keys_of_other_classes_are_ignored) {
    static const char members[] =
        ",\"attention_bias\":true,\"mlp_bias\":true,\"pretraining_tp\":4,\"some_key\":{\"a\":[1]}";
    struct config config;
    SUCCEEDS(read_members(&config, "mistral", SIZES, members));
    cr_expect_eq(config.model.bias, BIAS_NONE);
    SUCCEEDS(read_members(&config, "qwen2", SIZES, members));
    cr_expect_eq(config.model.bias, BIAS_QKV);
    SUCCEEDS(read_members(&config, "llama", SIZES, ",\"layer_types\":[\"x\"],\"attn_scale\":2"));
    SUCCEEDS(read_members(&config, "gpt2", SIZES, ",\"rope_scaling\":{\"rope_type\":\"yarn\"}"));
}

/* Returns the number of rows for a key of a class. */
static int count_rows(const char *key, int class) {
    int rows = 0;
    for (size_t i = 0; i < huggingface_key_count; i++)
        rows += huggingface_keys[i].families & class && strcmp(huggingface_keys[i].key, key) == 0;
    return rows;
}

Test(huggingface_keys, a_key_has_one_row_for_a_class) {
    for (size_t i = 0; i < huggingface_key_count; i++) {
        const struct huggingface_key *row = &huggingface_keys[i];
        for (int class = 1; class < IN_ALL; class *= 2)
            if (row->families & class) cr_expect_eq(count_rows(row->key, class), 1, "%s", row->key);
        cr_expect((row->path != NULL) != (row->allowed != NULL), "%s", row->key);
    }
}
