/* config.json of models whose layers differ, or whose norms follow a branch alone: SmolLM3, OLMo 2
 * and 3, EXAONE 4. Values of published models' files; what transformers makes of absent keys. */
#include <string.h>

#include "model/architecture/families.h"
#include "model/config/config_check.h"
#include "test/model/families.h"
#include "test/model/io/huggingface_fixture.h"

TestSuite(huggingface_layers, .init = make_folder, .fini = remove_folder);

#define SMOLLM3_3B                                                                           \
    "{\"model_type\":\"smollm3\",\"hidden_size\":2048,\"intermediate_size\":11008,"          \
    "\"max_position_embeddings\":65536,\"num_attention_heads\":16,\"num_hidden_layers\":36," \
    "\"num_key_value_heads\":4,\"rms_norm_eps\":1e-06,\"vocab_size\":128256,"
#define OLMO_3_7B                                                                            \
    "{\"model_type\":\"olmo3\",\"hidden_size\":4096,\"intermediate_size\":11008,"            \
    "\"max_position_embeddings\":65536,\"num_attention_heads\":32,\"num_hidden_layers\":32," \
    "\"num_key_value_heads\":32,\"rms_norm_eps\":1e-06,\"vocab_size\":100278,"
#define YARN                                                                        \
    "\"attention_factor\":1.2079441541679836,\"beta_fast\":32.0,\"beta_slow\":1.0," \
    "\"factor\":8.0,\"original_max_position_embeddings\":8192,\"rope_type\":\"yarn\""
#define EXAONE_4_1_2B                                                                \
    "{\"model_type\":\"exaone4\",\"head_dim\":64,\"hidden_size\":2048,"              \
    "\"intermediate_size\":4096,\"max_position_embeddings\":65536,"                  \
    "\"num_attention_heads\":32,\"num_hidden_layers\":30,\"num_key_value_heads\":8," \
    "\"vocab_size\":102400,\"sliding_window\":null,\"sliding_window_pattern\":null," \
    "\"tie_word_embeddings\":true,"
#define LLAMA3                                                           \
    "{\"factor\":16.0,\"high_freq_factor\":4.0,\"low_freq_factor\":1.0," \
    "\"original_max_position_embeddings\":8192,\"rope_type\":\"llama3\""

#define QWEN3_5                                                                             \
    "{\"model_type\":\"qwen3_5_text\",\"attn_output_gate\":true,\"hidden_size\":1024,"      \
    "\"intermediate_size\":3584,\"max_position_embeddings\":262144,\"rms_norm_eps\":1e-06," \
    "\"num_attention_heads\":8,\"num_key_value_heads\":2,"                                  \
    "\"tie_word_embeddings\":true,\"vocab_size\":248320"
#define MROPE                                                                        \
    ",\"rope_parameters\":{\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]," \
    "\"partial_rotary_factor\":0.25,\"rope_theta\":10000000,\"rope_type\":\"default\"}"
#define MINISTRAL_3_3B                                                                          \
    "{\"model_type\":\"ministral3\",\"head_dim\":128,\"hidden_size\":3072,"                     \
    "\"intermediate_size\":9216,\"max_position_embeddings\":262144,\"num_attention_heads\":32," \
    "\"num_hidden_layers\":26,\"num_key_value_heads\":8,\"rms_norm_eps\":1e-05,"                \
    "\"tie_word_embeddings\":true,\"vocab_size\":131072,\"sliding_window\":null,"               \
    "\"rope_parameters\":{\"beta_fast\":32.0,\"beta_slow\":1.0,\"factor\":16.0,"                \
    "\"llama_4_scaling_beta\":0.1,\"mscale\":1.0,\"mscale_all_dim\":1.0,"                       \
    "\"original_max_position_embeddings\":16384,\"rope_theta\":1000000.0,\"rope_type\":\"yarn\"}}"

