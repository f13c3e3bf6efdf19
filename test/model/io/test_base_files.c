/* Files beside the weights that training does not change, in exports and checkpoints. */
#include "data/util/files.h"
#include "model/config/config_keys.h"
#include "test/model/families.h"
#include "test/model/io/checkpoint_fixture.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "model/io/base_files.h"
#include "model/io/export.h"
#include "model/io/huggingface.h"
#include "test/model/io/foreign_weights.h"
#include "test/small_bpe.h"

TestSuite(base_files, .init = make_folder, .fini = remove_folder);

static void expect_same_file(const char *a, const char *b) {
    char left[SHA256_HEX_MAX], right[SHA256_HEX_MAX];
    SUCCEEDS(sha256_file(left, NULL, a, &error));
    SUCCEEDS(sha256_file(right, NULL, b, &error));
    cr_expect_str_eq(left, right, "%s and %s differ", a, b);
}

static void expect_content(const char *name, const char *expected) {
    char *text;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("%s", name), 100000, &error));
    cr_expect_str_eq(text, expected);
    free(text);
}

/* Puts a Hugging Face model into the folder, with the sizes of the tiny one. */
static void put_model(void) {
    static const struct foreign_format plain = {.dtype = SAFETENSORS_F32, .prefix = ""};
    struct config config;
    int64_t count;
    subject_config(&config, CONFIG_PRECISION_FP32);
    const struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    put_weights(list, &plain);
    arrfree(list);
    put_text("config.json", "{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":3,\"n_embd\":24,"
                            "\"n_positions\":16,\"vocab_size\":300}");
}

static int export_from(const char *to, const char *from, enum dtype dtype) {
    char source[FILE_PATH_MAX];
    snprintf(source, sizeof source, "%s/%s", folder, from);
    return export_model(in_folder("%s", to), source, &(const struct export_options){.dtype = dtype},
                        &error);
}

static void export_to(const char *to, const char *from, enum dtype dtype) {
    SUCCEEDS(export_from(to, from, dtype));
}

static void expect_refused(const char *reason) {
    error.text[0] = '\0';
    cr_expect_eq(export_from("refused", "", DTYPE_F32), -1);
    expect_text(error.text, reason);
}

/* The text of a model with images is a model of its own, with a config.json that has no images. */
Test(base_files, the_text_of_a_model_with_images_gets_a_config_json) {
    static const struct foreign_format plain = {.dtype = SAFETENSORS_F32,
                                                .prefix = "language_model."};
    struct config config;
    int64_t count;
    char *text;
    size_t size;
    subject_config(&config, CONFIG_PRECISION_FP32);
    set_family(&config, 7);
    const struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    put_weights(list, &plain);
    arrfree(list);
    put_text("config.json",
             "{\"model_type\":\"gemma3\",\"vision_config\":{},\"text_config\":{"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
             "\"head_dim\":6,\"hidden_size\":24,\"intermediate_size\":72,\"vocab_size\":300,"
             "\"max_position_embeddings\":16,\"eos_token_id\":[1,106]}}");
    export_to("text", "", DTYPE_F32);
    SUCCEEDS(file_read_all(&text, &size, in_folder("text/config.json"), 100000, &error));
    expect_text(text, "\"model_type\": \"gemma3_text\"");
    expect_text(text, "\"eos_token_id\": [1, 106]");
    cr_expect(!strstr(text, "vision") && !strstr(text, "text_config"), "%s", text);
    free(text);
}

static void expect_in(const char *name, const char *part) {
    char *text;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("%s", name), 100000, &error));
    expect_text(text, part);
    free(text);
}

/* config.json keeps every byte but the dtype, in both spellings. mlx-lm needs n_ctx, which
 * transformers does not write. */
