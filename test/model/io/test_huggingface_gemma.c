/* Gemma's config.json. Values of published models' files; what transformers makes of absent keys.
 */
#include <string.h>

#include "model/architecture/families.h"
#include "model/config/config_check.h"
#include "test/model/families.h"
#include "test/model/io/huggingface_fixture.h"

TestSuite(huggingface_gemma, .init = make_folder, .fini = remove_folder);

/* gemma-3-270m, by older and by newer versions of transformers. */
static const char *const spellings[] = {
    "{\"model_type\":\"gemma3_text\",\"head_dim\":256,\"hidden_activation\":\"gelu_pytorch_tanh\","
    "\"hidden_size\":640,\"intermediate_size\":2048,\"max_position_embeddings\":32768,"
    "\"num_attention_heads\":4,\"num_hidden_layers\":18,\"num_key_value_heads\":1,"
    "\"query_pre_attn_scalar\":256,\"rms_norm_eps\":1e-06,\"rope_local_base_freq\":10000.0,"
    "\"rope_scaling\":null,\"rope_theta\":1000000.0,\"sliding_window\":512,"
    "\"attn_logit_softcapping\":null,\"final_logit_softcapping\":null,"
    "\"sliding_window_pattern\":6,\"vocab_size\":262144}",
    "{\"model_type\":\"gemma3_text\",\"head_dim\":256,\"hidden_size\":640,"
    "\"intermediate_size\":2048,\"max_position_embeddings\":32768,\"num_attention_heads\":4,"
    "\"num_hidden_layers\":18,\"num_key_value_heads\":1,\"sliding_window\":512,"
    "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e6},"
    "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000}},"
    "\"use_bidirectional_attention\":false,\"vocab_size\":262144}"};

/* The preset gives the same model as the files. */
Test(huggingface_gemma, both_spellings_are_the_preset) {
    struct config preset;
    config_defaults(&preset);
    config_apply_preset(&preset, CONFIG_PRESET_GEMMA_3_270M);
    for (int i = 0; i < 2; i++) {
        struct config config;
        SUCCEEDS(read_config_text(&config, spellings[i]));
        struct model_shape s = config_shape(&config), wanted = config_shape(&preset);
        cr_expect_eq(shape_family(&s), FAMILY_GEMMA3);
#define X(size)            cr_expect_eq(s.size, wanted.size, #size);
#define Y(type, part, ...) cr_expect_eq(s.part, wanted.part, #part);
        MODEL_SIZES(X)
        MODEL_PARTS(Y)
#undef X
#undef Y
        for (int64_t l = 0; l < 18; l++)
            cr_expect_eq(shape_window(&s, l), l % 6 == 5 ? 0 : 512, "layer %d", (int)l);
    }
}

/* The text's part of gemma-3-4b, whose file leaves most to the class; and its tokens. */
Test(huggingface_gemma, the_text_of_a_model_with_images_is_read) {
    struct config config;
    struct huggingface_tokens tokens;
    SUCCEEDS(read_config_text(
        &config,
        "{\"model_type\":\"gemma3\",\"eos_token_id\":[1,106],\"text_config\":{"
        "\"hidden_size\":2560,\"intermediate_size\":10240,\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":34,\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},"
        "\"sliding_window\":1024},\"vision_config\":{\"hidden_size\":1152}}"));
    cr_expect(config.model.n_head == 8 && config.model.n_kv_head == 4);
    cr_expect(config.model.head_dim == 256 && config.model.query_pre_attn_scalar == 256);
    cr_expect(config.model.vocab_size == 262208 && config.model.n_positions == 131072);
    cr_expect(config.model.rope_scaling == ROPE_LINEAR && config.model.rope_factor == 8);
    cr_expect(config.model.rope_theta == 1e6 && config.model.rope_theta_window == 10000);
    cr_expect(config.model.window == 1024 && config.model.window_pattern == 6);
    SUCCEEDS(huggingface_read_tokens(&tokens, &config, folder, &error));
    cr_expect(tokens.begin == 2 && tokens.pad == 0 && tokens.end_count == 2);
    cr_expect(tokens.ends[0] == 1 && tokens.ends[1] == 106);
}

