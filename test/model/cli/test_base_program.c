/* ./train from a model of others: its files go along, and the end of trained answers is added. */
#include "data/util/files.h"
#include "test/model/cli/program_fixture.h"

#include "data/corpus/chat.h"
#include "test/small_bpe.h"

TestSuite(base_program, .init = set_up, .fini = remove_folder);

#define TOKEN(id, name)                                                                        \
    "{\"id\": " #id ", \"content\": \"" name "\", \"single_word\": false, \"lstrip\": false, " \
    "\"rstrip\": false, \"normalized\": false, \"special\": true}"

/* Writes bytes with the special tokens of ChatML. */
static void write_tokenizer(const char *directory) {
    static const char level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                                "\"trim_offsets\": true, \"use_regex\": true}";
    cr_assert_eq(mkdir(in_folder("%s", directory), 0755), 0);
    FILE *out = fopen(in_folder("%s/tokenizer.json", directory), "w");
    cr_assert_not_null(out);
    fprintf(
        out,
        "{\"added_tokens\": [" TOKEN(256, "<|endoftext|>") ", " TOKEN(
            257, "<|im_start|>") ", " TOKEN(258, "<|im_end|>") "],\n"
                                                               "\"pre_tokenizer\": %s, "
                                                               "\"decoder\": %s, \"model\": "
                                                               "{\"type\": \"BPE\", \"merges\": "
                                                               "[], \"vocab\": {",
        level, level);
    print_bytes(out);
    fputs("}}}\n", out);
    cr_assert_eq(fclose(out), 0);
}

static void write_rows(void) {
    FILE *out = fopen(in_folder("rows.jsonl"), "w");
    for (int i = 0; i < 40; i++)
        fprintf(out,
                "{\"messages\":[{\"role\":\"user\",\"content\":\"q%d\"},"
                "{\"role\":\"assistant\",\"content\":\"a%d\"}]}\n",
                i, i);
    cr_assert_eq(fclose(out), 0);
}

static void prepare(void) {
    const char *name = getenv("PREPARE") ? getenv("PREPARE") : "./prepare";
    char path[FILE_PATH_MAX], command[3 * FILE_PATH_MAX];
    cr_assert_not_null(realpath(name, path), "no program %s: build it or set PREPARE", name);
    snprintf(command, sizeof command,
             "cd %s && %s --tokenizer base --val-fraction 0 --out chat rows.jsonl >out.txt 2>&1",
             folder, path);
    cr_assert_eq(system(command), 0, "%s", command);
}

static void expect_file(const char *name, const char *expected) {
    char *text;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("%s", name), 1 << 20, &error));
    cr_expect_str_eq(text, expected, "%s", name);
    free(text);
}

static void expect_same(const char *directory, const char *name) {
    char *text, path[200];
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("base/%s", name), 1 << 20, &error));
    snprintf(path, sizeof path, "%s/%s", directory, name);
    expect_file(path, text);
    free(text);
}

/* Base of few members, and what is written of it: with those that other readers need. */
#define MEMBERS(eos, dtype)                                                                    \
    "{\"model_type\":\"gpt2\", \"odd\":{\"n\":1e-05},\n\"n_layer\":2,\"n_head\":2,\"n_embd\":" \
    "32,\"n_positions\":32,\n  \"vocab_size\" : 259, \"eos_token_id\":" eos ",\n"              \
    "\"pad_token_id\":7, \"dtype\" : \"" dtype "\""
#define CONFIG(eos, dtype) MEMBERS(eos, dtype) "}\n"
#define WRITTEN(eos, dtype)                                                                    \
    MEMBERS(eos, dtype)                                                                        \
    ",\n  \"activation_function\": \"gelu_new\",\n  \"architectures\": [\"GPT2LMHeadModel\"]," \
    "\n  \"layer_norm_epsilon\": 1e-05,\n  \"n_ctx\": 32,\n  \"n_inner\": null,\n"             \
    "  \"scale_attn_by_inverse_layer_idx\": false,\n  \"scale_attn_weights\": true,\n"         \
    "  \"tie_word_embeddings\": true,\n  \"use_cache\": true\n}\n"
