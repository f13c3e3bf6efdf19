#include "data/util/files.h"
#include "model/architecture/families.h"
#include "model/config/config_keys.h"
#include "model/core/rope.h"
#include "test/model/families.h"
#include "test/model/io/huggingface_fixture.h"

TestSuite(huggingface, .init = make_folder, .fini = remove_folder);

#define SIZES "\"n_layer\":2,\"n_head\":3,\"n_embd\":24,\"n_positions\":16,\"vocab_size\":300"

Test(huggingface, what_is_printed_is_read_back) {
    struct config config, read;
    subject_config(&config, CONFIG_PRECISION_FP32);
    char *text = printed_config(&config, NULL, DTYPE_F32);
    expect_text(text, "\"torch_dtype\": \"float32\"");
    put_config(text);
    free(text);
    config_defaults(&read);
    SUCCEEDS(huggingface_read_config(&read, folder, &error));
    cr_expect_eq(memcmp(&read.model, &config.model, sizeof read.model), 0);
    cr_expect(config_given(&read, "model.n_layer"));
}

Test(huggingface, tokens_are_those_of_the_tokenizer) {
    struct config config;
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct huggingface_tokens tokens = huggingface_tokens_of(&config, NULL);
    cr_expect(tokens.begin == -1 && tokens.end_count == 0 && tokens.pad == -1);
    config.data.tokenizer = TOKENIZER_GPT2;
    cr_expect_eq(huggingface_tokens_of(&config, NULL).end_count, 0, "the vocabulary has 300");
    cr_expect_eq(huggingface_tokens_of(&config, toy_tokenizer()).ends[0], 299);
    config.model.vocab_size = 299;
    cr_expect_eq(huggingface_tokens_of(&config, toy_tokenizer()).end_count, 0);
    config.model.vocab_size = 50257;
    tokens = huggingface_tokens_of(&config, NULL);
    cr_expect(tokens.begin == 50256 && tokens.ends[0] == 50256 && tokens.pad == -1);
}

Test(huggingface, dtypes_and_tokens_are_printed) {
    struct config config;
    subject_config(&config, CONFIG_PRECISION_FP32);
    char *text = printed_config(&config, NULL, DTYPE_F16);
    expect_text(text, "\"torch_dtype\": \"float16\"");
    expect_text(text, "\"bos_token_id\": null");
    free(text);
    text = printed_config(&config, toy_tokenizer(), DTYPE_BF16);
    expect_text(text, "\"torch_dtype\": \"bfloat16\"");
    expect_text(text, "\"bos_token_id\": 299");
    expect_text(text, "\"eos_token_id\": 299");
    expect_text(text, "\"pad_token_id\": null");
    free(text);
}

static void expect_generation_config(struct huggingface_tokens tokens, const char *expected) {
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    huggingface_print_generation_config(out, &tokens);
    fclose(out);
    cr_expect_str_eq(text, expected);
    free(text);
}

/* Expects these lines before those that all tokenizers have. */
static void expect_tokenizer_config(struct tokenizer tokenizer, const char *lines,
                                    const char *class) {
    struct config config;
    char *text, expected[1000];
    size_t size;
    subject_config(&config, CONFIG_PRECISION_FP32);
    FILE *out = open_memstream(&text, &size);
    huggingface_print_tokenizer_config(out, &config, &tokenizer);
    fclose(out);
    snprintf(expected, sizeof expected,
             "{\n%s  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 16,\n"
             "  \"tokenizer_class\": \"%s\"\n}\n",
             lines, class);
    cr_expect_str_eq(text, expected);
    free(text);
}

#define SPACES "  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
#define SPECIAL                                                                  \
    "  \"bos_token\": \"<|endoftext|>\",\n  \"eos_token\": \"<|endoftext|>\",\n" \
    "  \"unk_token\": \"<|endoftext|>\",\n"