/* By older and by newer versions of transformers. */
static const struct {
    enum config_preset preset;
    enum model_family family;
    const char *text;
} published[] = {
    {CONFIG_PRESET_SMOLLM3_3B, FAMILY_SMOLLM3,
     SMOLLM3_3B "\"no_rope_layer_interval\":4,\"rope_scaling\":null,\"rope_theta\":5000000.0,"
                "\"use_sliding_window\":false,\"no_rope_layers\":[1,1,1,0,1,1,1,0,1,1,1,0,1,1,1,0,"
                "1,1,1,0,1,1,1,0,1,1,1,0,1,1,1,0,1,1,1,0]}"},
    {CONFIG_PRESET_SMOLLM3_3B, FAMILY_SMOLLM3,
     SMOLLM3_3B "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":5e6}}"},
    {CONFIG_PRESET_OLMO_2_1B, FAMILY_OLMO2,
     "{\"model_type\":\"olmo2\",\"attention_bias\":false,\"hidden_size\":2048,"
     "\"intermediate_size\":8192,\"max_position_embeddings\":4096,\"num_attention_heads\":16,"
     "\"num_hidden_layers\":16,\"num_key_value_heads\":16,\"rms_norm_eps\":1e-06,"
     "\"rope_scaling\":null,\"rope_theta\":500000,\"vocab_size\":100352}"},
    {CONFIG_PRESET_OLMO_3_7B, FAMILY_OLMO3,
     OLMO_3_7B "\"rope_scaling\":{" YARN "},\"rope_theta\":500000,\"sliding_window\":4096}"},
    {CONFIG_PRESET_OLMO_3_7B, FAMILY_OLMO3,
     OLMO_3_7B "\"rope_parameters\":{\"full_attention\":{\"rope_theta\":5e5," YARN "},"
               "\"sliding_attention\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}}}"},
    {CONFIG_PRESET_EXAONE_4_1_2B, FAMILY_EXAONE4,
     EXAONE_4_1_2B "\"rope_scaling\":" LLAMA3 "},\"rope_theta\":1000000}"},
    {CONFIG_PRESET_EXAONE_4_1_2B, FAMILY_EXAONE4,
     EXAONE_4_1_2B "\"rope_parameters\":" LLAMA3 ",\"rope_theta\":1000000}}"},
    {CONFIG_PRESET_QWEN3_5_0_8B, FAMILY_QWEN3_5,
     QWEN3_5 ",\"num_hidden_layers\":24,\"linear_num_value_heads\":16" MROPE "}"},
    {CONFIG_PRESET_MINISTRAL_3_3B, FAMILY_MINISTRAL3, MINISTRAL_3_3B},
    {CONFIG_PRESET_GLM_4_9B, FAMILY_GLM4,
     "{\"model_type\":\"glm4\",\"attention_bias\":true,\"head_dim\":128,\"hidden_size\":4096,"
     "\"intermediate_size\":13696,\"max_position_embeddings\":32768,\"num_attention_heads\":32,"
     "\"num_hidden_layers\":40,\"num_key_value_heads\":2,\"partial_rotary_factor\":0.5,"
     "\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,\"vocab_size\":151552}"},
};

Test(huggingface_layers, published_files_are_the_presets) {
    for (size_t i = 0; i < COUNT(published); i++) {
        struct config config, preset;
        config_defaults(&preset);
        config_apply_preset(&preset, published[i].preset);
        SUCCEEDS(read_config_text(&config, published[i].text));
        struct model_shape s = config_shape(&config), wanted = config_shape(&preset);
        if (wanted.rope_scaling == ROPE_YARN && s.rope_attention_factor > 1.2079) /* the default */
            wanted.rope_attention_factor = s.rope_attention_factor;
        if (wanted.rope_scaling == ROPE_UNSCALED)
            wanted.rope_original_positions = s.rope_original_positions;
        cr_expect_eq(shape_family(&s), published[i].family, "%zu", i);
#define X(size)            cr_expect_eq(s.size, wanted.size, "%zu: " #size, i);
#define Y(type, part, ...) cr_expect_eq(s.part, wanted.part, "%zu: " #part, i);
        MODEL_SIZES(X)
        MODEL_PARTS(Y)
#undef X
#undef Y
    }
}

#define LINEAR_LAYER "\"linear_attention\""
#define FULL_LAYER   "\"full_attention\""