Test(base_files, keeps_config_json) {
    static const char before[] =
        "{\"model_type\":\"gpt2\", \"n_layer\":2,\n  \"n_head\" : 3, \"n_embd\":24, "
        "\"n_positions\":16, \"vocab_size\":300,\n\"dtype\": %s, \"torch_dtype\":%s,"
        "\"eos_token_id\":[7, 8], \"bos_token_id\":null, \"pad_token_id\":5,\n"
        "\"odd\": {\"torch_dtype\":\"x\", \"n\":1e-05}%s}\n";
#define ADDED                                                                        \
    ",\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": "             \
    "[\"GPT2LMHeadModel\"],\n  \"layer_norm_epsilon\": 1e-05,\n  \"n_ctx\": 16,\n  " \
    "\"n_inner\": null,\n  \"scale_attn_by_inverse_layer_idx\": false,\n  "          \
    "\"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n  \"use_cache\": true\n"
    char text[1000];
    put_model();
    snprintf(text, sizeof text, before, "\"float64\"", "null", "");
    put_text("config.json", text);
    export_to("out", "", DTYPE_BF16);
    snprintf(text, sizeof text, before, "\"bfloat16\"", "\"bfloat16\"", ADDED);
    expect_content("out/config.json", text);
    expect_content("out/generation_config.json",
                   "{\n  \"eos_token_id\": [7, 8],\n  \"pad_token_id\": 5,\n"
                   "  \"_from_model_config\": true\n}\n");
}

/* A link could publish a file of the user that is no part of the model. Links inside the folder,
 * and those of the cache of Hugging Face's hub, are followed. */
Test(base_files, what_belongs_to_a_model_is_copied) {
    static const char *const copied[] = {"vocab.json",
                                         "merges.txt",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "generation_config.json",
                                         "chat_template.jinja",
                                         "tokenizer.model"};
    put_model();
    for (size_t i = 0; i < COUNT(copied); i++) {
        char text[80];
        snprintf(text, sizeof text, " {\"%s\" : [1e-05 ,  2]} \n", copied[i]);
        put_text(copied[i], text);
    }
    put_text("pytorch_model.bin", "");
    put_text("optimizer.safetensors", "");
    export_to("out", "", DTYPE_BF16);
    cr_expect_str_eq(names_in("out"),
                     "added_tokens.json chat_template.jinja config.json generation_config.json "
                     "merges.txt model.safetensors special_tokens_map.json tokenizer.json "
                     "tokenizer.model tokenizer_config.json vocab.json ");
    for (size_t i = 0; i < COUNT(copied); i++)
        expect_same_file(in_folder("%s", copied[i]), in_folder("out/%s", copied[i]));
}

Test(base_files, links_out_of_the_folder_are_refused) {
    put_model();
    put_text("inside.txt", "{{ messages }}");
    cr_assert_eq(symlink("inside.txt", in_folder("chat_template.jinja")), 0);
    export_to("a", "", DTYPE_F32);
    expect_same_file(in_folder("inside.txt"), in_folder("a/chat_template.jinja"));
    unlink(in_folder("chat_template.jinja"));
    cr_assert_eq(symlink("/etc/passwd", in_folder("chat_template.jinja")), 0);
    expect_refused("chat_template.jinja is a link to /etc/passwd, outside its folder");
    unlink(in_folder("chat_template.jinja"));
    cr_assert_eq(symlink("/etc/passwd", in_folder("special_tokens_map.json")), 0);
    expect_refused("special_tokens_map.json is a link to /etc/passwd, outside its folder");
    unlink(in_folder("special_tokens_map.json"));
    put_text("special_tokens_map.json", "[1]");
    expect_refused("special_tokens_map.json does not hold one JSON object");
    cr_expect(!file_exists(in_folder("refused")));
    unlink(in_folder("special_tokens_map.json"));
    cr_assert_eq(mkdir(in_folder("blobs"), 0755), 0);
    cr_assert_eq(mkdir(in_folder("snapshots"), 0755), 0);
    put_text("blobs/1", "{{ bos_token }}");
    cr_assert_eq(mkdir(in_folder("snapshots/main"), 0755), 0);
    rename(in_folder("config.json"), in_folder("snapshots/main/config.json"));
    rename(in_folder("model.safetensors"), in_folder("snapshots/main/model.safetensors"));
    cr_assert_eq(symlink("../../blobs/1", in_folder("snapshots/main/chat_template.jinja")), 0);
    export_to("c", "snapshots/main", DTYPE_F32);
    expect_same_file(in_folder("blobs/1"), in_folder("c/chat_template.jinja"));
}

/* An absent key has the default of the class in transformers 5: 50256 for GPT-2, 1 and 2 for Llama
 * and Mistral, none for Qwen. */
Test(base_files, tokens_of_others_are_read) {
    static const struct {
        const char *type, *members;
        int64_t begin, pad;
        int count;
        int32_t ends[3];
        const char *generation;
    } cases[] = {
        {"gpt2", "", 50256, -1, 1, {50256}, NULL},
        {"llama", "", 1, -1, 1, {2}, NULL},
        {"mistral", ",\"eos_token_id\":3", 1, -1, 1, {3}, NULL},
        {"qwen2", "", -1, -1, 0, {0}, NULL},
        {"qwen3", "", -1, -1, 2, {5, 4}, "{\"eos_token_id\":[5,4,5]}"},
        {"gpt2", ",\"bos_token_id\":null,\"eos_token_id\":null", -1, -1, 0, {0}, NULL},
        {"gpt2",
         ",\"bos_token_id\":1,\"eos_token_id\":2,\"pad_token_id\":0",
         1,
         0,
         2,
         {2, 9},
         "{\"eos_token_id\":9}"},
        {"gpt2",
         ",\"bos_token_id\":60000,\"eos_token_id\":[7,8],\"pad_token_id\":-1",
         -1,
         -1,
         3,
         {7, 8, 6},
         "{\"eos_token_id\":[8,6]}"},
        {"gpt2",
         ",\"bos_token_id\":50257,\"eos_token_id\":\"a\",\"pad_token_id\":[]",
         -1,
         -1,
         0,
         {0},
         NULL},
        {"gpt2", ",\"bos_token_id\":1e300,\"eos_token_id\":-3", -1, -1, 0, {0}, "{}"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        struct huggingface_tokens tokens;
        char text[400];
        config_defaults(&config);
        config.model.vocab_size = 50257;
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s}", cases[i].type, cases[i].members);
        put_text("config.json", text);
        unlink(in_folder("generation_config.json"));
        if (cases[i].generation) put_text("generation_config.json", cases[i].generation);
        SUCCEEDS(huggingface_read_tokens(&tokens, &config, folder, &error));
        cr_expect_eq(tokens.begin, cases[i].begin, "%s", text);
        cr_expect_eq(tokens.pad, cases[i].pad, "%s", text);
        cr_expect_eq(tokens.end_count, cases[i].count, "%s", text);
        for (int k = 0; k < cases[i].count; k++)
            cr_expect_eq(tokens.ends[k], cases[i].ends[k], "%s", text);
        config.model.vocab_size = 3;
        SUCCEEDS(huggingface_read_tokens(&tokens, &config, folder, &error));
        cr_expect(tokens.begin < 3 && tokens.pad < 3);
        for (int k = 0; k < tokens.end_count; k++) cr_expect_lt(tokens.ends[k], 3);
    }
}

Test(base_files, more_end_tokens_than_fit_are_refused) {
    struct config config;
    struct huggingface_tokens tokens;
    config_defaults(&config);
    put_text("config.json",
             "{\"model_type\":\"gpt2\",\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,"
             "15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30]}");
    cr_expect_eq(huggingface_read_tokens(&tokens, &config, folder, &error), -1);
    expect_text(error.text, "config.json: eos_token_id has more than 30 tokens");
}

/* Sizes of the run's config replace those of the base; other keys stay. */
Test(base_files, sizes_that_the_config_sets_replace_the_base) {
    struct config config;
    struct base_files base;
    struct stored_file *written = NULL;
    put_text("config.json",
             "{\"model_type\":\"llama\",\"hidden_size\":32,\"intermediate_size\":64,"
             "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"max_position_embeddings\":"
             "16,\"vocab_size\":300,\"rope_theta\":5000.0,\"eos_token_id\":[3, 4],\"odd\":1}");
    config_defaults(&config);
    SUCCEEDS(huggingface_read_config(&config, folder, &error));
    config.model.n_positions = 64;
    SUCCEEDS(base_files_open(&base, &config, NULL, folder, NULL, &error));
    SUCCEEDS(mkdir(in_folder("out"), 0755));
    const struct base_target target = {&base, &config, NULL, DTYPE_F16, in_folder("out")};
    SUCCEEDS(base_files_write(&target, true, &written, &error));
    char *text;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("out/config.json"), 10000, &error));
    expect_text(text, "\"max_position_embeddings\":64,\"vocab_size\":300");
    expect_text(text, "\"eos_token_id\":[3, 4],\"odd\":1,\n");
    expect_text(text, "\"torch_dtype\": \"float16\"");
    base_files_close(&base);
    SUCCEEDS(base_files_open(&base, &config, NULL, in_folder("out"), NULL, &error));
    cr_expect(base.same_shape, "%s", text);
    cr_expect_eq(base.tokens.end_count, 2);
    free(text);
    arrfree(written);
    base_files_close(&base);
}