Test(huggingface, small_files) {
    expect_generation_config((struct huggingface_tokens){.begin = -1, .pad = -1},
                             "{\n  \"_from_model_config\": true\n}\n");
    struct huggingface_tokens tokens = {.begin = 1, .ends = {2, 7}, .end_count = 1};
    expect_generation_config(tokens, "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n"
                                     "  \"pad_token_id\": 0,\n  \"_from_model_config\": true\n}\n");
    tokens.end_count = 2;
    expect_generation_config(tokens, "{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": [2, 7],\n"
                                     "  \"pad_token_id\": 0,\n  \"_from_model_config\": true\n}\n");
    expect_tokenizer_config((struct tokenizer){.kind = TOKENIZER_BYTES, .end_of_text = -1}, "",
                            "PreTrainedTokenizerFast");
    expect_tokenizer_config((struct tokenizer){.kind = TOKENIZER_GPT2, .end_of_text = 50256},
                            SPACES SPECIAL, "GPT2Tokenizer");
    expect_tokenizer_config((struct tokenizer){.kind = TOKENIZER_GPT2, .end_of_text = -1}, SPACES,
                            "GPT2Tokenizer");
}

Test(huggingface, what_others_write_is_read) {
    static const char *const texts[] = {
        "{\"model_type\":\"gpt2\"," SIZES "}",
        "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_pytorch_tanh\",\"n_inner\":96,"
        "\"task_specific_params\":{\"text-generation\":{\"max_length\":50}}," SIZES "}",
        "{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":9.999999747378752e-06," SIZES "}",
        "{\"model_type\":\"gpt2\",\"n_inner\":null,\"n_layer\":2,\"n_head\":3,\"n_embd\":24,"
        "\"n_ctx\":16,\"vocab_size\":300}",
        "{\"model_type\":\"gpt2\",\"n_ctx\":99," SIZES "}",
    };
    struct config config;
    for (size_t i = 0; i < COUNT(texts); i++) {
        config_defaults(&config);
        put_config(texts[i]);
        SUCCEEDS(huggingface_read_config(&config, folder, &error));
        cr_expect_eq(config.model.vocab_size, 300);
        cr_expect_eq(config.model.n_head, 3);
        cr_expect_eq(config.model.n_positions, 16);
    }
}

/* Sizes of the Llama family alone. */
#define LLAMA                                                               \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"hidden_size\":72," \
    "\"intermediate_size\":200,\"max_position_embeddings\":64,\"vocab_size\":331"

static struct config read_llama(const char *type, const char *more) {
    char text[1000];
    struct config config;
    config_defaults(&config);
    snprintf(text, sizeof text, "{\"model_type\":\"%s\"," LLAMA "%s}", type, more);
    put_config(text);
    SUCCEEDS(huggingface_read_config(&config, folder, &error));
    return config;
}

Test(huggingface, llamas_are_read_in_old_and_new_spellings) {
    struct config config = read_llama("llama", ",\"num_key_value_heads\":2,\"rope_theta\":5e5");
    struct model_shape s = config_shape(&config);
    cr_expect(shape_family(&s) == FAMILY_LLAMA && !s.tied_head && s.bias == BIAS_NONE);
    cr_expect_eq(s.n_kv_head, 2);
    cr_expect_eq(s.head_dim, 18);
    cr_expect_eq(s.n_inner, 200);
    cr_expect_eq(s.norm_eps, 1e-6, "the class's default");
    cr_expect_eq(s.rope_theta, 5e5);
    config = read_llama("llama", ",\"tie_word_embeddings\":true,\"rms_norm_eps\":1e-5,"
                                 "\"attention_bias\":true,\"mlp_bias\":true,\"head_dim\":32,"
                                 "\"rope_parameters\":{\"rope_type\":\"llama3\",\"rope_theta\":7e4,"
                                 "\"factor\":4,\"low_freq_factor\":1.5,\"high_freq_factor\":3,"
                                 "\"original_max_position_embeddings\":32}");
    s = config_shape(&config);
    cr_expect(s.tied_head && s.bias == BIAS_ALL && s.rope_scaling == ROPE_LLAMA3);
    cr_expect_eq(s.head_dim, 32);
    cr_expect_eq(s.rope_theta, 7e4);
    cr_expect_eq(s.rope_factor, 4);
    cr_expect_eq(s.rope_low_freq_factor, 1.5);
    cr_expect_eq(s.rope_original_positions, 32);
    config = read_llama(
        "qwen2", ",\"num_key_value_heads\":1,\"sliding_window\":8,\"use_sliding_window\":false");
    cr_expect_eq(config.model.bias, BIAS_QKV);
    cr_expect_eq(checkpoint_config(&config, folder, &error), 0, "%s", error.text);
    config = read_llama("mistral", ",\"sliding_window\":4096,\"num_key_value_heads\":2");
    cr_expect_eq(config.model.bias, BIAS_NONE);
    cr_expect_not(config.model.qk_norm);
}