/* Absent keys have the defaults of transformers; layers are an interval or a list. */
Test(huggingface_layers, gated_delta_nets) {
    struct config config;
    SUCCEEDS(read_config_text(&config, QWEN3_5 ",\"num_hidden_layers\":5}"));
    struct model_shape s = config_shape(&config);
    cr_expect_eq(shape_family(&s), FAMILY_QWEN3_5);
    cr_expect_eq(s.full_attention_interval, 4);
    cr_expect_eq(s.linear_num_key_heads, 16);
    cr_expect_eq(s.linear_num_value_heads, 32);
    cr_expect_eq(s.linear_key_head_dim, 128);
    cr_expect_eq(s.linear_value_head_dim, 128);
    cr_expect_eq(s.linear_conv_kernel_dim, 4);
    cr_expect_eq(s.partial_rotary_factor, 0.25);
    cr_expect_eq(s.rope_theta, 10000);
    SUCCEEDS(read_config_text(&config, QWEN3_5 MROPE
                              ",\"num_hidden_layers\":5,\"linear_num_value_heads\":48,"
                              "\"layer_types\":[" LINEAR_LAYER "," FULL_LAYER "," LINEAR_LAYER
                              "," FULL_LAYER "," LINEAR_LAYER "]}"));
    cr_expect_eq(config.model.full_attention_interval, 2);
    cr_expect_eq(config.model.linear_num_value_heads, 48);
    cr_expect_eq(config.model.rope_theta, 1e7);
}

#define SIZES_OF(type, layers)                                                      \
    "{\"model_type\":\"" type "\",\"hidden_size\":64,\"intermediate_size\":160,"    \
    "\"max_position_embeddings\":256,\"num_attention_heads\":4,\"vocab_size\":300," \
    "\"num_hidden_layers\":" layers

/* EXAONE 4 rotates in layers with a window alone; OLMo 3 scales positions in others alone, and an
 * older spelling's base is that of the others. */
Test(huggingface_layers, kinds_of_layers) {
    struct config config;
    SUCCEEDS(read_config_text(&config, SIZES_OF("exaone4", "9") ",\"sliding_window\":20,"
                                                                "\"sliding_window_pattern\":3}"));
    struct model_shape s = config_shape(&config);
    cr_expect(s.n_kv_head == 32 && s.norm_eps == 1e-5 && s.window == 20 && s.no_pre_norm);
    for (int64_t l = 0; l < 9; l++) {
        cr_expect_eq(shape_window(&s, l), l % 3 == 2 ? 0 : 20);
        cr_expect_eq(shape_rotates(&s, l), l % 3 != 2);
    }
    SUCCEEDS(read_config_text(&config, SIZES_OF("olmo3", "5") ",\"rope_theta\":1000}"));
    s = config_shape(&config);
    cr_expect(s.rope_theta == 1000 && s.rope_theta_window == 5e5 && s.window == 4096);
    cr_expect(s.n_kv_head == 4 && s.norm_eps == 1e-5 && s.window_pattern == 4 && !s.tied_head);
    SUCCEEDS(read_config_text(&config, SIZES_OF("smollm3", "8") ",\"no_rope_layer_interval\":3}"));
    s = config_shape(&config);
    cr_expect(s.rope_theta == 2e6 && s.tied_head && s.n_kv_head == 4 && s.norm_eps == 1e-6);
    for (int64_t l = 0; l < 8; l++) cr_expect_eq(shape_rotates(&s, l), l % 3 != 2);
    SUCCEEDS(read_config_text(&config, SIZES_OF("smollm3", "2") ",\"no_rope_layers\":[1,1,0]}"));
    s = config_shape(&config);
    cr_expect(s.no_rope_interval == 0 && shape_family(&s) == FAMILY_LLAMA);
}

