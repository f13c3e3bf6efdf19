/* The text's model of larger ones: config.json and names of tensors, as transformers 4 and 5 and
 * the authors of models write them. */
#include "model/io/huggingface_larger.h"

#include "model/architecture/architecture.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/huggingface.h"
#include "test/model/families.h"
#include "test/model/io/checkpoint_fixture.h"
#include "test/model/io/foreign_weights.h"

TestSuite(huggingface_larger, .init = make_folder, .fini = remove_folder);

#define SIZES                                                                          \
    "\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_key_value_heads\":2,"     \
    "\"hidden_size\":72,\"intermediate_size\":104,\"vocab_size\":311,\"head_dim\":16," \
    "\"max_position_embeddings\":128,\"eos_token_id\":7"
#define MROPE "\"rope_theta\":12345,\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,2,2]}"
#define TEXT  ",\"vision_config\":{\"depth\":3},\"text_config\":{" SIZES
#define UNDO  ",\"tie_word_embeddings\":"

static int read_whole(struct config *config, const char *text) {
    put_text("config.json", text);
    config_defaults(config);
    error.text[0] = '\0';
    return huggingface_read_config(config, folder, &error);
}

Test(huggingface_larger, the_config_of_the_text_is_read) {
    static const struct {
        const char *text;
        bool tied, qk_norm;
        int bias;
        double theta;
    } cases[] = {
        {"{\"model_type\":\"qwen2_5_vl\"" TEXT "," MROPE ",\"model_type\":\"qwen2_5_vl_text\"}}",
         false, false, BIAS_QKV, 12345},
        {"{\"model_type\":\"qwen2_5_vl\",\"vision_config\":{}" UNDO "true," MROPE "," SIZES "}",
         true, false, BIAS_QKV, 12345},
        {"{\"model_type\":\"qwen2_vl\",\"vision_config\":{}," MROPE "," SIZES "}", false, false,
         BIAS_QKV, 12345},
        {"{\"model_type\":\"qwen3_vl\"" UNDO "true" TEXT
         ",\"model_type\":\"qwen3_vl_text\",\"rope_parameters\":{\"rope_type\":\"default\","
         "\"rope_theta\":5000000,\"mrope_interleaved\":true,\"mrope_section\":[4,2,2]}}}",
         true, true, BIAS_NONE, 5e6},
        {"{\"model_type\":\"qwen3_vl\"" UNDO "true" TEXT UNDO "false}}", true, true, BIAS_NONE,
         5e5},
        {"{\"model_type\":\"smolvlm\"" TEXT ",\"model_type\":\"llama\"}}", false, false, BIAS_NONE,
         1e4},
        {"{\"model_type\":\"idefics3\"" TEXT "}}", false, false, BIAS_NONE, 1e4},
        {"{\"model_type\":\"mistral3\"" TEXT
         ",\"model_type\":\"mistral\",\"sliding_window\":null}}",
         false, false, BIAS_NONE, 1e4},
        {"{\"model_type\":\"mistral3\"" TEXT ",\"model_type\":\"qwen3\"}}", false, true, BIAS_NONE,
         1e4},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        struct huggingface_tokens tokens;
        cr_assert_eq(read_whole(&config, cases[i].text), 0, "%zu: %s", i, error.text);
        cr_expect(config.model.n_layer == 2 && config.model.n_embd == 72, "%zu", i);
        cr_expect(config.model.n_kv_head == 2 && config.model.head_dim == 16, "%zu", i);
        cr_expect_eq(config.model.tied_head, cases[i].tied, "%zu", i);
        cr_expect_eq(config.model.qk_norm, cases[i].qk_norm, "%zu", i);
        cr_expect_eq(config.model.bias, cases[i].bias, "%zu", i);
        cr_expect_eq(config.model.rope_theta, cases[i].theta, "%zu", i);
        cr_expect_eq(config.model.rope_scaling, ROPE_UNSCALED, "%zu", i);
        SUCCEEDS(huggingface_read_tokens(&tokens, &config, folder, &error));
        cr_expect(tokens.end_count == 1 && tokens.ends[0] == 7, "%zu", i);
    }
}

Test(huggingface_larger, what_cannot_be_read_is_refused_by_name) {
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"{\"model_type\":\"qwen3_vl\",\"vision_config\":{}}", "text_config is missing"},
        {"{\"model_type\":\"qwen2_vl\",\"text_config\":3," SIZES "}", "text_config is 3"},
        {"{\"model_type\":\"smolvlm\"" TEXT ",\"model_type\":\"mamba\"}}",
         "text_config.model_type is \"mamba\""},
        {"{\"model_type\":\"qwen3_vl_moe\"" TEXT "}}", "\"qwen3_vl\""},
        {"{\"model_type\":\"paligemma\"" TEXT ",\"model_type\":\"gemma2\"}}", "\"paligemma\""},
        {"{\"model_type\":\"smolvlm\"" TEXT ",\"rope_scaling\":{\"type\":\"longrope\"}}}",
         "rope_scaling.type is \"longrope\""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        cr_expect_eq(read_whole(&config, cases[i].text), -1, "%zu", i);
        expect_text(error.text, cases[i].reason);
    }
}

/* Weights of the text under the paths of old and new files, beside towers that have more layers. */
Test(huggingface_larger, weights_are_found_beside_towers) {
    static const struct {
        const char *prefix; /* before the name, or in place of "model." */
        bool in_place;
        const char *extra;
    } cases[] = {
        {"", false, "visual.blocks.7.attn.qkv.weight"},
        {"model.language_model.", true, "model.visual.blocks.7.attn.qkv.weight"},
        {"model.text_model.", true, "model.vision_model.encoder.layers.7.mlp.fc1.weight"},
        {"model.text_model.", true, "model.connector.modality_projection.proj.weight"},
        {"language_model.", false, "vision_tower.transformer.layers.7.attention.q_proj.weight"},
        {"model.language_model.", true, "model.multi_modal_projector.linear_1.weight"},
        {"model.text_model.", true, "model.audio_model.layers.0.weight"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const struct foreign_format format = {
            .dtype = SAFETENSORS_F32, .prefix = cases[i].prefix, .extra = cases[i].extra};
        struct subject subject;
        struct parameter *list = NULL;
        subject_config(&subject.config, CONFIG_PRECISION_FP32);
        set_family(&subject.config, 5);
        subject_open(&subject);
        struct model *model = &subject.trainer.model;
        for (ptrdiff_t k = 0; k < arrlen(model->list); k++) arrput(list, model->list[k]);
        for (ptrdiff_t k = 0; cases[i].in_place && k < arrlen(list); k++)
            memmove(list[k].name, list[k].name + 6, strlen(list[k].name + 6) + 1);
        put_weights(list, &format);
        const int status = checkpoint_load_weights(model, NULL, folder, &error);
        cr_expect_eq(status, i == COUNT(cases) - 1 ? -1 : 0, "%s: %s", cases[i].extra,
                     status ? error.text : "");
        float *values = masters_values(model);
        for (ptrdiff_t k = 0; status == 0 && k < arrlen(list); k++)
            cr_expect_eq(values[list[k].offset + 5], value_of(k, 5), "%s", list[k].name);
        free(values);
        arrfree(list);
        subject_close(&subject);
    }
}