/* A missing key means something else than a null. */
Test(huggingface, qwen3_normalizes_its_heads_and_has_defaults_of_its_own) {
    struct config config = read_llama("qwen3", "");
    cr_expect(config.model.qk_norm && config.model.bias == BIAS_NONE);
    cr_expect_eq(config.model.n_kv_head, 32);
    cr_expect_eq(config.model.head_dim, 128);
    config = read_llama("qwen3", ",\"num_key_value_heads\":null,\"head_dim\":24");
    cr_expect_eq(config_shape(&config).n_kv_head, 4);
    cr_expect_eq(config_shape(&config).head_dim, 24);
    config = read_llama("mistral", "");
    cr_expect_eq(config.model.n_kv_head, 8);
}

/* A window of all layers is model.window, unless it is as long as the context. */
Test(huggingface, a_window_of_all_layers_is_read) {
    for (int window = 63; window <= 65; window++) {
        char extra[200];
        snprintf(extra, sizeof extra, ",\"num_key_value_heads\":4,\"sliding_window\":%d", window);
        struct config config = read_llama("mistral", extra);
        cr_expect_eq(config.model.window, window < 64 ? window : 0);
        cr_expect_eq(config.model.n_positions, 64);
        cr_expect_eq(read_llama("llama", extra).model.window, 0, "Llama has no window");
        cr_expect_eq(read_llama("qwen2", extra).model.window, 0, "it is not used");
        snprintf(extra, sizeof extra,
                 ",\"sliding_window\":%d,\"use_sliding_window\":true,\"max_window_layers\":0",
                 window);
        cr_expect_eq(read_llama("qwen3", extra).model.window, window < 64 ? window : 0);
    }
}

/* The layers that have a window become window_from and window_pattern. */
Test(huggingface, a_window_of_some_layers_is_read) {
    static const struct {
        const char *layers;
        int64_t window, from, pattern;
    } kinds[] = {
        {"\"max_window_layers\":1", 63, 1, 0},
        {"\"max_window_layers\":28", 0, 0, 0},
        {"\"hidden_act\":\"silu\"", 0, 0, 0}, /* absent: 28 */
        {"\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 63, 1, 0},
        {"\"layer_types\":[\"sliding_attention\",\"full_attention\"]", 63, 0, 2},
        {"\"layer_types\":[\"full_attention\",\"full_attention\"]", 0, 0, 0},
    };
    for (size_t i = 0; i < COUNT(kinds); i++) {
        char more[300];
        snprintf(more, sizeof more,
                 ",\"num_key_value_heads\":4,\"sliding_window\":63,\"use_sliding_window\":true,%s",
                 kinds[i].layers);
        struct config config = read_llama("qwen2", more);
        cr_expect_eq(config.model.n_positions, 64, "%s", kinds[i].layers);
        cr_expect_eq(config.model.window, kinds[i].window, "%s", kinds[i].layers);
        cr_expect_eq(config.model.window_from, kinds[i].from, "%s", kinds[i].layers);
        cr_expect_eq(config.model.window_pattern, kinds[i].pattern, "%s", kinds[i].layers);
    }
}

/* Reads a Qwen2 with these layers, F or W each, into a config. Returns its status. */
static int read_layers(struct config *config, const char *layers) {
    char text[2000], types[1000] = "";
    for (const char *l = layers; *l; l++)
        snprintf(types + strlen(types), sizeof types - strlen(types), "%s\"%s_attention\"",
                 l == layers ? "" : ",", *l == 'W' ? "sliding" : "full");
    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen2\",\"num_hidden_layers\":%d,\"num_attention_heads\":4,"
             "\"hidden_size\":72,\"intermediate_size\":200,\"max_position_embeddings\":64,"
             "\"vocab_size\":331,\"num_key_value_heads\":4,\"sliding_window\":63,"
             "\"use_sliding_window\":true,\"layer_types\":[%s]}",
             (int)strlen(layers), types);
    put_config(text);
    return huggingface_read_config(config, folder, &error);
}

