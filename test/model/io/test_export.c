#include "data/util/files.h"
#include "model/config/config_keys.h"
#include "model/core/model_initialize.h"
#include "test/model/io/checkpoint_fixture.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "model/io/checkpoint_tensors.h"
#include "model/io/export.h"
#include "model/io/huggingface.h"
#include "model/io/safetensors.h"
#include "test/model/families.h"
#include "test/model/io/foreign_weights.h"
#include "test/safetensors_find.h"
#include "test/small_bpe.h"

static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_F16, DTYPE_BF16};

TestSuite(export, .init = make_folder, .fini = remove_folder);

static void expect_same_file(const char *a, const char *b) {
    char left[SHA256_HEX_MAX], right[SHA256_HEX_MAX];
    SUCCEEDS(sha256_file(left, NULL, a, &error));
    SUCCEEDS(sha256_file(right, NULL, b, &error));
    cr_expect_str_eq(left, right, "%s and %s differ", a, b);
}

static void export_well(const char *to, const char *from, enum dtype dtype) {
    char source[FILE_PATH_MAX];
    snprintf(source, sizeof source, "%s/%s", folder, from);
    SUCCEEDS(export_model(in_folder("%s", to), source,
                          &(const struct export_options){.dtype = dtype}, &error));
}

static void expect_refused(const char *to, const char *from, const char *reason) {
    error.text[0] = '\0';
    cr_expect_eq(export_model(to, from, &(const struct export_options){.dtype = DTYPE_F16}, &error),
                 -1, "exported: %s", reason);
    expect_text(error.text, reason);
}

/* Puts a Hugging Face model into the folder, with the sizes of the tiny one. Returns its
 * parameters. */
static struct parameter *put_model(const struct foreign_format *format) {
    struct config config;
    int64_t count;
    char *text;
    size_t size;
    subject_config(&config, CONFIG_PRECISION_FP32);
    struct huggingface_tokens tokens = {.begin = 1, .pad = -1, .ends = {2}, .end_count = 1};
    FILE *out = open_memstream(&text, &size);
    huggingface_print_config(out, &config, &tokens, DTYPE_F32);
    fclose(out);
    put_text("config.json", text);
    free(text);
    struct model_shape shape = config_shape(&config);
    struct parameter *list = parameter_list(&shape, &count);
    put_weights(list, format);
    return list;
}

static const struct foreign_format plain = {.dtype = SAFETENSORS_F32, .prefix = ""};

static void put_plain_model(void) {
    struct parameter *list = put_model(&plain);
    arrfree(list);
}

/* Every tensor of DIRECTORY/model.safetensors must have that dtype and value_of's values, in the
 * order of the list. */
static void expect_values(const char *directory, const struct parameter *list, enum dtype dtype) {
    static const char *const names[] = {"F32", "F16", "BF16"};
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, in_folder("%s/model.safetensors", directory), &error));
    cr_assert_eq(file.count, arrlen(list));
    for (ptrdiff_t i = 0; i < arrlen(list); i++) {
        const struct safetensors_entry *entry = &file.entries[i];
        cr_expect_eq(strncmp(entry->name, "transformer.", 12), 0);
        cr_expect_str_eq(entry->name + 12, list[i].name);
        cr_expect_str_eq(safetensors_dtype_name(entry->dtype), names[dtype]);
        size_t count = entry->bytes / dtype_bytes(dtype);
        void *data = safetensors_data(&file, entry);
        cr_assert_not_null(data);
        for (size_t k = 0; k < count; k++) {
            float buffer;
            cr_assert_eq(*dtype_widen(&buffer, data, dtype, k, 1), value_of(i, (int64_t)k));
        }
        free(data);
    }
    safetensors_close(&file);
}

Test(export, in_the_same_dtype_is_the_same_file) {
    static const char *const names[] = {
        "model.safetensors", "config.json", "generation_config.json",
        "vocab.json",        "merges.txt",  "tokenizer_config.json"};
    struct subject subject;
    char path[FILE_PATH_MAX];
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject.trainer.tokenizer = toy_tokenizer();
    save_step(&subject, folder, 5, path);
    export_well("a/b/out", "checkpoints/step-00000005", DTYPE_F32);
    cr_expect_str_eq(names_in("a/b/out"),
                     "config.json generation_config.json merges.txt model.safetensors "
                     "tokenizer_config.json vocab.json ");
    cr_expect_str_eq(names_in("a/b"), "out ");
    for (size_t i = 0; i < COUNT(names); i++)
        expect_same_file(in_folder("checkpoints/step-00000005/%s", names[i]),
                         in_folder("a/b/out/%s", names[i]));
    subject_close(&subject);
}

