#include "data/util/files.h"
#include "test/model/io/checkpoint_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

#include "data/corpus/loader.h"
#include "data/corpus/tales.h"
#include "kernels/moment_blocks.h"
#include "model/config/config_keys.h"
#include "model/config/config_print.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/safetensors.h"
#include "test/model/families.h"
#include "test/safetensors_find.h"

static char path[FILE_PATH_MAX];

#define X(...) +1
enum { OPTIMIZER_COUNT = OPTIMIZERS(X) };
#undef X

static const enum config_precision precisions[] = {CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16,
                                                   CONFIG_PRECISION_FP16};

TestSuite(checkpoint, .init = make_folder, .fini = remove_folder);

/* Loads a checkpoint without error; returns the notes, to be freed. */
static char *load_noting(struct subject *subject, const char *from) {
    char *notes = NULL;
    size_t size;
    FILE *out = open_memstream(&notes, &size);
    SUCCEEDS(checkpoint_load(&subject->trainer, from, out, &error));
    fclose(out);
    return unfold(notes);
}

Test(checkpoint, loading_restores_every_bit) {
    for (size_t i = 0; i < COUNT(precisions); i++) {
        struct subject saved, loaded;
        subject_open_tiny(&saved, precisions[i]);
        subject_open_tiny(&loaded, precisions[i]);
        save_step(&saved, folder, 1000 + (int64_t)i, path);
        char *notes = load_noting(&loaded, path);
        cr_expect_str_eq(notes, "");
        expect_same(&saved, &loaded);
        free(notes);
        subject_close(&saved);
        subject_close(&loaded);
    }
}

Test(checkpoint, is_a_model_of_hugging_face) {
    struct subject subject;
    struct safetensors file;
    subject_open_saved(&subject, CONFIG_PRECISION_BF16, 7, path);
    cr_expect_str_eq(path, in_checkpoints(folder, "step-00000007"));
    SUCCEEDS(
        safetensors_open(&file, in_checkpoints(folder, "step-00000007/model.safetensors"), &error));
    cr_expect_eq(file.count, 4 + 12 * 2);
    const struct safetensors_entry *wte = safetensors_find(&file, "transformer.wte.weight");
    cr_assert_not_null(wte);
    cr_expect_eq(wte->dtype, SAFETENSORS_F32);
    cr_expect(wte->rank == 2 && wte->shape[0] == 300 && wte->shape[1] == 24);
    const struct safetensors_entry *bias =
        safetensors_find(&file, "transformer.h.1.attn.c_attn.bias");
    cr_assert_not_null(bias);
    cr_expect(bias->rank == 1 && bias->shape[0] == 72);
    safetensors_close(&file);
    SUCCEEDS(safetensors_open(&file, in_checkpoints(folder, "step-00000007/optimizer.safetensors"),
                              &error));
    cr_expect_eq(file.count, 2 * (4 + 12 * 2));
    cr_expect_not_null(safetensors_find(&file, "exp_avg_sq.transformer.h.0.mlp.c_fc.weight"));
    safetensors_close(&file);
    cr_expect_str_eq(names_in("checkpoints/step-00000007"),
                     "config.json generation_config.json model.safetensors optimizer.safetensors "
                     "trainer.json ");
    subject_close(&subject);
}

Test(checkpoint, has_the_files_of_the_tokenizer) {
    struct subject subject, loaded;
    struct checkpoint_manifest manifest;
    size_t size;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject_open_tiny(&loaded, CONFIG_PRECISION_FP32);
    subject.trainer.tokenizer = toy_tokenizer();
    save_step(&subject, folder, 7, path);
    char *text = read_text(path, "merges.txt", &size);
    cr_expect_eq(size, 256);
    for (size_t i = 0; i < size; i++) cr_expect_eq((uint8_t)text[i], i);
    free(text);
    text = read_text(path, "vocab.json", &size);
    cr_expect_str_eq(text, "{}");
    free(text);
    text = read_text(path, "tokenizer_config.json", &size);
    expect_text(text, "\"GPT2Tokenizer\"");
    free(text);
    text = read_text(path, "config.json", &size);
    expect_text(text, "\"eos_token_id\": 299,");
    free(text);
    text = read_text(path, "generation_config.json", &size);
    expect_text(text, "\"bos_token_id\": 299,");
    free(text);
    SUCCEEDS(checkpoint_manifest_open(
        &manifest, in_checkpoints(folder, "step-00000007/trainer.json"), &error));
    cr_expect_eq((int)arrlen(manifest.files), 7);
    checkpoint_manifest_close(&manifest);
    free(load_noting(&loaded, path));
    expect_same(&subject, &loaded);
    subject_close(&subject);
    subject_close(&loaded);
}