/* Patterns of up to eight layers are read as they are. A window of other layers ends the context,
 * and a longer one is rejected. */
Test(huggingface, other_windows_of_some_layers_end_the_context) {
    const size_t seq_len = (size_t)config_option_index("data.seq_len", strlen("data.seq_len"));
    int limited = 0;
    for (int bits = 1; bits < 256; bits++) {
        struct config config;
        char layers[9] = "";
        for (int l = 0; l < 8; l++) layers[l] = bits >> l & 1 ? 'W' : 'F';
        config_defaults(&config);
        SUCCEEDS(read_layers(&config, layers));
        struct model_shape s = config_shape(&config);
        if (s.window == 0) {
            limited++;
            cr_expect_eq(config.model.n_positions, 63, "%s", layers);
            config_defaults(&config);
            config.data.seq_len = 64;
            config.sources[seq_len] = CONFIG_SOURCE_FILE;
            cr_expect_eq(read_layers(&config, layers), -1);
            expect_text(error.text, "sliding_window is 63");
            continue;
        }
        cr_expect_eq(config.model.n_positions, 64, "%s", layers);
        for (int l = 0; l < 8; l++)
            cr_expect_eq(shape_window(&s, l), layers[l] == 'W' ? 63 : 0, "%s %d", layers, l);
    }
    static const char *const read[] = {"WWWWWWWW", "FFFWWWWW", "WWWWWFWW",
                                       "WFWFWFWF", "FFFFWFWF", "FFWWFWWF"};
    cr_expect(limited > 0 && limited < 255 - (int)COUNT(read));
    for (size_t i = 0; i < COUNT(read); i++) {
        struct config config;
        config_defaults(&config);
        SUCCEEDS(read_layers(&config, read[i]));
        cr_expect_eq(config.model.window, i == 5 ? 0 : 63, "%s", read[i]);
    }
}

/* A run would save the value, and could not read its own config again. */
Test(huggingface, a_value_beyond_its_key_is_refused) {
    struct config config =
        read_llama("llama", ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,\"mscale\":1e8,"
                            "\"mscale_all_dim\":1e-9,\"original_max_position_embeddings\":32}");
    cr_expect_gt(config.model.rope_attention_factor, 1e6);
    cr_expect_eq(checkpoint_config(&config, folder, &error), -1);
    expect_text(error.text, "model.rope_attention_factor is 1386");
    expect_text(error.text, "must be a number from 0 to 1000000");
}

/* MistralConfig's window is 4096 unless the file says otherwise; other classes have none. */
Test(huggingface, an_absent_window_is_that_of_the_class) {
    static const char *const types[] = {"mistral", "llama", "qwen2", "qwen3"};
    for (int i = 0; i < 4; i++) {
        char text[1000];
        struct config config;
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"," LLAMA ",\"num_key_value_heads\":4}",
                 types[i]);
        char *positions = strstr(text, "ings\":64");
        cr_assert_not_null(positions);
        memmove(positions + 10, positions + 8, strlen(positions + 8) + 1);
        memcpy(positions, "ings\":8192", 10);
        put_config(text);
        SUCCEEDS(checkpoint_config(&config, folder, &error));
        cr_expect_eq(config.model.n_positions, 8192);
        cr_expect_eq(config.model.window, i == 0 ? 4096 : 0, "%s", types[i]);
    }
}