Test(huggingface_gemma, gemma2_has_defaults_of_its_own) {
    struct config config;
    SUCCEEDS(
        read_config_text(&config, "{\"model_type\":\"gemma2\",\"query_pre_attn_scalar\":144}"));
    cr_expect(config.model.attention_softcap == 50 && config.model.logit_softcap == 30);
    cr_expect(config.model.window == 4096 && config.model.window_pattern == 2);
    cr_expect(config.model.rope_theta == 10000 && config.model.rope_theta_window == 0);
    cr_expect(config.model.query_pre_attn_scalar == 144 && !config.model.qk_norm);
    SUCCEEDS(read_config_text(&config, "{\"model_type\":\"gemma2\",\"attn_logit_softcapping\":null,"
                                       "\"final_logit_softcapping\":null}"));
    cr_expect(config.model.attention_softcap == 0 && config.model.logit_softcap == 0);
}

Test(huggingface_gemma, what_cannot_be_computed_is_refused_by_name) {
    static const struct {
        const char *more, *named;
    } cases[] = {
        {"\"use_bidirectional_attention\":true", "use_bidirectional_attention is true"},
        {"\"attn_logit_softcapping\":50", "attn_logit_softcapping is 50"},
        {"\"hidden_activation\":\"silu\"", "hidden_activation is \"silu\""},
        {"\"attention_bias\":true", "attention_bias is true"},
        {"\"sliding_window\":null", "sliding_window is null"},
        {"\"num_hidden_layers\":3,\"layer_types\":[\"full_attention\",\"full_attention\","
         "\"chunked_attention\"]",
         "layer_types"},
        {"\"num_hidden_layers\":6,\"layer_types\":[\"sliding_attention\",\"full_attention\","
         "\"full_attention\",\"sliding_attention\",\"full_attention\",\"full_attention\"]",
         "model.window_from and model.window_pattern"},
        {"\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}",
         "rope_parameters.sliding_attention.rope_type"},
        {"\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"longrope\"}}",
         "rope_parameters.full_attention.rope_type is \"longrope\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[500];
        struct config config;
        snprintf(text, sizeof text, "{\"model_type\":\"gemma3_text\",%s}", cases[i].more);
        cr_expect_eq(read_config_text(&config, text), -1, "%s", text);
        expect_text(error.text, cases[i].named);
    }
    struct config config;
    cr_expect_eq(read_config_text(&config, "{\"model_type\":\"gemma3\"}"), -1);
    expect_text(error.text, "text_config");
}

/* Classes and keys as transformers writes them. */
Test(huggingface_gemma, the_class_is_written) {
    for (int third = 0; third < 2; third++) {
        struct config config;
        char *text;
        size_t size;
        config_defaults(&config);
        set_family(&config, third ? 7 : 6);
        struct huggingface_tokens tokens = huggingface_tokens_of(&config, NULL);
        FILE *out = open_memstream(&text, &size);
        huggingface_print_config(out, &config, &tokens, DTYPE_F32);
        fclose(out);
        expect_text(text, third ? "\"architectures\": [\"Gemma3ForCausalLM\"]"
                                : "\"architectures\": [\"Gemma2ForCausalLM\"]");
        expect_text(text, third ? "\"model_type\": \"gemma3_text\"" : "\"model_type\": \"gemma2\"");
        expect_text(text, "\"hidden_activation\": \"gelu_pytorch_tanh\"");
        expect_text(text, "\"query_pre_attn_scalar\": 9");
        expect_text(text, "\"final_logit_softcapping\": 3");
        expect_text(text,
                    third ? "\"attn_logit_softcapping\": null" : "\"attn_logit_softcapping\": 2");
        expect_text(text, "\"sliding_window\": 5");
        expect_text(text, "\"layer_types\": [\"sliding_attention\", \"full_attention\"");
        if (third)
            expect_text(text,
                        "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 100}");
        free(text);
    }
}
