#include "test/model/checkpoint_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "model/huggingface.h"
#include "model/safetensors.h"

TestSuite(huggingface, .init = make_folder, .fini = remove_folder);

static void put_config(const char *text) {
    FILE *out = fopen(in_folder("config.json"), "w");
    cr_assert_not_null(out);
    fputs(text, out);
    cr_assert_eq(fclose(out), 0);
}

#define SIZES "\"n_layer\":2,\"n_head\":3,\"n_embd\":24,\"n_positions\":16,\"vocab_size\":300"

Test(huggingface, what_is_printed_is_read_back) {
    struct config config, read;
    char *text;
    size_t size;
    subject_config(&config, CONFIG_PRECISION_FP32);
    FILE *out = open_memstream(&text, &size);
    huggingface_print_config(out, &config);
    fclose(out);
    expect_text(text, "\"bos_token_id\": null");
    put_config(text);
    free(text);
    config_defaults(&read);
    cr_assert_eq(huggingface_read_config(&read, folder, error), 0, "%s", error);
    cr_expect_eq(memcmp(&read.model, &config.model, sizeof read.model), 0);
    cr_expect(config_given(&read, "model.n_layer"));
    config.data.tokenizer = CONFIG_TOKENIZER_GPT2;
    out = open_memstream(&text, &size);
    huggingface_print_config(out, &config);
    fclose(out);
    expect_text(text, "\"eos_token_id\": 50256");
    free(text);
}

Test(huggingface, what_others_write_is_read) {
    static const char *const texts[] = {
        "{\"model_type\":\"gpt2\"," SIZES "}",
        "{\"model_type\":\"gpt2\",\"activation_function\":\"gelu_pytorch_tanh\",\"n_inner\":96,"
        "\"task_specific_params\":{\"text-generation\":{\"max_length\":50}}," SIZES "}",
        "{\"model_type\":\"gpt2\",\"layer_norm_epsilon\":9.999999747378752e-06," SIZES "}",
    };
    struct config config;
    for (size_t i = 0; i < COUNT(texts); i++) {
        config_defaults(&config);
        put_config(texts[i]);
        cr_assert_eq(huggingface_read_config(&config, folder, error), 0, "%s", error);
        cr_expect_eq(config.model.vocab_size, 300);
        cr_expect_eq(config.model.n_head, 3);
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
    };
    struct config config, before;
    config_defaults(&config);
    before = config;
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_config(cases[i].text);
        error[0] = '\0';
        cr_expect_eq(huggingface_read_config(&config, folder, error), -1, "%s", cases[i].text);
        expect_text(error, cases[i].reason);
        expect_text(error, folder);
        cr_expect_eq(memcmp(&config, &before, sizeof config), 0, "a refused file left traces");
    }
}

Test(huggingface, a_directory_of_theirs_gives_a_config) {
    struct config config;
    cr_expect_eq(checkpoint_config(&config, folder, error), -1);
    expect_text(error, "neither trainer.json nor config.json");
    put_config("{\"model_type\":\"gpt2\"," SIZES "}");
    cr_assert_eq(checkpoint_config(&config, folder, error), 0, "%s", error);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_BYTES);
    cr_expect_eq(config.data.seq_len, 16);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":12,\"n_head\":12,\"n_embd\":768,"
               "\"n_positions\":1024,\"vocab_size\":50257}");
    cr_assert_eq(checkpoint_config(&config, folder, error), 0, "%s", error);
    cr_expect_eq(config.data.tokenizer, CONFIG_TOKENIZER_GPT2);
    cr_expect_eq(config.model.vocab_size, 50257);
    put_config("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_head\":5,\"n_embd\":24,"
               "\"n_positions\":16,\"vocab_size\":300}");
    cr_expect_eq(checkpoint_config(&config, folder, error), -1);
    expect_text(error, "n_head");
}

/* A file of the tiny model's weights, in the manners of others. */
struct manners {
    enum safetensors_dtype dtype;
    const char *prefix;
    const char *extra;   /* name of one more tensor, or NULL */
    const char *missing; /* parameter left out, or NULL */
    int head;            /* 0: no lm_head.weight, 1: tied, 2: not */
};

/* Small multiples of 1/64: exact in all dtypes. */
static float value_of(int64_t tensor, int64_t index) {
    return (float)((tensor * 31 + index * 7) % 255 - 127) / 64.0f;
}

static void write_values(struct safetensors_writer *writer, const struct manners *manners,
                         int64_t tensor, int64_t count) {
    enum dtype dtypes[] = {[SAFETENSORS_F16] = DTYPE_F16,
                           [SAFETENSORS_BF16] = DTYPE_BF16,
                           [SAFETENSORS_F32] = DTYPE_F32};
    enum dtype dtype = dtypes[manners->dtype];
    for (int64_t k = 0; k < count; k++) {
        uint32_t stored = 0;
        float value = value_of(tensor, k);
        dtype_store(&stored, dtype, 0, &value, 1);
        cr_assert_eq(safetensors_write_data(writer, &stored, dtype_bytes(dtype), error), 0, "%s",
                     error);
    }
}