static void expect_class(const struct config *config, const char *class, const char *type) {
    char *text = printed_config(config, NULL, DTYPE_F32), wanted[100];
    snprintf(wanted, sizeof wanted, "\"architectures\": [\"%s\"]", class);
    expect_text(text, wanted);
    snprintf(wanted, sizeof wanted, "\"model_type\": \"%s\"", type);
    expect_text(text, wanted);
    bool qwen = strncmp(type, "qwen", 4) == 0, llama = strcmp(type, "llama") == 0;
    cr_expect_eq(strstr(text, "\"sliding_window\": null") != NULL, !llama, "%s", text);
    cr_expect_eq(strstr(text, "\"max_window_layers\": 2,\n  \"use_sliding_window\": false") != NULL,
                 qwen, "%s", text);
    cr_expect_eq(strstr(text, "_bias\"") != NULL, llama, "%s", text);
    free(text);
}

/* A model with parts of several classes is exported as the class it came from. */
Test(huggingface, the_class_is_kept) {
    struct config config = read_llama("mistral", ",\"num_key_value_heads\":2");
    expect_class(&config, "MistralForCausalLM", "mistral");
    config.model.tied_head = true;
    expect_class(&config, "MistralForCausalLM", "mistral");
    config.model.bias = BIAS_ALL;
    expect_class(&config, "LlamaForCausalLM", "llama");
    config.model.bias = BIAS_QKV;
    expect_class(&config, "Qwen2ForCausalLM", "qwen2");
    config = read_llama("llama", "");
    expect_class(&config, "LlamaForCausalLM", "llama");
    config = read_llama("qwen2", "");
    expect_class(&config, "Qwen2ForCausalLM", "qwen2");
    config = read_llama("llama", "");
    config.model.window = 9;
    char *text = printed_config(&config, NULL, DTYPE_F32);
    expect_text(text, "MistralForCausalLM");
    expect_text(text, "\"sliding_window\": 9");
    free(text);
}

/* The config.json written for a config reads back as the same shape. */
static void expect_reads_back(const struct config *config) {
    struct config back;
    struct model_shape before = config_shape(config), after;
    char *text = printed_config(config, NULL, DTYPE_F32);
    put_config(text);
    config_defaults(&back);
    cr_assert_eq(huggingface_read_config(&back, folder, &error), 0, "%s\n%s", error.text, text);
    after = config_shape(&back);
#define X(size) cr_expect_eq(after.size, before.size, #size "\n%s", text);
    MODEL_SIZES(X)
#undef X
    cr_expect_eq(after.weights_out_in, before.weights_out_in);
    cr_expect_eq(after.norm_eps, before.norm_eps);
    if (before.positions == POSITIONS_ROPE) {
        enum { ROWS = 200, SIZE = 64 };
        float first[ROWS * SIZE], second[ROWS * SIZE];
        cr_assert_eq(before.head_dim, SIZE);
        rope_angles(first, &before, ROWS);
        rope_angles(second, &after, ROWS);
        cr_expect_eq(after.rope_scaling, before.rope_scaling);
        cr_expect_arr_eq(first, second, sizeof first, "%s", text);
    }
    cr_expect(after.norm == before.norm && after.positions == before.positions &&
              after.mlp == before.mlp && after.bias == before.bias &&
              after.tied_head == before.tied_head && after.qk_norm == before.qk_norm);
    cr_expect(after.norm_zero_centered == before.norm_zero_centered &&
                  after.post_norm == before.post_norm &&
                  after.scale_embedding == before.scale_embedding &&
                  after.attention_softcap == before.attention_softcap &&
                  after.logit_softcap == before.logit_softcap &&
                  after.rope_theta_window == before.rope_theta_window,
              "%s", text);
    cr_expect_eq(after.query_pre_attn_scalar > 0 ? after.query_pre_attn_scalar : 64,
                 before.query_pre_attn_scalar > 0 ? before.query_pre_attn_scalar : 64);
    for (int64_t l = 0; l < before.n_layer; l++)
        cr_expect_eq(shape_window(&after, l), shape_window(&before, l), "%s", text);
    free(text);
}

