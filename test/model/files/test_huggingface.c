#include "data/base/files.h"
#include "model/config/config_keys.h"
#include "test/model/files/checkpoint_fixture.h"

#include "model/files/huggingface.h"

TestSuite(huggingface, .init = make_folder, .fini = remove_folder);

static void put_config(const char *text) {
    FILE *out = fopen(in_folder("config.json"), "w");
    cr_assert_not_null(out);
    fputs(text, out);
    cr_assert_eq(fclose(out), 0);
}

#define SIZES "\"n_layer\":2,\"n_head\":3,\"n_embd\":24,\"n_positions\":16,\"vocab_size\":300"

/* The config.json of a config, to be freed. */
static char *printed_config(const struct config *config, const struct tokenizer *tokenizer,
                            enum dtype dtype) {
    char *text;
    size_t size;
    struct huggingface_tokens tokens = huggingface_tokens_of(config, tokenizer);
    FILE *out = open_memstream(&text, &size);
    huggingface_print_config(out, config, &tokens, dtype);
    fclose(out);
    return text;
}

Test(huggingface, what_is_printed_is_read_back) {
    struct config config, read;
    subject_config(&config, CONFIG_PRECISION_FP32);
    char *text = printed_config(&config, NULL, DTYPE_F32);
    expect_text(text, "\"torch_dtype\": \"float32\"");
    put_config(text);
    free(text);
    config_defaults(&read);
    cr_assert_eq(huggingface_read_config(&read, folder, &error), 0, "%s", error.text);
    cr_expect_eq(memcmp(&read.model, &config.model, sizeof read.model), 0);
    cr_expect(config_given(&read, "model.n_layer"));
}

Test(huggingface, tokens_are_those_of_the_tokenizer) {
    struct config config;
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct huggingface_tokens tokens = huggingface_tokens_of(&config, NULL);
    cr_expect(tokens.begin == -1 && tokens.end == -1 && tokens.pad == -1);
    config.data.tokenizer = CONFIG_TOKENIZER_GPT2;
    cr_expect_eq(huggingface_tokens_of(&config, NULL).end, -1, "the vocabulary has 300");
    cr_expect_eq(huggingface_tokens_of(&config, toy_tokenizer()).end, 299);
    config.model.vocab_size = 299;
    cr_expect_eq(huggingface_tokens_of(&config, toy_tokenizer()).end, -1);
    config.model.vocab_size = 50257;
    tokens = huggingface_tokens_of(&config, NULL);
    cr_expect(tokens.begin == 50256 && tokens.end == 50256 && tokens.pad == -1);
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

static void expect_printed(const char *expected, char **text, FILE *out) {
    fclose(out);
    cr_expect_str_eq(*text, expected);
    free(*text);
}

Test(huggingface, small_files) {
    struct config config;
    char *text;
    size_t size;
    subject_config(&config, CONFIG_PRECISION_FP32);
    const struct tokenizer bytes = {.kind = TOKENIZER_BYTES, .end_of_text = -1};
    const struct tokenizer gpt2 = {.kind = TOKENIZER_GPT2, .end_of_text = 50256};
    const struct tokenizer without = {.kind = TOKENIZER_GPT2, .end_of_text = -1};
    FILE *out = open_memstream(&text, &size);
    huggingface_print_generation_config(out, &(struct huggingface_tokens){-1, -1, -1});
    expect_printed("{\n  \"_from_model_config\": true\n}\n", &text, out);
    out = open_memstream(&text, &size);
    huggingface_print_generation_config(out, &(struct huggingface_tokens){1, 2, 0});
    expect_printed("{\n  \"bos_token_id\": 1,\n  \"eos_token_id\": 2,\n  \"pad_token_id\": 0,\n"
                   "  \"_from_model_config\": true\n}\n",
                   &text, out);
    out = open_memstream(&text, &size);
    huggingface_print_tokenizer_config(out, &config, &bytes);
    expect_printed("{\n  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 16,\n"
                   "  \"tokenizer_class\": \"PreTrainedTokenizerFast\"\n}\n",
                   &text, out);
    out = open_memstream(&text, &size);
    huggingface_print_tokenizer_config(out, &config, &gpt2);
    expect_printed("{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                   "  \"bos_token\": \"<|endoftext|>\",\n  \"eos_token\": \"<|endoftext|>\",\n"
                   "  \"unk_token\": \"<|endoftext|>\",\n"
                   "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 16,\n"
                   "  \"tokenizer_class\": \"GPT2Tokenizer\"\n}\n",
                   &text, out);
    out = open_memstream(&text, &size);
    huggingface_print_tokenizer_config(out, &config, &without);
    expect_printed("{\n  \"add_bos_token\": false,\n  \"add_prefix_space\": false,\n"
                   "  \"clean_up_tokenization_spaces\": false,\n  \"model_max_length\": 16,\n"
                   "  \"tokenizer_class\": \"GPT2Tokenizer\"\n}\n",
                   &text, out);
}

Test(huggingface, tokens_of_others_are_read) {
    static const struct {
        const char *members;
        int64_t begin, end, pad;
    } cases[] = {
        {"", 50256, 50256, -1},
        {",\"bos_token_id\":null,\"eos_token_id\":null,\"pad_token_id\":null", -1, -1, -1},
        {",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0", 1, 2, 0},
        {",\"bos_token_id\":60000,\"eos_token_id\":[7,8],\"pad_token_id\":-1", -1, 7, -1},
        {",\"bos_token_id\":50257,\"eos_token_id\":\"a\",\"pad_token_id\":[]", -1, -1, -1},
        {",\"bos_token_id\":1e300,\"eos_token_id\":3,\"eos_token_id\":4", -1, -1, -1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        struct huggingface_tokens tokens;
        char text[400];
        config_defaults(&config);
        config.model.vocab_size = 50257;
        snprintf(text, sizeof text, "{\"model_type\":\"gpt2\"%s}", cases[i].members);
        put_config(text);
        cr_assert_eq(huggingface_read_tokens(&tokens, &config, folder, &error), 0, "%s",
                     error.text);
        cr_expect_eq(tokens.begin, cases[i].begin, "%s", text);
        cr_expect_eq(tokens.end, cases[i].end, "%s", text);
        cr_expect_eq(tokens.pad, cases[i].pad, "%s", text);
        config.model.vocab_size = 300;
        cr_assert_eq(huggingface_read_tokens(&tokens, &config, folder, &error), 0, "%s",
                     error.text);
        cr_expect(tokens.begin < 300 && tokens.end < 300 && tokens.pad < 300);
    }
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
        cr_assert_eq(huggingface_read_config(&config, folder, &error), 0, "%s", error.text);
        cr_expect_eq(config.model.vocab_size, 300);
        cr_expect_eq(config.model.n_head, 3);
        cr_expect_eq(config.model.n_positions, 16);
    }
}

Test(huggingface, other_models_are_refused) {
    static const struct {
        const char *text, *reason;
    } cases[] = {
        {"", "config.json"},
        {"[]", "no JSON object"},
        {"{" SIZES "}", "model_type is missing"},
        {"{\"model_type\":\"llama\"," SIZES "}", "model_type is \"llama\""},
        {"{\"model_type\":\"gpt2\",\"activation_function\":\"gelu\"," SIZES "}", "gelu_new"},
        {"{\"model_type\":\"gpt2\",\"activation_function\":7," SIZES "}",
         "activation_function is 7"},
        {"{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":1e-6," SIZES "}", "1e-5"},
        {"{\"model_type\":\"gpt2\",\"n_inner\":95," SIZES "}", "4 * n_embd"},
        {"{\"model_type\":\"gpt2\",\"scale_attn_weights\":false," SIZES "}", "scale_attn_weights"},
        {"{\"model_type\":\"gpt2\",\"tie_word_embeddings\":false," SIZES "}", "tie_word"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_layer\":3}", "n_layer is missing or there"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2.5}", "n_layer is 2.5"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":0}", "n_layer is 0"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":1e300}", "n_layer is "},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2}", "n_head is missing"},
        {"{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":24}",
         "n_positions is missing"},
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