/* From every dtype into every other, from shards and from one file. */
Test(export, gives_every_dtype) {
    static const enum safetensors_dtype stored[] = {SAFETENSORS_F32, SAFETENSORS_F16,
                                                    SAFETENSORS_BF16};
    static const char *const names[] = {"\"float32\"", "\"float16\"", "\"bfloat16\""};
    for (int i = 0; i < 9; i++) {
        struct foreign_format format = {.dtype = stored[i / 3],
                                        .prefix = i % 2 ? "" : "transformer."};
        format.extra = "h.0.attn.bias";
        format.head = 1;
        format.shards = i % 4;
        format.mixed = i == 8;
        char *text, to[16];
        size_t size;
        unlink(in_folder("model.safetensors"));
        struct parameter *list = put_model(&format);
        snprintf(to, sizeof to, "out%d", i);
        export_well(to, "", dtypes[i % 3]);
        expect_values(to, list, dtypes[i % 3]);
        cr_expect_str_eq(names_in(to), "config.json generation_config.json model.safetensors ");
        SUCCEEDS(file_read_all(&text, &size, in_folder("%s/config.json", to), 10000, &error));
        expect_text(text, names[i % 3]);
        expect_text(text, "\"eos_token_id\": 2,");
        free(text);
        SUCCEEDS(
            file_read_all(&text, &size, in_folder("%s/generation_config.json", to), 10000, &error));
        expect_text(text, "\"bos_token_id\": 1,");
        free(text);
        arrfree(list);
    }
}

/* Through a run, its checkpoint and an export. */
Test(export, a_mistral_stays_a_mistral) {
    struct subject subject;
    struct config again;
    char path[FILE_PATH_MAX], *text;
    size_t size;
    subject_config(&subject.config, CONFIG_PRECISION_FP32);
    set_family(&subject.config, 1);
    subject.config.model.type = CONFIG_CLASS_MISTRAL;
    subject_open(&subject);
    save_step(&subject, folder, 5, path);
    SUCCEEDS(checkpoint_config(&again, path, &error));
    cr_expect_eq(again.model.type, CONFIG_CLASS_MISTRAL);
    export_well("out", "checkpoints/step-00000005", DTYPE_F32);
    expect_same_file(in_folder("out/config.json"),
                     in_folder("checkpoints/step-00000005/config.json"));
    SUCCEEDS(file_read_all(&text, &size, in_folder("out/config.json"), 10000, &error));
    expect_text(text, "\"MistralForCausalLM\"");
    free(text);
    subject_close(&subject);
}

/* From one file, and from shards, into other shards: 81 to 300 times 24 values are less than 20
 * KB. */
Test(export, large_models_are_in_several_files) {
    const struct export_options small = {.dtype = DTYPE_BF16, .shard_gb = 2e-5};
    struct parameter *list = put_model(&plain);
    SUCCEEDS(export_model(in_folder("a"), folder, &small, &error));
    cr_expect_str_eq(names_in("a"), "config.json generation_config.json "
                                    "model-00001-of-00003.safetensors "
                                    "model-00002-of-00003.safetensors "
                                    "model-00003-of-00003.safetensors "
                                    "model.safetensors.index.json ");
    for (int i = 1; i <= 3; i++) {
        struct stat status;
        cr_assert_eq(stat(in_folder("a/model-0000%d-of-00003.safetensors", i), &status), 0);
        cr_expect_lt(status.st_size, 22000, "data of 20 KB, and a header");
    }
    export_well("b", "a", DTYPE_BF16);
    expect_values("b", list, DTYPE_BF16);
    export_well("c", "", DTYPE_BF16);
    expect_same_file(in_folder("b/model.safetensors"), in_folder("c/model.safetensors"));
    expect_same_file(in_folder("a/config.json"), in_folder("c/config.json"));
    arrfree(list);
}

/* Random bits: the source's dtype keeps them, NaN and infinities too; others round like
 * dtype_store. fp16's random bits fit in all. */