Test(huggingface, any_parts_read_back) {
    struct config config;
    for (int parts = 0; parts < 192; parts++) {
        config_defaults(&config);
        if (parts % 13 == 0) set_gemma(&config, parts / 96); /* some of its parts are set below */
        config.model.norm = (enum model_norm)(parts % 2);
        config.model.positions = (enum model_positions)(parts / 2 % 2);
        config.model.mlp = (enum model_mlp)(parts / 4 % 2);
        config.model.tied_head = parts / 8 % 2;
        config.model.bias = (enum model_bias)(parts / 16 % 3);
        config.model.rope_scaling = (enum rope_scaling)(parts % 5);
        config.model.rope_theta = parts % 11 ? 1e4 : 123456.5;
        config.model.rope_factor = 2.25;
        config.model.rope_original_positions = 128;
        config.model.rope_attention_factor = parts % 3 ? 0 : 0.7;
        config.model.rope_beta_fast = parts % 2 ? 32 : 17.5;
        config.model.rope_beta_slow = parts % 4 ? 1 : 1.5;
        config.model.rope_truncate = parts % 3 > 0;
        config.model.n_positions = 288;
        config.model.qk_norm = parts / 96;
        config.model.norm_eps = parts % 3 ? 1e-6 : 1e-5;
        config.model.n_inner = parts % 5 ? 200 : 0;
        config.model.window = parts % 7 ? 0 : 100;
        config.model.n_layer = 7;
        config.model.window_from = parts % 5 ? 0 : 2;
        config.model.window_pattern = parts % 3 ? 0 : 3;
        expect_reads_back(&config);
    }
}

/* Files of own models are older than some keys. */
Test(huggingface, own_models_may_lack_newer_keys) {
    static const char *const newer[] = {"rope_attention_factor", "rope_beta_fast", "rope_beta_slow",
                                        "rope_truncate",         "window",         "window_from",
                                        "window_pattern",        "no_pre_norm",    "qk_norm_whole",
                                        "no_rope_interval"};
    struct config config, back;
    config_defaults(&config);
    set_family(&config, 3);
    char *text = printed_config(&config, NULL, DTYPE_F32);
    for (size_t i = 0; i < COUNT(newer); i++) {
        char key[40];
        snprintf(key, sizeof key, "  \"%s\"", newer[i]);
        char *line = strstr(text, key);
        cr_assert_not_null(line, "%s", newer[i]);
        char *next = strchr(line, '\n') + 1;
        memmove(line, next, strlen(next) + 1);
    }
    put_config(text);
    free(text);
    config_defaults(&back);
    SUCCEEDS(huggingface_read_config(&back, folder, &error));
    cr_expect(back.model.rope_beta_fast == 32 && back.model.rope_beta_slow == 1);
    cr_expect(back.model.rope_attention_factor == 0 && back.model.rope_truncate);
}

/* Both spellings, in the form that transformers 4 and 5 read. Its dynamic scaling takes the
 * original length from max_position_embeddings. */