Test(huggingface, a_directory_of_theirs_gives_a_config) {
    struct config config;
    cr_expect_eq(checkpoint_config(&config, folder, &error), -1);
    expect_text(error.text, "neither trainer.json nor config.json");
    put_config("{\"model_type\":\"gpt2\"," SIZES "}");
    cr_assert_eq(checkpoint_config(&config, folder, &error), 0, "%s", error.text);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_BYTES);
    cr_expect_eq(config.data.seq_len, 16);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":12,\"n_head\":12,\"n_embd\":768,"
               "\"n_positions\":1024,\"vocab_size\":50257}");
    cr_assert_eq(checkpoint_config(&config, folder, &error), 0, "%s", error.text);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_GPT2);
    cr_expect_eq(config.model.vocab_size, 50257);
    cr_expect_eq(config.data.seq_len, 1024);
    /* A small vocabulary is GPT-2's kind if its files are there, unless it is that of bytes. */
    char path[FILE_PATH_MAX];
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    cr_assert_eq(file_write_whole(path, "{}", 2, NULL, &error), 0, "%s", error.text);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":24,"
               "\"n_positions\":16,\"vocab_size\":1003}");
    cr_assert_eq(checkpoint_config(&config, folder, &error), 0, "%s", error.text);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_GPT2);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":2,\"n_embd\":24,"
               "\"n_positions\":16,\"vocab_size\":256}");
    cr_assert_eq(checkpoint_config(&config, folder, &error), 0, "%s", error.text);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_BYTES);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":5,\"n_embd\":24,"
               "\"n_positions\":16,\"vocab_size\":300}");
    cr_expect_eq(checkpoint_config(&config, folder, &error), -1);
    expect_text(error.text, "n_head");
}