/* A text of a few thousand tokens. */
static void open_data(struct tokens *tokens, struct loader *loader) {
    uint8_t *text;
    size_t bytes;
    SUCCEEDS(tales_generate(&text, &bytes, 5, 4000, &error));
    int32_t *values = malloc(bytes * sizeof *values);
    for (size_t i = 0; i < bytes; i++) values[i] = text[i];
    free(text);
    SUCCEEDS(tokens_from_memory(tokens, values, bytes, "tales", &error));
    struct loader_options options = {.seq_len = 13, .seed = 1, .shuffle = true, .vocab_size = 300};
    SUCCEEDS(loader_open(loader, tokens, &options, &error));
}

static void train(struct subject *subject, const struct loader *loader, int steps) {
    struct step_report report;
    for (int i = 0; i < steps; i++) {
        SUCCEEDS(trainer_begin_step(&subject->trainer, loader, &error));
        SUCCEEDS(trainer_end_step(&subject->trainer, &report, &error));
    }
}

/* A loss scale that overflows at once and grows every other step. */
static void open_restless(struct subject *subject, enum config_precision precision, int family,
                          enum config_optimizer optimizer) {
    subject_config(&subject->config, precision);
    set_family(&subject->config, family);
    subject->config.optimizer.name = optimizer;
    subject->config.optimizer.warmup_steps = 2;
    subject->config.loss_scale.init_scale = 0x1p26;
    subject->config.loss_scale.growth_interval = 2;
    subject_open(subject);
}

/* A run that is saved after `saved` steps and continued by another trainer, and one that is not. */
struct resumed {
    struct tokens tokens;
    struct loader loader;
    struct subject whole, first, second;
};

/* Trains all open subjects; `second` resumes with the notes. */
static void resume(struct resumed *r, int saved, int more, const char *expected) {
    train(&r->whole, &r->loader, saved);
    train(&r->first, &r->loader, saved);
    SUCCEEDS(checkpoint_save(&r->first.trainer, folder, path, &error));
    train(&r->second, &r->loader, 1); /* its earlier state must not matter */
    char *notes = load_noting(&r->second, path);
    cr_expect_str_eq(notes, expected);
    free(notes);
    r->whole.config.train.grad_accum_steps = r->second.config.train.grad_accum_steps;
    train(&r->whole, &r->loader, more);
    train(&r->second, &r->loader, more);
    expect_same(&r->whole, &r->second);
    cr_expect_eq(r->second.trainer.state.step, saved + more);
}

static void close_resumed(struct resumed *r) {
    subject_close(&r->whole);
    subject_close(&r->first);
    subject_close(&r->second);
}

Test(checkpoint, resuming_gives_the_bits_of_an_uninterrupted_run) {
    struct resumed r;
    open_data(&r.tokens, &r.loader);
    const int each = FAMILIES * OPTIMIZER_COUNT;
    for (int i = 0; i < (int)COUNT(precisions) * each; i++) {
        enum config_precision precision = precisions[i / each];
        enum config_optimizer optimizer = (enum config_optimizer)(i / FAMILIES % OPTIMIZER_COUNT);
        open_restless(&r.whole, precision, i % FAMILIES, optimizer);
        open_restless(&r.first, precision, i % FAMILIES, optimizer);
        open_restless(&r.second, precision, i % FAMILIES, optimizer);
        resume(&r, 7, 5, "");
        if (precision == CONFIG_PRECISION_FP16)
            cr_expect_gt(r.second.trainer.state.scaler.skipped, 0, "no overflow was met");
        close_resumed(&r);
    }
    loader_close(&r.loader);
    tokens_close(&r.tokens);
}