#define GENERATION(eos) "{\"top_k\": 20, \"eos_token_id\" : " eos ", \"bos_token_id\": 256}"

static const char *const kept[] = {"tokenizer.json", "tokenizer_config.json", "added_tokens.json",
                                   "special_tokens_map.json"};

/* Expects the files of the base, with the end of answers that the base does not have. */
static void expect_files(const char *directory, const char *config) {
    char path[200];
    snprintf(path, sizeof path, "%s/config.json", directory);
    expect_file(path, config);
    snprintf(path, sizeof path, "%s/generation_config.json", directory);
    expect_file(path, GENERATION("[256, 258]"));
    for (int i = 0; i < 4; i++) expect_same(directory, kept[i]);
}

static void train_from_base(const char *more, char arguments[1000]) {
    snprintf(arguments, 1000,
             "--config|tiny.json|--set|name=tuned|--set|data.train=chat_train_*.bin|--set|"
             "data.val=|--set|eval.every=0|--set|sample.every=0|--set|data.tokenizer=files|--set|"
             "model.vocab_size=259|--set|model.init_from=base%s",
             more);
    expect_exit(arguments, 0);
}

/* Prepares chat rows and trains a model of random weights on them, a/first. */
static void train_first(void) {
    write_tokenizer("base");
    write_rows();
    prepare();
    expect_exit("--config|tiny.json|--set|name=first|--set|data.train=chat_train_*.bin|--set|"
                "data.val=|--set|eval.every=0|--set|sample.every=0|--set|train.steps=1|--set|"
                "data.tokenizer=files|--set|data.tokenizer_dir=base|--set|model.vocab_size=259",
                0);
}

Test(base_program, training_and_export_keep_the_files_of_the_base) {
    static const char step2[] = "a/tuned/checkpoints/step-00000002";
    char arguments[1000], path[200];
    train_first();
    /* A model of random weights: the end of answers follows the tokenizer's own. */
    snprintf(path, sizeof path, "a/first/checkpoints/step-00000001/generation_config.json");
    expect_file(path, "{\n  \"bos_token_id\": 256,\n  \"eos_token_id\": [256, 258],\n"
                      "  \"_from_model_config\": true\n}\n");
    SUCCEEDS(rename(in_folder("a/first/checkpoints/step-00000001/model.safetensors"),
                    in_folder("base/model.safetensors")));
    write_file("base/config.json", CONFIG("256", "bfloat16"));
    write_file("base/generation_config.json", GENERATION("256"));
    write_file("base/tokenizer_config.json",
               "{ \"eos_token\":\"<|endoftext|>\", \"chat_template\": null, \"odd\": 2}");
    write_file("base/special_tokens_map.json", "{\"eos_token\" : \"<|endoftext|>\"}\n\n");
    write_file("base/added_tokens.json", "{\"<|im_end|>\":258 }");
    train_from_base("|--set|train.steps=2", arguments);
    expect_files(step2, WRITTEN("[256, 258]", "float32"));
    snprintf(path, sizeof path, "%s/chat_template.jinja", step2);
    expect_file(path, chat_template_text(chat_template_at(0)));
    /* The base is not needed any more. */
    SUCCEEDS(rename(in_folder("base"), in_folder("away")));
    expect_exit("--config|a/tuned/config.json|--set|train.steps=3|--resume", 0);
    SUCCEEDS(rename(in_folder("away"), in_folder("base")));
    expect_files("a/tuned/checkpoints/step-00000003", WRITTEN("[256, 258]", "float32"));
    expect_exit("--export|out|--dtype|fp16|--from|a/tuned", 0);
    expect_files("out", WRITTEN("[256, 258]", "float16"));
    expect_file("out/chat_template.jinja", chat_template_text(chat_template_at(0)));
    expect_exit("--export|copy|--dtype|bf16|--from|base", 0);
    expect_file("copy/config.json", WRITTEN("256", "bfloat16"));
    expect_same("copy", "generation_config.json");
    /* The base's own template stays, and its ends are united. */
    write_file("base/chat_template.jinja", "{{ messages }}");
    write_file("base/generation_config.json", GENERATION("[258, 3]"));
    train_from_base("|--set|train.steps=2|--set|name=again", arguments);
    expect_same("a/again/checkpoints/step-00000002", "chat_template.jinja");
    expect_file("a/again/checkpoints/step-00000002/generation_config.json",
                GENERATION("[256, 258, 3]"));
    expect_file("a/again/checkpoints/step-00000002/config.json",
                WRITTEN("[256, 258, 3]", "float32"));
}