/* Writes a tokenizer.json of bytes whose token 258 ends a text, with further added tokens. */
static void put_tokenizer_json(const char *added) {
    FILE *out = fopen(in_folder("tokenizer.json"), "w");
    fprintf(out,
            "{\"version\": \"1.0\", \"added_tokens\": [{\"id\": 258, \"content\": "
            "\"<|end_of_text|>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
            "\"normalized\": false, \"special\": true}%s], \"normalizer\": null, "
            "\"post_processor\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
            "\"add_prefix_space\": false, \"use_regex\": true}, \"decoder\": {\"type\": "
            "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {",
            added);
    print_bytes(out);
    fputs(", \"ab\": 256, \"bc\": 257}, \"merges\": [\"a b\", \"b c\"]}}", out);
    cr_assert_eq(fclose(out), 0);
}

/* Writes the files of a base whose model is the config.json in the folder. */
static void write_base(const struct tokenizer *tokenizer, const char *model,
                       const struct config *config) {
    struct base_files base;
    struct stored_file *written = NULL;
    SUCCEEDS(directory_remove(in_folder("out"), &error));
    SUCCEEDS(mkdir(in_folder("out"), 0755));
    SUCCEEDS(base_files_open(&base, config, tokenizer, model, folder, &error));
    const struct base_target target = {&base, config, tokenizer, DTYPE_F32, in_folder("out")};
    SUCCEEDS(base_files_write(&target, true, &written, &error));
    base_files_close(&base);
    arrfree(written);
}