/* The samples that follow are those of a run whose batch grew without a checkpoint. */
Test(checkpoint, resuming_with_a_larger_batch_continues_with_the_next_sample) {
    struct resumed r;
    open_data(&r.tokens, &r.loader);
    open_restless(&r.whole, CONFIG_PRECISION_FP32, 0, CONFIG_OPTIMIZER_ADAMW);
    open_restless(&r.first, CONFIG_PRECISION_FP32, 0, CONFIG_OPTIMIZER_ADAMW);
    open_restless(&r.second, CONFIG_PRECISION_FP32, 0, CONFIG_OPTIMIZER_ADAMW);
    r.whole.config.train.grad_accum_steps = r.first.config.train.grad_accum_steps = 2;
    r.second.config.train.grad_accum_steps = 4;
    resume(&r, 10, 5, "note: train.grad_accum_steps: 2 in the checkpoint, now 4\n");
    cr_expect_eq(r.second.trainer.state.next_sample, 40 * r.second.config.train.micro_batch_size);
    close_resumed(&r);
    loader_close(&r.loader);
    tokens_close(&r.tokens);
}

static void resume_with(enum config_moments moments, enum config_rounding rounding) {
    struct resumed r;
    struct subject *const subjects[] = {&r.whole, &r.first, &r.second};
    open_data(&r.tokens, &r.loader);
    for (int i = 0; i < 3; i++) {
        subject_open_moments(subjects[i], moments);
        subjects[i]->config.optimizer.rounding_8bit = rounding;
    }
    cr_expect_eq(tensor_count(&r.whole.trainer.optimizer.codes[1]) > 0,
                 moments == CONFIG_MOMENTS_INT8);
    resume(&r, 4, 5, "");
    close_resumed(&r);
    loader_close(&r.loader);
    tokens_close(&r.tokens);
}

/* Stochastic rounding draws by the step, so a resumed run draws the same bits. */
Test(checkpoint, resuming_keeps_moments_in_bf16) {
    resume_with(CONFIG_MOMENTS_BFLOAT16, CONFIG_ROUNDING_NEAREST);
}

Test(checkpoint, resuming_keeps_moments_in_8_bits) {
    resume_with(CONFIG_MOMENTS_INT8, CONFIG_ROUNDING_NEAREST);
    resume_with(CONFIG_MOMENTS_INT8, CONFIG_ROUNDING_STOCHASTIC);
}

/* Samples are counted in sequences, which are shorter now: as many tokens come before. */
Test(checkpoint, resuming_with_shorter_sequences_continues_after_as_many_tokens) {
    struct subject first, second;
    int64_t step, next_sample;
    subject_open_saved(&first, CONFIG_PRECISION_FP32, 5, path);
    cr_assert(first.config.data.seq_len == 13 && first.trainer.state.next_sample == 20);
    subject_config(&second.config, CONFIG_PRECISION_FP32);
    second.config.data.seq_len = 4;
    subject_open(&second);
    char *notes = load_noting(&second, path);
    expect_text(notes, "begins at sample 65 of the order that these settings give");
    cr_expect_eq(second.trainer.state.next_sample, 20 * 13 / 4);
    SUCCEEDS(checkpoint_read_progress(&step, &next_sample, &second.config, path, &error));
    cr_expect(step == 5 && next_sample == 20 * 13 / 4);
    free(notes);
    subject_close(&first);
    subject_close(&second);
}

/* Packed sequences are not proportional to tokens: with another length a run resumes after the same
 * part of its passes, with the same one at the same sample. */