Test(export, keeps_or_rounds_every_bit) {
    struct subject subject;
    char path[FILE_PATH_MAX];
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject_fill(&subject, 3);
    struct model *model = &subject.trainer.model;
    float *masters = masters_values(model);
    for (int64_t i = 0; i < model->count; i++)
        if (isfinite(masters[i]) && fabsf(masters[i]) >= 0x1p15f)
            masters[i] = ldexpf(masters[i], -130);
    masters_put(model, masters);
    SUCCEEDS(checkpoint_save(&subject.trainer, folder, path, &error));
    for (int i = 1; i < 3; i++) {
        struct safetensors file;
        char back[24], first[24];
        snprintf(first, sizeof first, "to%d", i);
        snprintf(back, sizeof back, "back%d", i);
        export_well(first, "checkpoints/step-00000003", dtypes[i]);
        export_well(back, first, dtypes[i]);
        expect_same_file(in_folder("%s/model.safetensors", first),
                         in_folder("%s/model.safetensors", back));
        expect_same_file(in_folder("%s/config.json", first), in_folder("%s/config.json", back));
        SUCCEEDS(safetensors_open(&file, in_folder("%s/model.safetensors", first), &error));
        for (int t = 0; t < file.count; t++) {
            size_t count = (size_t)parameter_count(&model->list[t]);
            uint16_t *wanted = malloc(count * sizeof *wanted);
            dtype_store(wanted, dtypes[i], 0, masters + model->list[t].offset, count);
            cr_assert_eq(file.entries[t].bytes, 2 * count);
            cr_expect(safetensors_holds(&file, &file.entries[t], wanted), "%s",
                      file.entries[t].name);
            free(wanted);
        }
        safetensors_close(&file);
    }
    free(masters);
    subject_close(&subject);
}

/* Any 16 bits, signaling NaN too: a copy in the same dtype keeps them all. */
Test(export, keeps_the_bits_of_16_bit) {
    for (int i = 1; i < 3; i++) {
        struct parameter *list = put_model(&plain);
        struct saved_tensor *tensors = saved_weights(list, false);
        struct safetensors_entry *entries = saved_entries(tensors, dtypes[i]);
        struct safetensors_writer writer;
        SUCCEEDS(safetensors_write_begin(&writer, in_folder("model.safetensors"), entries,
                                         (int)arrlen(entries), &error));
        for (uint64_t k = 0; k < writer.announced / 2; k++) {
            uint64_t bits = random_bits(5, 0, k);
            SUCCEEDS(safetensors_write_data(&writer, &bits, 2, &error));
        }
        SUCCEEDS(safetensors_write_end(&writer, &error));
        char to[24];
        snprintf(to, sizeof to, "out%d", i);
        export_well(to, "", dtypes[i]);
        expect_same_file(in_folder("model.safetensors"), in_folder("%s/model.safetensors", to));
        arrfree(entries);
        arrfree(tensors);
        arrfree(list);
    }
}

static void set_weight(struct subject *subject, const char *name, size_t at, float value) {
    struct model *model = &subject->trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++)
        if (strcmp(model->list[i].name, name) == 0)
            masters_upload(&model->masters, model->be, &value, model->list[i].offset + (int64_t)at,
                           1);
}

Test(export, values_too_large_are_named) {
    struct subject subject;
    char path[FILE_PATH_MAX];
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    model_initialize(&subject.trainer.model, 1);
    set_weight(&subject, "h.1.mlp.c_fc.bias", 3, 65519.996f); /* rounds down to 65504 */
    set_weight(&subject, "h.1.mlp.c_fc.bias", 4, INFINITY);
    SUCCEEDS(checkpoint_save(&subject.trainer, folder, path, &error));
    export_well("fits", "checkpoints/step-00000000", DTYPE_F16);

    set_weight(&subject, "h.1.mlp.c_fc.bias", 5, -65520);
    SUCCEEDS(checkpoint_save(&subject.trainer, folder, path, &error));
    expect_refused(in_folder("out"), path,
                   "transformer.h.1.mlp.c_fc.bias: element 5 is -65520, too large for fp16\n"
                   "export as bf16 or fp32");
    export_well("bf16", "checkpoints/step-00000000", DTYPE_BF16);

    set_weight(&subject, "wte.weight", 7199, 3.4e38f);
    SUCCEEDS(checkpoint_save(&subject.trainer, folder, path, &error));
    cr_expect_eq(export_model(in_folder("out"), path,
                              &(const struct export_options){.dtype = DTYPE_BF16}, &error),
                 -1);
    expect_text(error.text,
                "wte.weight: element 7199 is 3.4e+38, too large for bf16\nexport as fp32");
    export_well("fp32", "checkpoints/step-00000000", DTYPE_F32);
    cr_expect_str_eq(names_in(""), "bf16 checkpoints fits fp32 ");
    subject_close(&subject);
}

Test(export, a_second_process_is_refused) {
    int lock;
    bool has_lock;
    put_plain_model();
    SUCCEEDS(directory_lock(&lock, &has_lock, in_folder(".out.tmp"), &error)); /* as an export */
    put_text(".out.tmp/model.safetensors", "written by the other");
    expect_refused(in_folder("out"), folder, "another process is exporting to");
    cr_expect(file_exists(in_folder(".out.tmp/model.safetensors")));
    close(lock); /* as after a kill */
    export_well("out", "", DTYPE_F32);
    cr_expect_not(file_exists(in_folder(".out.tmp")));
}