/* Adapters, alone and merged: the files of the base that they were trained on. */
Test(base_program, adapters_keep_the_files_of_the_base) {
    char arguments[1000];
    train_first();
    SUCCEEDS(rename(in_folder("a/first/checkpoints/step-00000001/model.safetensors"),
                    in_folder("base/model.safetensors")));
    write_file("base/config.json", CONFIG("256", "bfloat16"));
    write_file("base/generation_config.json", GENERATION("256"));
    for (int i = 1; i < 4; i++)
        write_file(in_folder("base/%s", kept[i]) + strlen(folder) + 1, "{}");
    train_from_base("|--set|train.steps=2|--set|adapter.type=lora", arguments);
    expect_exit("--export|merged|--merge|--dtype|bf16|--from|a/tuned", 0);
    expect_files("merged", WRITTEN("[256, 258]", "bfloat16"));
    expect_file("merged/chat_template.jinja", chat_template_text(chat_template_at(0)));
    expect_exit("--export|alone|--from|a/tuned", 0);
    expect_file("alone/generation_config.json", GENERATION("[256, 258]"));
    expect_file("alone/chat_template.jinja", chat_template_text(chat_template_at(0)));
    for (int i = 0; i < 4; i++) expect_same("alone", kept[i]);
    cr_expect(!exists("alone/config.json"), "transformers would take it for a whole model");
}

/* A GGUF file of adapters is that of the merged model, with its ends and its chat template. */
Test(base_program, a_gguf_file_has_adapters_merged) {
    char arguments[1000], one[SHA256_HEX_MAX], two[SHA256_HEX_MAX], *text;
    size_t size;
    train_first();
    SUCCEEDS(rename(in_folder("a/first/checkpoints/step-00000001/model.safetensors"),
                    in_folder("base/model.safetensors")));
    write_file("base/config.json", CONFIG("256", "bfloat16"));
    write_file("base/generation_config.json", GENERATION("256"));
    train_from_base("|--set|train.steps=2|--set|adapter.type=lora", arguments);
    expect_error("--export|one/m.gguf|--from|a/tuned", 1,
                 "holds adapters, and a GGUF file a model\nadd --merge");
    expect_exit("--export|one/m.gguf|--type|f32|--merge|--from|a/tuned", 0);
    expect_exit("--export|whole|--merge|--from|a/tuned", 0);
    expect_exit("--export|two/m.gguf|--from|whole", 0);
    SUCCEEDS(sha256_file(one, NULL, in_folder("one/m.gguf"), &error));
    SUCCEEDS(sha256_file(two, NULL, in_folder("two/m.gguf"), &error));
    cr_expect_str_eq(one, two);
    SUCCEEDS(file_read_all(&text, &size, in_folder("one/m.gguf"), 1 << 24, &error));
    const char *template = chat_template_text(chat_template_at(0));
    cr_expect_not_null(memmem(text, size, template, strlen(template)));
    cr_expect_not_null(memmem(text, size, "tokenizer.ggml.eot_token_id\4\0\0\0\2\1\0\0", 35),
                       "258 ends turns");
    free(text);
    expect_error("--export|one/m.gguf|--merge|--from|a/tuned", 1, "already exists");
}