Test(checkpoint, of_packed_sequences_continue_after_the_same_part_of_the_passes) {
    static const struct {
        int64_t seq_len, before, now, next;
    } cases[] = {{13, 40, 40, 20}, {13, 40, 41, 20}, {4, 40, 90, 45}, {4, 40, 0, 65},
                 {4, 0, 90, 65},   {13, 0, 90, 20},  {16, 8, 5, 12}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct subject first, second;
        struct tokens tokens;
        struct loader loader;
        int64_t step, next;
        subject_config(&first.config, CONFIG_PRECISION_FP32);
        subject_open(&first);
        open_data(&tokens, &loader);
        train(&first, &loader, 5);
        first.config.packed_sequences = cases[i].before;
        SUCCEEDS(checkpoint_save(&first.trainer, folder, path, &error));
        cr_assert_eq(first.trainer.state.next_sample, 20);
        subject_config(&second.config, CONFIG_PRECISION_FP32);
        second.config.data.seq_len = cases[i].seq_len;
        second.config.packed_sequences = cases[i].now;
        subject_open(&second);
        char *notes = load_noting(&second, path);
        cr_expect_eq(second.trainer.state.next_sample, cases[i].next, "case %zu: %d", i,
                     (int)second.trainer.state.next_sample);
        SUCCEEDS(checkpoint_read_progress(&step, &next, &second.config, path, &error));
        cr_expect_eq(next, cases[i].next);
        const bool other = cases[i].seq_len != 13 || !cases[i].before != !cases[i].now;
        cr_expect_eq(strstr(notes, "of the order that these settings give") != NULL, other);
        free(notes);
        subject_close(&first);
        subject_close(&second);
        loader_close(&loader);
        tokens_close(&tokens);
        SUCCEEDS(directory_remove(path, &error));
    }
}

Test(checkpoint, of_another_optimizer_are_refused_by_name) {
    struct tokens tokens;
    struct loader loader;
    struct subject adamw, muon;
    open_data(&tokens, &loader);
    open_restless(&adamw, CONFIG_PRECISION_FP32, 0, CONFIG_OPTIMIZER_ADAMW);
    train(&adamw, &loader, 3);
    SUCCEEDS(checkpoint_save(&adamw.trainer, folder, path, &error));
    open_restless(&muon, CONFIG_PRECISION_FP32, 0, CONFIG_OPTIMIZER_MUON);
    cr_expect_neq(checkpoint_load(&muon.trainer, path, stderr, &error), 0);
    cr_expect(strstr(error.text, "optimizer.name is adamw in the checkpoint, now muon"), "%s",
              error.text);
    muon.config.checkpoint.reset_optimizer = true;
    char *notes = load_noting(&muon, path);
    cr_expect(strstr(notes, "optimizer.name: \"adamw\" in the checkpoint, now \"muon\""), "%s",
              notes);
    expect_same_masters(&adamw.trainer.model, &muon.trainer.model);
    cr_expect_eq(muon.trainer.state.step, 3);
    cr_expect_eq(muon.trainer.state.scaler.updates, 0);
    train(&muon, &loader, 1);
    free(notes);
    subject_close(&adamw);
    subject_close(&muon);
    loader_close(&loader);
    tokens_close(&tokens);
}

/* Returns all values of a moment in fp32, to be freed. */
static float *moment_values(const struct subject *subject, int moment) {
    int64_t count = subject->trainer.model.count;
    float *stored = calloc((size_t)count, sizeof *stored);
    float *values = calloc((size_t)count, sizeof *values);
    enum dtype dtype = subject->precision.moments;
    optimizer_download(&subject->trainer.optimizer, moment, stored, 0, count);
    const float *found = dtype_widen(values, stored, dtype, 0, (size_t)count);
    if (found != values) memcpy(values, found, (size_t)count * sizeof *values);
    free(stored);
    return values;
}

/* Rounds the values of a moment as the optimizer of a subject stores them. */
static void round_moment(float *values, const struct subject *subject, int moment) {
    const struct model *model = &subject->trainer.model;
    for (ptrdiff_t i = 0; i < arrlen(model->list); i++) {
        const struct parameter *p = &model->list[i];
        float *at = values + p->offset;
        int64_t count = parameter_count(p);
        if (update_rule_in_8bit(&subject->config, p)) {
            uint8_t *codes = malloc((size_t)count);
            float *scales = malloc((size_t)count);
            const struct moment_blocks blocks = {codes, scales, moment, false};
            moment_blocks_store(&blocks, at, 0, count, (struct rounding_key){0}, 0);
            moment_blocks_load(at, &blocks, 0, count);
            free(codes), free(scales);
        } else if (subject->precision.moments == DTYPE_BF16)
            for (int64_t k = 0; k < count; k++) at[k] = f32_from_bf16(bf16_from_f32(at[k]));
    }
}