Test(huggingface, scaled_ropes_are_written_in_both_spellings) {
    static const struct {
        enum rope_scaling kind;
        const char *parts[3];
    } cases[] = {
        {ROPE_UNSCALED,
         {"\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000}",
          "\"rope_scaling\": null", "\"max_position_embeddings\": 32"}},
        {ROPE_LINEAR,
         {"\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, "
          "\"rope_theta\": 10000}",
          "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 2}",
          "\"max_position_embeddings\": 32"}},
        {ROPE_DYNAMIC,
         {"\"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2, "
          "\"rope_theta\": 10000}",
          "\"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2}",
          "\"max_position_embeddings\": 16"}},
        {ROPE_YARN,
         {"\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, \"beta_slow\": 3, "
          "\"truncate\": false, \"original_max_position_embeddings\": 16, "
          "\"rope_theta\": 10000}",
          "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 2, \"beta_slow\": 3, "
          "\"truncate\": false, \"original_max_position_embeddings\": 16}",
          "\"max_position_embeddings\": 32"}},
        {ROPE_LLAMA3,
         {"\"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 2, "
          "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
          "\"original_max_position_embeddings\": 16, \"rope_theta\": 10000}",
          "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 2, "
          "\"low_freq_factor\": 1, \"high_freq_factor\": 4, "
          "\"original_max_position_embeddings\": 16}",
          "\"max_position_embeddings\": 32"}},
    };
    struct config config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        config_defaults(&config);
        set_family(&config, 1);
        config.model.n_positions = 32;
        config.model.rope_scaling = cases[i].kind;
        config.model.rope_factor = 2;
        config.model.rope_beta_slow = 3;
        config.model.rope_truncate = false;
        char *text = printed_config(&config, NULL, DTYPE_F32);
        for (int part = 0; part < 3; part++) expect_text(text, cases[i].parts[part]);
        free(text);
    }
}

Test(huggingface, other_models_are_refused) {
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "config.json"},
        {"[]", "no JSON object"},
        {"{" SIZES "}", "model_type is missing"},
        {"{\"model_type\":\"bert\"," SIZES "}",
         "model_type is \"bert\", but mantissa's list of models needs \"gpt2\", \"llama\""},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"gelu\"," SIZES "}", "gelu_new"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":7," SIZES "}",
         "activation_function is 7"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":0," SIZES "}", "layer_norm_epsilon is 0"},
        {"{\"model_type\":\"gpt2\",\"n_inner\":9.5," SIZES "}", "n_inner is 9.5"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_weights\":false," SIZES "}", "scale_attn_weights"},
        {"{\"model_type\":\"gpt2\",\"tie_word_embeddings\":false," SIZES "}", "tie_word"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_layer\":3}", "\"n_layer\" appears twice"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2.5}", "n_layer is 2.5"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer is 0"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":1e300}", "n_layer is "},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2}", "n_head is missing"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":24}",
         "n_positions is missing"},
        {"{\"model_type\":\"gpt2\",\"add_cross_attention\":true," SIZES "}", "add_cross_attention"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_by_inverse_layer_idx\":true," SIZES "}",
         "needs false"},
        {"{\"model_type\":\"gpt2\",\"is_causal\":false," SIZES "}", "is_causal is false"},
        {"{\"model_type\":\"llama\"," LLAMA ",\"is_causal\":false}", "is_causal is false"},
        {"{\"model_type\":\"gpt2\",\"pruned_heads\":{\"0\":[1]}," SIZES "}", "pruned_heads"},
        {"{\"model_type\":\"gpt2\",\"num_hidden_layers\":0," SIZES "}", "num_hidden_layers is 0"},
        {"{\"model_type\":\"mistral\"," LLAMA
         ",\"quantization_config\":{\"quant_method\":\"gptq\"}}",
         "dequantize()"},
        {"{\"model_type\":\"qwen2\"," LLAMA ",\"per_layer_config\":{\"0\":{\"head_dim\":4}}}",
         "per_layer_config is {\"0\":{\"head_dim\":4}}"},
        {"{\"model_type\":\"qwen2\"," LLAMA ",\"layer_types\":[\"full_attention\"]}",
         "layer_types is"},
        {"{\"model_type\":\"qwen3\"," LLAMA
         ",\"layer_types\":[\"full_attention\",\"chunked_attention\"]}",
         "sliding_attention"},
        {"{\"model_type\":\"llama\"," LLAMA ",\"hidden_act\":\"gelu\"}", "hidden_act is \"gelu\""},
        {"{\"model_type\":\"llama\"," LLAMA ",\"attention_bias\":true}", "attention_bias is true"},
        {"{\"model_type\":\"qwen3\"," LLAMA ",\"attention_bias\":true}", "attention_bias is true"},
        {"{\"model_type\":\"llama\"," LLAMA ",\"pretraining_tp\":2}", "pretraining_tp is 2"},
        {"{\"model_type\":\"llama\"," LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\"}}",
         "factor is missing"},
        {"{\"model_type\":\"mistral\"," LLAMA ",\"sliding_window\":0}", "sliding_window is 0"},
        {"{\"model_type\":\"qwen2\"," LLAMA
         ",\"sliding_window\":\"x\",\"use_sliding_window\":true}",
         "sliding_window is \"x\""},
        {"{\"model_type\":\"llama\",\"num_hidden_layers\":2}", "num_attention_heads is missing"},
        {"{\"model_type\":\"mantissa\",\"n_layer\":2}", "n_head is missing"},
    };
    struct config config, before;
    config_defaults(&config);
    before = config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_config(cases[i].text);
        error.text[0] = '\0';
        cr_expect_eq(huggingface_read_config(&config, folder, &error), -1, "%s", cases[i].text);
        expect_text(error.text, cases[i].reason);
        expect_text(error.text, folder);
        cr_expect_eq(memcmp(&config, &before, sizeof config), 0, "a refused file left traces");
    }
}