#define SIZES                                                              \
    "\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":8,"  \
    "\"max_position_embeddings\":64,\"vocab_size\":300"
#define LLAMA3                                                         \
    "\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0," \
    "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":32"

/* transformers 5 saves rope_parameters alone. transformers 4, mlx-lm and mistral.rs read the others
 * alone, and the base 10000 where there is none. Of two spellings that disagree transformers 5
 * computes with rope_scaling if it is not null, and else with rope_parameters. */
Test(base_files, config_json_has_both_spellings_of_rope) {
    static const struct {
        const char *type, *members, *parts[3];
    } cases[] = {
        {"llama",
         "\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}",
         {"{\"rope_theta\":5e5,\"rope_type\":\"default\"}", "\"rope_theta\": 500000",
          "\"rope_scaling\": null"}},
        {"llama",
         "\"rope_parameters\":{" LLAMA3 ",\"rope_theta\":5e5}",
         {"\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, "
          "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 32}",
          "\"rope_theta\": 500000", "{" LLAMA3 ",\"rope_theta\":5e5}"}},
        {"qwen3",
         "\"rope_theta\":1e6,\"rope_scaling\":null",
         {"\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1000000}",
          "\"rope_theta\":1e6,\"rope_scaling\":null", "\"max_window_layers\": 2"}},
        {"mistral",
         "\"rope_theta\":2e4,\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}",
         {"\"rope_theta\":500000,\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":"
          "\"default\"},"}},
        {"qwen2",
         "\"rope_theta\":2e4,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2.0},"
         "\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"default\"}",
         {"\"rope_theta\":2e4",
          "\"rope_parameters\":{\"rope_type\": \"linear\", \"factor\": 2, "
          "\"rope_theta\": 20000}",
          "\"rope_scaling\":{\"rope_type\": \"linear\", \"factor\": 2}"}},
        {"gemma3_text",
         "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8.0,"
         "\"rope_theta\":1e6},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":2e4}"
         "}",
         {"\"rope_theta\": 1000000", "\"rope_local_base_freq\": 20000",
          "\"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}"}},
        {"gemma3_text",
         "\"rope_theta\":1e6,\"rope_local_base_freq\":3e4",
         {"\"full_attention\": {\"rope_type\": \"default\", \"rope_theta\": 1000000}",
          "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 30000}",
          "\"rope_scaling\": null"}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        char text[900];
        snprintf(text, sizeof text, "{\"model_type\":\"%s\"," SIZES ",%s}", cases[i].type,
                 cases[i].members);
        put_text("config.json", text);
        config_defaults(&config);
        SUCCEEDS(huggingface_read_config(&config, folder, &error));
        write_base(NULL, folder, &config);
        for (int k = 0; k < 3 && cases[i].parts[k]; k++)
            expect_in("out/config.json", cases[i].parts[k]);
    }
}