static void resume_moments(enum config_moments from, enum config_moments to) {
    static const char *const formats[] = {"\"format\": 1,", "\"format\": 2,", "\"format\": 5,"};
    struct subject saved, loaded;
    struct safetensors file;
    size_t size;
    subject_open_moments(&saved, from);
    subject_open_moments(&loaded, to);
    int64_t count = saved.trainer.model.count;
    float *given = calloc((size_t)count, sizeof *given);
    for (ptrdiff_t i = 0; i < arrlen(saved.trainer.model.list); i++) {
        const struct parameter *p = &saved.trainer.model.list[i];
        for (int64_t k = 0; k < parameter_count(p); k++)
            given[p->offset + k] =
                fabsf((float)random_normal(3, 0, (uint64_t)(p->offset + k))) + 1e-3f;
    }
    for (int moment = 0; moment < 2; moment++)
        optimizer_upload(&saved.trainer.optimizer, moment, given, 0, count);
    SUCCEEDS(checkpoint_save(&saved.trainer, folder, path, &error));
    SUCCEEDS(safetensors_open(&file, in_checkpoints(folder, "step-00000000/optimizer.safetensors"),
                              &error));
    cr_expect_eq(file.entries[0].dtype,
                 from == CONFIG_MOMENTS_BFLOAT16 ? SAFETENSORS_BF16 : SAFETENSORS_F32);
    const struct safetensors_entry *codes =
        safetensors_find(&file, "exp_avg_sq.transformer.h.0.mlp.c_fc.weight");
    const struct safetensors_entry *scales =
        safetensors_find(&file, "exp_avg_sq.transformer.h.0.mlp.c_fc.weight.absmax");
    cr_expect_eq(codes->dtype == SAFETENSORS_U8, from == CONFIG_MOMENTS_INT8);
    cr_expect_eq(scales != NULL, from == CONFIG_MOMENTS_INT8, "from %d: %d entries", (int)from,
                 file.count);
    safetensors_close(&file);
    char *text = read_text(path, "trainer.json", &size), *notes = load_noting(&loaded, path);
    expect_text(text, formats[from]);
    if (from == to) cr_expect_str_eq(notes, "");
    else expect_text(notes, "optimizer.moments: ");
    if (from == to) expect_same(&saved, &loaded);
    for (int moment = 0; moment < 2; moment++) {
        float *wanted = moment_values(&saved, moment), *found = moment_values(&loaded, moment);
        if (from != to) round_moment(wanted, &loaded, moment);
        for (int64_t i = 0; i < count; i++)
            cr_assert_eq(found[i], wanted[i], "moment %d of %d", (int)i, moment);
        free(wanted), free(found);
    }
    free(text), free(notes), free(given);
    subject_close(&saved);
    subject_close(&loaded);
}

/* Files have the moments as they are; resuming in another storage converts them. */
Test(checkpoint, moments_resume_in_another_dtype) {
    for (int from = CONFIG_MOMENTS_FLOAT32; from <= CONFIG_MOMENTS_INT8; from++)
        for (int to = CONFIG_MOMENTS_FLOAT32; to <= CONFIG_MOMENTS_INT8; to++)
            resume_moments((enum config_moments)from, (enum config_moments)to);
}

Test(checkpoint, resumes_in_another_precision) {
    for (size_t i = 0; i < COUNT(precisions); i++) {
        for (size_t k = 0; k < COUNT(precisions); k++) {
            if (i == k) continue;
            struct subject saved, loaded;
            subject_open_tiny(&saved, precisions[i]);
            subject_open_tiny(&loaded, precisions[k]);
            save_step(&saved, folder, 5, path);
            char *notes = load_noting(&loaded, path);
            expect_text(notes, config_precision_name(precisions[i]));
            expect_text(notes, config_precision_name(precisions[k]));
            bool into_fp16 = precisions[k] == CONFIG_PRECISION_FP16;
            cr_expect_eq(strstr(notes, "init_scale") != NULL, into_fp16, "%s", notes);
            const struct step_state *scaler = &loaded.trainer.state.scaler;
            cr_expect_eq(scaler->loss_scale, into_fp16 ? 65536 : 1);
            cr_expect_eq(scaler->growth_tracker, 0);
            cr_expect_eq(scaler->skipped_in_row, 0);
            cr_expect_eq(scaler->updates, 2, "Adam's t goes on");
            cr_expect_eq(scaler->skipped, 3);
            expect_same_masters(&saved.trainer.model, &loaded.trainer.model);
            free(notes);
            subject_close(&saved);
            subject_close(&loaded);
        }
    }
}