#define GPT2(positions, vocab_size)                                           \
    "\"n_layer\":12,\"n_head\":12,\"n_embd\":768,\"n_positions\":" #positions \
    ",\"vocab_size\":" #vocab_size

Test(huggingface, a_directory_of_theirs_gives_a_config) {
    static const struct {
        const char *sizes, *because;
        int64_t seq_len;
        enum tokenizer_kind tokenizer, with_files;
    } cases[] = {
        {SIZES, "small", 16, TOKENIZER_BYTES, TOKENIZER_FILES},
        {GPT2(1024, 50257), "GPT-2's", 1024, TOKENIZER_GPT2, TOKENIZER_FILES},
        {GPT2(131072, 256), "long context", 1024, TOKENIZER_BYTES, TOKENIZER_BYTES},
        {GPT2(1024, 50304), "padded", 1024, TOKENIZER_GPT2, TOKENIZER_FILES},
        {GPT2(1024, 128256), "large", 1024, TOKENIZER_FILES, TOKENIZER_FILES},
        {GPT2(16, 1003), "small", 16, TOKENIZER_BYTES, TOKENIZER_FILES},
    };
    struct config config;
    char text[400];
    cr_expect_eq(checkpoint_config(&config, folder, &error), -1);
    expect_text(error.text, "neither trainer.json nor config.json");
    for (int with_files = 0; with_files < 2; with_files++) {
        for (size_t i = 0; i < COUNT(cases); i++) {
            snprintf(text, sizeof text, "{\"model_type\":\"gpt2\",%s}", cases[i].sizes);
            put_config(text);
            SUCCEEDS(checkpoint_config(&config, folder, &error));
            cr_expect_eq(config.data.tokenizer,
                         with_files ? cases[i].with_files : cases[i].tokenizer, "%s",
                         cases[i].because);
            cr_expect_eq(config.data.seq_len, cases[i].seq_len, "%s", cases[i].because);
        }
        SUCCEEDS(file_write_whole(in_folder("tokenizer.json"), "{}", 2, NULL, &error));
    }
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":5,\"n_embd\":24,"
               "\"n_positions\":16,\"vocab_size\":300}");
    cr_expect_eq(checkpoint_config(&config, folder, &error), -1);
    expect_text(error.text, "n_head");
}