/* Puts a byte-pair encoding of GPT-2's kind into the folder, with characters that JSON escapes. */
static void put_gpt2_tokenizer(void) {
    char *vocab;
    size_t size;
    FILE *out = open_memstream(&vocab, &size);
    fputs("{", out);
    print_bytes(out);
    fputs(", \"ab\": 256, \"\\\"\\\"\": 257, \"ab\\\\\": 258, \"<|endoftext|>\": 259}\n", out);
    fclose(out);
    put_text("vocab.json", vocab);
    put_text("merges.txt", "#version: 0.2\na b\n\" \"\r\nab \\");
    free(vocab);
}

Test(export, adds_a_tokenizer_json_equivalent_to_vocab_and_merges) {
    struct tokenizer before, after;
    put_plain_model();
    put_gpt2_tokenizer();
    put_text("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    export_well("out", "", DTYPE_F32);
    cr_expect_str_eq(names_in("out"),
                     "config.json generation_config.json merges.txt model.safetensors "
                     "tokenizer.json tokenizer_config.json vocab.json ");
    SUCCEEDS(tokenizer_open(&before, TOKENIZER_FILES, folder, &error));
    SUCCEEDS(tokenizer_open(&after, TOKENIZER_FILES, in_folder("out"), &error)); /* all agree */
    tokenizer_close(&after);
    unlink(in_folder("out/vocab.json"));
    SUCCEEDS(tokenizer_open(&after, TOKENIZER_FILES, in_folder("out"), &error));
    cr_expect_eq(after.kind, TOKENIZER_GPT2);
    cr_expect_eq(after.vocab_size, 260);
    cr_expect_eq(after.end_of_text, 259);
    cr_expect_eq(after.stop, 259);
    cr_expect_str_eq(after.sha256, before.sha256); /* tokens and merges */
    tokenizer_close(&before);
    tokenizer_close(&after);
}

/* Qwen's vocab.json and merges.txt have the same form, but text is cut in another way. */
Test(export, adds_no_tokenizer_json_to_another_class) {
    put_plain_model();
    put_gpt2_tokenizer();
    export_well("out", "", DTYPE_F32);
    put_text("tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}");
    export_well("qwen", "", DTYPE_F32);
    cr_expect_not(file_exists(in_folder("out/tokenizer.json")));
    cr_expect_not(file_exists(in_folder("qwen/tokenizer.json")));
}

Test(export, writes_to_a_new_or_empty_directory) {
    put_plain_model();
    cr_assert_eq(mkdir(in_folder("empty"), 0755), 0);
    cr_assert_eq(symlink("empty", in_folder("link")), 0);
    cr_assert_eq(symlink("nowhere", in_folder("dangling")), 0);
    cr_assert_eq(mkdir(in_folder("full"), 0755), 0);
    put_text("full/.hidden", "");
    expect_refused(in_folder("full"), folder, "already exists and is not empty");
    expect_refused(in_folder("config.json"), folder, "already exists and is not empty");
    expect_refused(in_folder("dangling"), folder, "already exists and is not empty");
    expect_refused(in_folder("config.json/out"), folder, "a file stands there");
    expect_refused(in_folder("absent/.."), folder, "does not exist");
    expect_refused("", folder, "0 bytes");
    expect_refused("/", folder, "already exists and is not empty");
    expect_refused("/proc/mantissa", folder, "/proc/.mantissa.tmp");
    cr_expect_str_eq(names_in("full"), ".hidden ");

    export_well("link/", "", DTYPE_F16);
    cr_expect(file_exists(in_folder("empty/model.safetensors")));
    cr_expect(file_exists(in_folder("link/model.safetensors")), "the link was replaced");
    expect_refused(in_folder("empty"), folder, "already exists and is not empty");
    cr_assert_eq(chdir(folder), 0);
    SUCCEEDS(export_model("here", ".", &(const struct export_options){.dtype = DTYPE_F16}, &error));
    expect_same_file(in_folder("here/model.safetensors"), in_folder("empty/model.safetensors"));
    char *deep = calloc(1, FILE_PATH_MAX + 1);
    memset(deep, 'x', FILE_PATH_MAX);
    for (size_t length = FILE_PATH_MAX; length > FILE_PATH_MAX - 8; length--) {
        deep[length] = '\0';
        expect_refused(deep, folder, "");
    }
    free(deep);
}

Test(export, refuses_damaged_sources) {
    static const struct foreign_format sharded = {
        .dtype = SAFETENSORS_BF16, .prefix = "", .shards = 2};
    expect_refused(in_folder("out"), folder, "config.json");
    struct parameter *list = put_model(&sharded);
    cr_assert_eq(truncate(in_folder("%s", shard_name(&sharded, 1)), 3000), 0);
    expect_refused(in_folder("out"), folder, shard_name(&sharded, 1));
    struct foreign_format wrong = sharded;
    wrong.longer = "h.1.ln_1.bias";
    put_weights(list, &wrong);
    expect_refused(in_folder("out"), folder, "h.1.ln_1.bias is [25]");
    wrong.longer = NULL;
    wrong.missing = "wpe.weight";
    put_weights(list, &wrong);
    expect_refused(in_folder("out"), folder, "wpe.weight is missing");
    arrfree(list);
    cr_expect_null(strstr(names_in(""), "out"));
    cr_expect_null(strstr(names_in(""), ".out"));
}

Test(export, a_full_disk_leaves_nothing) {
    put_plain_model();
    put_text("merges.txt", "#");
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 90000; limit += 9973) {
        struct rlimit few = {limit, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
        setrlimit(RLIMIT_FSIZE, &few);
        error.text[0] = '\0';
        int status = export_model(in_folder("out"), folder,
                                  &(const struct export_options){.dtype = DTYPE_F32}, &error);
        setrlimit(RLIMIT_FSIZE, &any);
        cr_expect_eq(status, -1, "exported in %lu bytes a file", (unsigned long)limit);
        expect_text(error.text, "disk full");
        cr_expect_str_eq(names_in(""), "config.json merges.txt model.safetensors ");
    }
    export_well("out", "", DTYPE_F32);
}

static void export_and_kill(useconds_t microseconds, double shard_gb) {
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct error reason;
        _exit(
            export_model(in_folder("out"), folder,
                         &(const struct export_options){.dtype = DTYPE_BF16, .shard_gb = shard_gb},
                         &reason)
                ? 1
                : 0);
    }
    usleep(microseconds);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the child failed by itself");
}