Test(huggingface_layers, what_cannot_be_computed_is_refused_by_name) {
    static const struct {
        const char *text, *named;
    } cases[] = {
        {SIZES_OF("smollm3", "4") ",\"no_rope_layers\":[1,0,1,1]}", "no_rope_layers is [1,0,1,1]"},
        {SIZES_OF("smollm3", "4") ",\"no_rope_layers\":[0,1]}", "0 for each N-th layer"},
        {SIZES_OF("smollm3", "4") ",\"no_rope_layers\":[true,true,true,false]}",
         "0 for each N-th layer"},
        {SIZES_OF("smollm3", "2") ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "\"full_attention\" for each layer"},
        {SIZES_OF("smollm3", "2") ",\"layer_types\":[\"full_attention\"]}", "for each layer"},
        {SIZES_OF("smollm3", "4") ",\"use_sliding_window\":true}", "use_sliding_window is true"},
        {SIZES_OF("olmo2", "4") ",\"attention_bias\":true}", "attention_bias is true"},
        {SIZES_OF("olmo3", "4") ",\"sliding_window\":null}", "sliding_window is null"},
        {SIZES_OF("olmo3", "2") ",\"rope_scaling\":{\"rope_type\":\"longrope\"}}", "longrope"},
        {SIZES_OF("exaone4", "2") ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
         "the window in the first layer"},
        {SIZES_OF("exaone4", "1") ",\"layer_types\":[\"full_attention\"]}",
         "a layer with the window"},
        {SIZES_OF("exaone4", "4") ",\"sliding_window_pattern\":\"LG\"}", "layer_types is missing"},
        {QWEN3_5 ",\"num_hidden_layers\":5,\"layer_types\":[" FULL_LAYER "," FULL_LAYER
                 "," LINEAR_LAYER "," FULL_LAYER "," LINEAR_LAYER "]}",
         "\"full_attention\" for each N-th layer, and \"linear_attention\" for"},
        {QWEN3_5
         ",\"num_hidden_layers\":5,\"rope_parameters\":{\"rope_type\":\"yarn\",\"factor\":4}}",
         "needs rope_type \"default\""},
        {SIZES_OF("qwen3_5_text", "2") ",\"attn_output_gate\":false}", "needs true"},
        {SIZES_OF("exaone4", "4") ",\"sliding_window_pattern\":0}", "a whole number from 1 on"},
        {SIZES_OF("exaone4", "4") ",\"sliding_window_pattern\":2.5}", "a whole number from 1 on"},
        {SIZES_OF("olmo2", "4") ",\"num_key_value_heads\":0}", "a number from 1 on"},
        {SIZES_OF("mixtral", "2") ",\"num_local_experts\":8}", "a dense model"},
        {SIZES_OF("gemma4_text", "2") "}", "layers of Gemma 4 have heads of two sizes"},
        {"{\"model_type\":\"gemma4\",\"text_config\":" SIZES_OF("gemma4_text", "2") "}}",
         "mantissa's Gemma needs \"gemma2\", \"gemma3_text\" or \"gemma3\""},
        {SIZES_OF("qwen3_moe", "2") ",\"num_experts\":128}", "no mixture of experts"},
        {SIZES_OF("mamba2", "2") "}", "model_type is \"mamba2\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        cr_expect_eq(read_config_text(&config, cases[i].text), -1, "%s", cases[i].text);
        expect_text(error.text, cases[i].named);
    }
}

/* Classes and keys as transformers writes them, in both spellings. */
Test(huggingface_layers, the_classes_are_written) {
    static const char *const wanted[][5] = {
        {"\"SmolLM3ForCausalLM\"", "\"no_rope_layers\": [1, 0]", "\"no_rope_layer_interval\": 2",
         "\"mlp_bias\": false", "\"use_sliding_window\": false"},
        {"\"Olmo2ForCausalLM\"", "\"attention_bias\": false", "\"rope_scaling\": null",
         "\"model_type\": \"olmo2\"", "\"rope_parameters\": {\"rope_type\": \"default\""},
        {"\"Olmo3ForCausalLM\"", "\"sliding_window\": 5",
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
         "\"rope_parameters\": {\"full_attention\": {",
         "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 100}"},
        {"\"Exaone4ForCausalLM\"", "\"sliding_window\": 5", "\"sliding_window_pattern\": 2",
         "\"layer_types\": [\"sliding_attention\", \"full_attention\"]",
         "\"model_type\": \"exaone4\""},
    };
    for (int i = 0; i < 4; i++) {
        struct config config;
        char *text;
        size_t size;
        config_defaults(&config);
        config.model.n_layer = 2;
        set_family(&config, 8 + i);
        struct huggingface_tokens tokens = huggingface_tokens_of(&config, NULL);
        FILE *out = open_memstream(&text, &size);
        huggingface_print_config(out, &config, &tokens, DTYPE_F32);
        fclose(out);
        for (int k = 0; k < 5; k++) expect_text(text, wanted[i][k]);
        struct config back;
        SUCCEEDS(read_config_text(&back, text));
        struct model_shape s = config_shape(&config), again = config_shape(&back);
        cr_expect_eq(shape_family(&again), shape_family(&s));
        cr_expect(again.no_pre_norm == s.no_pre_norm && again.qk_norm_whole == s.qk_norm_whole);
        cr_expect_eq(again.no_rope_interval, s.no_rope_interval);
        free(text);
    }
}