Test(checkpoint, notes_say_which_settings_changed) {
    struct subject saved, loaded;
    subject_open_saved(&saved, CONFIG_PRECISION_FP32, 5, path);
    subject_close(&saved);

    subject_config(&loaded.config, CONFIG_PRECISION_FP32);
    loaded.config.optimizer.lr = 0.125;
    loaded.config.model.dropout = 0.25;
    loaded.config.nvfp4.hadamard = false;
    loaded.config.weights.copy = CONFIG_COPY_KEPT;
    subject_open(&loaded);
    char *notes = load_noting(&loaded, path);
    expect_text(notes, "optimizer.lr: ");
    expect_text(notes, "now 0.125\n");
    expect_text(notes, "model.dropout: 0 in the checkpoint, now 0.25\n");
    cr_expect_null(strstr(notes, "nvfp4"), "it is unused: %s", notes);
    cr_expect_null(strstr(notes, "weights.copy"), "results stay the same: %s", notes);
    cr_expect_null(strstr(notes, "data"), "the data did not change: %s", notes);
    free(notes);
    subject_close(&loaded);

    subject_config(&loaded.config, CONFIG_PRECISION_FP32);
    loaded.config.seed = 99;
    loaded.config.train.micro_batch_size = 3;
    strcpy(loaded.config.data.train, "other.bin");
    loaded.config.data.isolate = true;
    subject_open(&loaded);
    notes = load_noting(&loaded, path);
    expect_text(notes, "seed: 1 in the checkpoint, now 99\n");
    expect_text(notes, "train.micro_batch_size: 2 in the checkpoint, now 3\n");
    expect_text(notes, "data.train: \"tales\" in the checkpoint, now \"other.bin\"\n");
    expect_text(notes, "data.isolate: false in the checkpoint, now true\n");
    expect_text(notes, "data: step 6 begins at sample 20 of the order that these settings give");
    cr_expect_eq(loaded.trainer.state.step, 5);
    free(notes);
    subject_close(&loaded);
}

/* Resuming a checkpoint of the tiny model must fail with the key in the message, loading its
 * weights with these parts, and change nothing. */
static void expect_refused(const struct config *config, const char *key, const char *first,
                           const char *second, const char *third) {
    struct subject subject = {.config = *config};
    subject_open(&subject);
    float *before = masters_values(&subject.trainer.model);
    error.text[0] = '\0';
    cr_expect_eq(checkpoint_load(&subject.trainer, path, stderr, &error), -1, "loaded: %s", first);
    expect_text(error.text, key);
    cr_expect_eq(checkpoint_load_weights(&subject.trainer.model, &subject.config, path, &error),
                 -1);
    expect_text(error.text, first);
    expect_text(error.text, second);
    expect_text(error.text, third);
    float *after = masters_values(&subject.trainer.model);
    cr_expect_eq(memcmp(before, after, (size_t)subject.trainer.model.count * sizeof *after), 0);
    free(after);
    cr_expect_eq(subject.trainer.state.step, 0);
    free(before);
    subject_close(&subject);
}

Test(checkpoint, shapes_that_do_not_fit_are_named) {
    static const struct {
        const char *key;
        double value;
        const char *first, *second, *third;
    } cases[] = {
        {"model.vocab_size", 310, "model.vocab_size", "transformer.wte.weight is [300, 24]",
         "[310, 24]"},
        {"model.n_positions", 20, "model.n_positions", "transformer.wpe.weight is [16, 24]",
         "[20, 24]"},
        {"model.n_embd", 48, "model.n_embd", "transformer.wte.weight is [300, 24]", "[300, 48]"},
        {"model.n_layer", 3, "model.n_layer is 3", "2 layers", "transformer.h.2.ln_1.weight"},
        {"model.n_layer", 1, "model.n_layer is 1", "2 layers", "transformer.h.1."},
        {"model.n_head", 4, "model.n_head is 4", "n_head is 3", path},
    };
    struct subject saved;
    subject_open_saved(&saved, CONFIG_PRECISION_FP32, 5, path);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config = saved.config;
        config_set(&config, config_option_of(cases[i].key), cases[i].value);
        expect_refused(&config, cases[i].key, cases[i].first, cases[i].second, cases[i].third);
    }
    subject_close(&saved);
}