static void put_weights(const struct gpt *gpt, const struct manners *manners) {
    enum { ENTRIES = 40 };
    static char names[ENTRIES][80];
    struct safetensors_entry entries[ENTRIES];
    int64_t ids[ENTRIES], counts[ENTRIES];
    int count = 0;
    for (ptrdiff_t i = 0; i < arrlen(gpt->list) + 2; i++) {
        bool own = i < arrlen(gpt->list), head = i == arrlen(gpt->list);
        const struct parameter *p = &gpt->list[own ? i : 0];
        if (own && manners->missing && strcmp(p->name, manners->missing) == 0) continue;
        if ((head && !manners->head) || (!own && !head && !manners->extra)) continue;
        if (own) snprintf(names[count], sizeof *names, "%s%s", manners->prefix, p->name);
        else snprintf(names[count], sizeof *names, "%s", head ? "lm_head.weight" : manners->extra);
        entries[count] = (struct safetensors_entry){
            .name = names[count],
            .dtype = manners->dtype,
            .rank = p->columns ? 2 : 1,
            .shape = {(uint64_t)p->rows, (uint64_t)p->columns},
        };
        ids[count] = own ? i : head && manners->head == 1 ? 0 : 50;
        counts[count++] = p->rows * (p->columns ? p->columns : 1);
    }
    struct safetensors_writer writer;
    const char *path = in_folder("model.safetensors");
    cr_assert_eq(safetensors_write_begin(&writer, path, entries, count, NULL, 0, error), 0, "%s",
                 error);
    for (int i = 0; i < count; i++) write_values(&writer, manners, ids[i], counts[i]);
    cr_assert_eq(safetensors_write_end(&writer, error), 0, "%s", error);
}

Test(huggingface, weights_of_others_are_read) {
    static const struct manners well[] = {
        {SAFETENSORS_F32, "transformer.", NULL, NULL, 0},
        {SAFETENSORS_F32, "", "h.1.attn.bias", NULL, 0},
        {SAFETENSORS_F16, "", "h.0.attn.masked_bias", NULL, 1},
        {SAFETENSORS_BF16, "transformer.", "transformer.h.1.attn.bias", NULL, 1},
    };
    for (size_t i = 0; i < COUNT(well); i++) {
        struct subject subject;
        subject_open_tiny(&subject, CONFIG_PRECISION_BF16);
        struct gpt *gpt = &subject.trainer.gpt;
        put_weights(gpt, &well[i]);
        cr_assert_eq(checkpoint_load_weights(gpt, folder, error), 0, "%s", error);
        for (ptrdiff_t p = 0; p < arrlen(gpt->list); p++) {
            size_t bytes;
            const float *values = view_bytes(&gpt->master, &gpt->list[p], &bytes);
            const uint16_t *lower = view_bytes(&gpt->lower, &gpt->list[p], &bytes);
            for (size_t k = 0; k < bytes / sizeof *lower; k++) {
                cr_assert_eq(values[k], value_of(p, (int64_t)k));
                cr_assert_eq(lower[k], bf16_from_f32(values[k]));
            }
        }
        subject_close(&subject);
    }
}

Test(huggingface, weights_of_other_models_are_refused) {
    static const struct {
        struct manners manners;
        const char *reason;
    } cases[] = {
        {{SAFETENSORS_F32, "", NULL, NULL, 2}, "lm_head.weight differs"},
        {{SAFETENSORS_F32, "", "h.1.attn.q_norm", NULL, 0}, "h.1.attn.q_norm is no part"},
        {{SAFETENSORS_F32, "", "transformer.wte.weight", NULL, 0}, "wte.weight is no part"},
        {{SAFETENSORS_F16, "transformer.", NULL, "ln_f.bias", 0}, "ln_f.bias is missing"},
        {{SAFETENSORS_F16, "", NULL, "wte.weight", 1}, "wte.weight is missing"},
        {{SAFETENSORS_F32, "", "h.2.ln_1.weight", NULL, 0}, "3 layers, but model.n_layer is 2"},
    };
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    cr_expect_eq(checkpoint_load_weights(&subject.trainer.gpt, folder, error), -1);
    expect_text(error, "model.safetensors");
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_weights(&subject.trainer.gpt, &cases[i].manners);
        error[0] = '\0';
        cr_expect_eq(checkpoint_load_weights(&subject.trainer.gpt, folder, error), -1, "%s",
                     cases[i].reason);
        expect_text(error, cases[i].reason);
    }
    subject_close(&subject);
}
