/* config.json of families that are Llamas but for a switch or two: as transformers writes it, what
 * is refused, and the way back. */
#include <string.h>

#include "model/architecture/families.h"
#include "model/config/config_keys.h"
#include "test/model/io/huggingface_fixture.h"

#define SIZES                                                                 \
    "\"hidden_size\":72,\"intermediate_size\":200,\"num_hidden_layers\":3,"   \
    "\"num_attention_heads\":9,\"num_key_value_heads\":3,\"vocab_size\":331," \
    "\"max_position_embeddings\":128"
#define MULTIPLIED                                                     \
    "\"embedding_multiplier\":12.0,\"attention_multiplier\":0.015625," \
    "\"residual_multiplier\":0.22,\"logits_scaling\":8.0"

TestSuite(huggingface_llamas, .init = make_folder, .fini = remove_folder);

/* Reads a model of a family, and what is written for it: all sizes and parts are the same. */
static struct model_shape read_and_return(const char *text, enum model_family family) {
    struct config config, again;
    cr_assert_eq(read_config_text(&config, text), 0, "%s: %s", text, error.text);
    const struct model_shape shape = config_shape(&config);
    cr_expect_eq(shape_family(&shape), family, "%s", text);
    char *written = printed_config(&config, NULL, DTYPE_F32), class[64];
    snprintf(class, sizeof class, "[\"%sForCausalLM\"]", families[family].class);
    cr_expect(strstr(written, class), "%s", written);
    cr_assert_eq(read_config_text(&again, written), 0, "%s: %s", written, error.text);
    const struct model_shape back = config_shape(&again);
#define X(size) cr_expect_eq(back.size, shape.size, #size " of %s", text);
    MODEL_SIZES(X)
#undef X
#define X(type, part, ...) cr_expect_eq(back.part, shape.part, #part " of %s", text);
    MODEL_PARTS(X)
#undef X
    free(written);
    return shape;
}

static void expect_refused(const char *text, const char *named) {
    struct config config;
    cr_assert_eq(read_config_text(&config, text), -1, "%s", text);
    cr_expect(strstr(error.text, named), "%s", error.text);
}

Test(huggingface_llamas, granite) {
    struct model_shape s =
        read_and_return("{\"model_type\":\"granite\"," MULTIPLIED "," SIZES "}", FAMILY_GRANITE);
    cr_expect(s.embedding_multiplier == 12 && s.attention_multiplier == 0.015625);
    cr_expect(s.residual_multiplier == 0.22 && s.logits_scaling == 8 && s.bias == BIAS_NONE);
    s = read_and_return("{\"model_type\":\"granite\",\"attention_bias\":true,\"mlp_bias\":true,"
                        "\"rope_theta\":1e7,\"tie_word_embeddings\":true," SIZES "}",
                        FAMILY_GRANITE);
    cr_expect(s.attention_multiplier == 1 && s.logits_scaling == 1 && s.bias == BIAS_ALL);
    cr_expect(s.rope_theta == 1e7 && s.tied_head);
    expect_refused("{\"model_type\":\"granite\",\"attention_bias\":true," SIZES "}",
                   "attention_bias");
}

/* Its logits are multiplied by what divides Granite's; without norms after branches it is one. */
Test(huggingface_llamas, hyperclovax) {
    struct model_shape s = read_and_return(
        "{\"model_type\":\"hyperclovax\"," MULTIPLIED "," SIZES "}", FAMILY_HYPERCLOVAX);
    cr_expect(s.logits_scaling == 0.125 && s.post_norm && s.residual_multiplier == 0.22);
    s = read_and_return("{\"model_type\":\"hyperclovax\",\"use_post_norm\":false,"
                        "\"head_dim\":16,\"attention_multiplier\":null," SIZES "}",
                        FAMILY_GRANITE);
    cr_expect(s.attention_multiplier == 0.25 && !s.post_norm);
}

Test(huggingface_llamas, arcee) {
    struct model_shape s =
        read_and_return("{\"model_type\":\"arcee\",\"head_dim\":24,\"rope_scaling\":{\"type\":"
                        "\"yarn\",\"factor\":4,\"original_max_position_embeddings\":32}," SIZES "}",
                        FAMILY_ARCEE);
    cr_expect(s.mlp == MLP_RELU2 && s.norm_eps == 1e-5 && s.rope_scaling == ROPE_YARN);
    expect_refused("{\"model_type\":\"arcee\",\"hidden_act\":\"silu\"," SIZES "}", "hidden_act");
}

/* The parts are those of a Qwen2, whose class is named otherwise. */
Test(huggingface_llamas, seed_oss) {
    struct config config;
    cr_assert_eq(
        read_config_text(&config, "{\"model_type\":\"seed_oss\",\"head_dim\":24," SIZES "}"), 0,
        "%s", error.text);
    cr_expect(config.model.bias == BIAS_QKV && config.model.type == CONFIG_CLASS_SEED_OSS);
    char *text = printed_config(&config, NULL, DTYPE_F32);
    cr_expect(strstr(text, "[\"SeedOssForCausalLM\"]") && strstr(text, "\"attention_bias\": true"));
    free(text);
    config.model.type = CONFIG_CLASS_AUTO;
    text = printed_config(&config, NULL, DTYPE_F32);
    cr_expect(strstr(text, "[\"Qwen2ForCausalLM\"]"));
    free(text);
    expect_refused("{\"model_type\":\"seed_oss\",\"attention_out_bias\":true," SIZES "}",
                   "attention_out_bias");
}

Test(huggingface_llamas, phi3) {
    struct model_shape s = read_and_return(
        "{\"model_type\":\"phi3\",\"sliding_window\":20,\"partial_rotary_factor\":0.5," SIZES "}",
        FAMILY_PHI3);
    cr_expect(s.fused == FUSED_ALL && s.window == 20 && shape_rotary(&s) == 4 &&
              s.norm_eps == 1e-5);
    s = read_and_return("{\"model_type\":\"phi3\",\"sliding_window\":null,\"rope_parameters\":{"
                        "\"rope_type\":\"default\",\"partial_rotary_factor\":0.75}," SIZES "}",
                        FAMILY_PHI3);
    cr_expect(s.window == 0 && shape_rotary(&s) == 6);
    expect_refused("{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"longrope\"}," SIZES "}",
                   "longrope cannot be computed");
    expect_refused("{\"model_type\":\"phi3\",\"partial_rotary_factor\":0," SIZES "}",
                   "partial_rotary_factor is 0, but mantissa's Phi3 needs a number above 0");
    expect_refused(
        "{\"model_type\":\"phi3\",\"rope_parameters\":{\"partial_rotary_factor\":0}," SIZES "}",
        "a number above 0");
    expect_refused("{\"model_type\":\"granite\",\"residual_multiplier\":0.0," SIZES "}",
                   "residual_multiplier is 0, but mantissa's Granite needs a number above 0");
    expect_refused(
        "{\"model_type\":\"phi3\",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}," SIZES "}",
        "longrope cannot be computed");
}