/* The target is complete or absent, and the next export removes leftovers. */
static void expect_no_half_export(double shard_gb, const char *names) {
    struct parameter *list = put_model(&plain);
    int finished = 0, interrupted = 0;
    double window = 10000; /* microseconds */
    put_text("merges.txt", "#");
    for (uint64_t round = 0; round < 200 && (finished < 6 || interrupted < 10); round++) {
        export_and_kill((useconds_t)(window * random_uniform(3, 0, round)), shard_gb);
        bool whole = file_exists(in_folder("out"));
        interrupted += file_exists(in_folder(".out.tmp"));
        window *= whole ? 0.8 : 1.3;
        finished += whole;
        if (!whole) continue;
        cr_expect_not(file_exists(in_folder(".out.tmp")));
        cr_expect_str_eq(names_in("out"), names);
        export_well("one", "out", DTYPE_BF16);
        expect_values("one", list, DTYPE_BF16);
        SUCCEEDS(directory_remove(in_folder("one"), &error));
        SUCCEEDS(directory_remove(in_folder("out"), &error));
    }
    cr_expect_geq(finished, 6);
    cr_expect_geq(interrupted, 10);
    arrfree(list);
}

Test(export, a_kill_leaves_no_half_export, .timeout = 120) {
    expect_no_half_export(5, "config.json generation_config.json merges.txt model.safetensors ");
}

Test(export, a_kill_between_the_files_leaves_no_half_export, .timeout = 120) {
    expect_no_half_export(2e-5, "config.json generation_config.json merges.txt "
                                "model-00001-of-00003.safetensors model-00002-of-00003.safetensors "
                                "model-00003-of-00003.safetensors model.safetensors.index.json ");
}

Test(export, a_file_is_no_folder_of_a_model) {
    static const struct export_options fp32 = {.dtype = DTYPE_F32};
    char from[FILE_PATH_MAX];
    put_text("a.gguf", "GGUF");
    put_text("model.safetensors", "");
    snprintf(from, sizeof from, "%s", in_folder("a.gguf"));
    cr_expect_eq(export_model(in_folder("out"), from, &fp32, &error), -1);
    expect_text(error.text, "a.gguf is a GGUF file, which cannot be read");
    snprintf(from, sizeof from, "%s", in_folder("model.safetensors"));
    cr_expect_eq(export_model(in_folder("out"), from, &fp32, &error), -1);
    expect_text(error.text, "model.safetensors is a file, but a model is a folder");
}