Test(checkpoint, keeps_the_config_to_the_last_bit) {
    struct subject subject;
    struct config config;
    subject_config(&subject.config, CONFIG_PRECISION_FP16);
    subject.config.seed = 9007199254740991;
    subject.config.optimizer.lr = 0.1 + 0.2 - 0.3 + 1e-3;
    subject.config.optimizer.beta2 = 0.1 + 0.7;
    strcpy(subject.config.sample.prompt, "\n  \"config\": }\n  },\t\"\\ \x01 \xc3\xa9");
    subject_open(&subject);
    save_step(&subject, folder, 5, path);
    SUCCEEDS(checkpoint_config(&config, path, &error));
    char *before = config_json_text(&subject.config, NULL);
    char *after = config_json_text(&config, NULL);
    cr_expect_str_eq(before, after);
    cr_expect_eq(config.optimizer.lr, subject.config.optimizer.lr);
    cr_expect_eq(config.optimizer.beta2, subject.config.optimizer.beta2);
    free(before);
    free(after);
    subject_close(&subject);
}

Test(checkpoint, keeps_the_newest_ones) {
    struct subject subject;
    subject_config(&subject.config, CONFIG_PRECISION_FP32);
    subject.config.checkpoint.keep = 2;
    subject_open(&subject);
    save_step(&subject, folder, 90, path); /* from an older run: a higher step, so never removed */
    for (int64_t step = 10; step <= 30; step += 10) save_step(&subject, folder, step, path);
    cr_expect_str_eq(names_in("checkpoints"), "step-00000020 step-00000030 step-00000090 ");

    /* Damaged, linked and foreign directories are neither counted nor removed. */
    cr_assert_eq(unlink(in_checkpoints(folder, "step-00000030/config.json")), 0);
    mkdir(in_checkpoints(folder, "step-00000025"), 0755);
    mkdir(in_checkpoints(folder, "step-5"), 0755);
    mkdir(in_checkpoints(folder, "best"), 0755);
    cr_assert_eq(rename(in_checkpoints(folder, "step-00000020"), in_folder("elsewhere")), 0);
    cr_assert_eq(symlink("../elsewhere", in_checkpoints(folder, "step-00000020")), 0);
    save_step(&subject, folder, 40, path);
    save_step(&subject, folder, 45, path);
    save_step(&subject, folder, 50, path);
    cr_expect_str_eq(names_in("checkpoints"),
                     "best step-00000020 step-00000025 step-00000030 step-00000045 step-00000050 "
                     "step-00000090 step-5 ");
    cr_expect(file_exists(in_checkpoints(folder, "step-00000020/model.safetensors")));
    subject_close(&subject);
}

Test(checkpoint, replaces_one_of_the_same_step) {
    struct subject subject, loaded;
    char *warnings;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject_open_tiny(&loaded, CONFIG_PRECISION_FP32);
    save_step(&subject, folder, 10, path);
    cr_assert_eq(unlink(in_checkpoints(folder, "step-00000010/config.json")), 0);
    save_step(&subject, folder, 10, path);
    cr_expect_eq(newest_step(folder, &warnings), 10);
    cr_expect_str_eq(warnings, "");
    free(load_noting(&loaded, path));
    expect_same(&subject, &loaded);
    cr_expect_not(file_exists(in_checkpoints(folder, ".step-00000010.tmp")));
    cr_expect_not(file_exists(in_checkpoints(folder, ".step-00000010.old")));
    free(warnings);
    subject_close(&subject);
    subject_close(&loaded);
}

Test(checkpoint, a_run_without_any_has_no_newest) {
    char *warnings;
    expect_newest(folder, -1);
    mkdir(in_checkpoints(folder, ""), 0755);
    cr_expect_eq(newest_step(folder, &warnings), -1);
    free(warnings);
}