/* transformers stops at those of generation_config.json, other readers at those of config.json, and
 * --sample at both. */
Test(base_files, both_files_have_all_tokens_that_end_a_text) {
    static const struct {
        const char *config, *generation, *in_config, *in_generation;
    } cases[] = {
        {"[0, 4]", "{\"eos_token_id\":0,\"top_k\":9}", "\"eos_token_id\":[0, 4]",
         "{\"eos_token_id\":[0, 4],\"top_k\":9}"},
        {"3", "{\"eos_token_id\":[7,3]}", "\"eos_token_id\":[3, 7]", "{\"eos_token_id\":[7,3]}"},
        {"3", "{\"top_k\":9}", "\"eos_token_id\":3", "{\"top_k\":9,\n  \"eos_token_id\": 3\n}"},
        {"null", "{\"eos_token_id\":6}", "\"eos_token_id\":6", "{\"eos_token_id\":6}"},
        {"null", "{}", "\"eos_token_id\":258", "{\n  \"eos_token_id\": 258\n}"},
    };
    char text[600];
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        snprintf(text, sizeof text, "{\"model_type\":\"qwen2\"," SIZES ",\"eos_token_id\":%s}",
                 cases[i].config);
        put_text("config.json", text);
        put_text("generation_config.json", cases[i].generation);
        put_tokenizer_json("");
        config_defaults(&config);
        SUCCEEDS(huggingface_read_config(&config, folder, &error));
        write_base(NULL, folder, &config);
        expect_in("out/config.json", cases[i].in_config);
        expect_content("out/generation_config.json", cases[i].in_generation);
    }
}

/* A new model keeps the settings of its tokenizer, such as pad_token, without which transformers
 * cannot pad. */
Test(base_files, a_new_model_keeps_the_settings_of_its_tokenizer) {
    struct config config;
    struct tokenizer tokenizer;
    config_defaults(&config);
    config.model.vocab_size = 300;
    config.model.n_positions = 48;
    config.data.tokenizer = TOKENIZER_FILES;
    put_tokenizer_json(
        ", {\"id\": 259, \"content\": \"<pad>\", \"single_word\": false, \"lstrip\": "
        "false, \"rstrip\": false, \"normalized\": false, \"special\": true}");
    put_text("tokenizer_config.json",
             "{\"pad_token\":\"<pad>\",\"padding_side\":\"left\",\"model_max_length\":8192,"
             "\"tokenizer_class\":\"TokenizersBackend\"}");
    put_text("special_tokens_map.json", "{\"pad_token\":\"<pad>\"}");
    SUCCEEDS(tokenizer_open(&tokenizer, TOKENIZER_FILES, folder, &error));
    write_base(&tokenizer, NULL, &config);
    expect_content("out/tokenizer_config.json",
                   "{\"pad_token\":\"<pad>\",\"padding_side\":\"left\",\"model_max_length\":48,"
                   "\"tokenizer_class\":\"PreTrainedTokenizerFast\"}");
    expect_content("out/special_tokens_map.json", "{\"pad_token\":\"<pad>\"}");
    expect_in("out/config.json", "\"pad_token_id\": 259");
    expect_in("out/generation_config.json", "\"pad_token_id\": 259");
    tokenizer_close(&tokenizer);
}
