/* Adapters in files: PEFT's description, checkpoints of adapters, and merging. */
#include "data/util/files.h"
#include "test/model/io/checkpoint_fixture.h"

#include "model/io/adapter_config.h"
#include "model/io/checkpoint.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/export.h"
#include "model/io/huggingface.h"
#include "model/io/safetensors.h"
#include "model/pass/adapter.h"
#include "test/model/families.h"
#include "test/model/io/foreign_weights.h"
#include "test/safetensors_find.h"

TestSuite(adapter_files, .init = make_folder, .fini = remove_folder);

/* A model of a family in FOLDER/base, and a config of adapters on it. */
static void make_base(struct config *config, int family) {
    struct subject base;
    char path[FILE_PATH_MAX];
    subject_config(&base.config, CONFIG_PRECISION_FP32);
    set_family(&base.config, family);
    subject_open(&base);
    SUCCEEDS(checkpoint_save(&base.trainer, folder, path, &error));
    *config = base.config;
    subject_close(&base);
    SUCCEEDS(export_model(in_folder("base"), path,
                          &(const struct export_options){.dtype = DTYPE_F32}, &error));
    strcpy(config->model.init_from, in_folder("base"));
    config->adapter.type = CONFIG_ADAPTER_LORA;
    config->adapter.rank = 3;
    config->adapter.alpha = 5;
}

static void open_adapted(struct subject *subject, const struct config *config) {
    subject->config = *config;
    subject_open_with(subject, TRAINER_EMPTY);
    SUCCEEDS(checkpoint_load_initial(&subject->trainer.model, &subject->config, stderr, &error));
}

/* Sets A and B to values that depend on their place alone. */
static void fill_adapters(struct model *model) {
    for (ptrdiff_t i = 0; i < parameter_adapter_count(model->list); i++) {
        int64_t count = parameter_count(&model->list[i]);
        float *values = malloc((size_t)count * sizeof *values);
        random_normals(values, 0.3f, 3, (uint64_t)i, 0, count);
        masters_upload(&model->masters, model->be, values, model->list[i].offset, count);
        free(values);
    }
}

/* A checkpoint has only the adapters, and with the base it restores the model to the bit. */
Test(adapter_files, checkpoint_of_adapters) {
    for (int family = 0; family < 2; family++) {
        struct config config;
        struct subject saved, loaded;
        char path[FILE_PATH_MAX];
        make_base(&config, family);
        open_adapted(&saved, &config);
        fill_adapters(&saved.trainer.model);
        saved.trainer.state.step = 7;
        SUCCEEDS(checkpoint_save(&saved.trainer, in_folder("run"), path, &error));
        cr_expect_str_eq(names_in("run/checkpoints/step-00000007"),
                         "adapter_config.json adapter_model.safetensors config.json "
                         "generation_config.json optimizer.safetensors trainer.json ");
        loaded.config = config;
        subject_open_with(&loaded, TRAINER_EMPTY);
        SUCCEEDS(checkpoint_load(&loaded.trainer, path, stderr, &error));
        expect_same(&saved, &loaded);
        subject_close(&loaded);
        subject_close(&saved);
        SUCCEEDS(directory_remove(in_folder("base"), &error));
    }
}

static void expect_unloadable(const struct config *config, const char *path, const char *reason) {
    struct subject subject = {.config = *config};
    subject_open_with(&subject, TRAINER_EMPTY);
    error.text[0] = '\0';
    cr_expect_eq(checkpoint_load(&subject.trainer, path, stderr, &error), -1, "loaded: %s", reason);
    expect_text(error.text, reason);
    subject_close(&subject);
}

Test(adapter_files, refuses_other_settings_and_another_base) {
    struct config config, other;
    struct subject saved;
    char path[FILE_PATH_MAX];
    make_base(&config, 1);
    open_adapted(&saved, &config);
    saved.trainer.state.step = 1;
    SUCCEEDS(checkpoint_save(&saved.trainer, in_folder("run"), path, &error));
    subject_close(&saved);
    other = config, other.adapter.alpha = 6;
    expect_unloadable(&other, path, "adapter.alpha is 5 in the checkpoint, now 6");
    other = config, other.adapter.rank = 4;
    expect_unloadable(&other, path, "adapter.rank is 3 in the checkpoint, now 4");
    other = config, other.adapter.rslora = true;
    expect_unloadable(&other, path, "adapter.rslora");
    other = config, other.adapter.type = CONFIG_ADAPTER_NONE;
    expect_unloadable(&other, path, "adapter.type is \"lora\" in the checkpoint, now \"none\"");
    SUCCEEDS(directory_remove(in_folder("base"), &error));
    config.seed++;
    make_base(&other, 1);
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, in_folder("base/model.safetensors"), &error));
    const struct safetensors_entry *entry = safetensors_find(&file, "model.norm.weight");
    long at = (long)(file.data_start + entry->offset);
    safetensors_close(&file);
    FILE *changed = fopen(in_folder("base/model.safetensors"), "r+b");
    fseek(changed, at, SEEK_SET);
    fputc(0x12, changed);
    fclose(changed);
    config.seed--;
    expect_unloadable(&config, path, "is another model than the one that the adapters");
}

/* Values of a tensor of FOLDER/NAME/model.safetensors, to be freed. */
static float *weight_in(const char *name, const char *tensor) {
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, in_folder("%s/model.safetensors", name), &error));
    const struct safetensors_entry *entry = safetensors_find(&file, tensor);
    cr_assert_not_null(entry, "%s", tensor);
    float *values = safetensors_data(&file, entry);
    safetensors_close(&file);
    return values;
}

/* Merged weights are W + scale B A; others keep their bits. fp32 sums of three terms: 2^-22 of the
 * largest is beyond their rounding. */
static void expect_merged(const struct model *model, const char *prefix) {
    float *all = masters_values(model);
    for (ptrdiff_t i = parameter_adapter_count(model->list); i < arrlen(model->list); i++) {
        const struct parameter *w = &model->list[i], *a = NULL, *b = NULL;
        char name[128];
        size_t stem = strlen(w->name) - (strstr(w->name, "weight") ? strlen("weight") : 0);
        for (ptrdiff_t k = 0; k < parameter_adapter_count(model->list); k++) {
            if (strncmp(model->list[k].name, w->name, stem) != 0) continue;
            if (strstr(model->list[k].name + stem, "lora_A") == model->list[k].name + stem)
                a = &model->list[k];
            if (strstr(model->list[k].name + stem, "lora_B") == model->list[k].name + stem)
                b = &model->list[k];
        }
        snprintf(name, sizeof name, "%s%s", prefix, w->name);
        float *got = weight_in("merged", name);
        for (int64_t k = 0; k < parameter_count(w); k++) {
            double expected = all[w->offset + k];
            if (!a) cr_assert_eq(got[k], all[w->offset + k], "%s", name);
            if (!a) continue;
            int64_t row = k / w->extent.columns, column = k % w->extent.columns;
            int64_t out = model->shape.weights_out_in ? row : column;
            int64_t in = model->shape.weights_out_in ? column : row;
            for (int64_t r = 0; r < a->extent.rows; r++)
                expected += (double)model->adapters.scale *
                            all[b->offset + out * a->extent.rows + r] *
                            all[a->offset + r * a->extent.columns + in];
            cr_assert_float_eq(got[k], expected, 0x1p-22, "%s: %g", name, expected);
        }
        free(got);
    }
    free(all);
}

/* Makes FOLDER/base the text of a larger model: its config.json in that of a SmolVLM. */
static void wrap_base(void) {
    char *text, *whole;
    size_t size;
    SUCCEEDS(file_read_all(&text, &size, in_folder("base/config.json"), 100000, &error));
    cr_assert_gt(asprintf(&whole, "{\"model_type\": \"smolvlm\", \"text_config\": %s}", text), 0);
    put_text("base/config.json", whole);
    free(whole);
    free(text);
}

/* Adapters of a larger model's text have the names of the larger model's modules, in checkpoints
 * and exports, and are read again under them. */
Test(adapter_files, adapters_of_a_larger_model_fit_it) {
    static const char name[] =
        "base_model.model.model.text_model.layers.1.self_attn.q_proj.lora_B.weight";
    struct config config, read;
    struct subject saved, loaded;
    struct safetensors file;
    char path[FILE_PATH_MAX], *text;
    size_t size;
    make_base(&config, 1);
    wrap_base();
    open_adapted(&saved, &config);
    fill_adapters(&saved.trainer.model);
    SUCCEEDS(checkpoint_save(&saved.trainer, in_folder("run"), path, &error));
    SUCCEEDS(export_model(in_folder("alone"), path, &(const struct export_options){0}, &error));
    SUCCEEDS(export_model(in_folder("merged"), path, &(const struct export_options){.merge = true},
                          &error));
    expect_merged(&saved.trainer.model, "");
    for (int i = 0; i < 2; i++) {
        const char *from = i ? in_folder("alone") : path;
        char files[FILE_PATH_MAX];
        SUCCEEDS(file_path_join(files, from, "adapter_model.safetensors", &error));
        SUCCEEDS(safetensors_open(&file, files, &error));
        cr_expect_eq(file.count, (int)parameter_adapter_count(saved.trainer.model.list));
        cr_expect_not_null(safetensors_find(&file, name), "%s", file.entries[0].name);
        safetensors_close(&file);
        SUCCEEDS(file_path_join(files, from, adapter_config_name, &error));
        SUCCEEDS(file_read_all(&text, &size, files, 100000, &error));
        expect_text(text, "\"exclude_modules\": \".*(visual|vision|connector|projector).*\"");
        free(text);
        read = config;
        SUCCEEDS(adapter_read_config(&read, from, &error));
    }
    loaded.config = config;
    subject_open_with(&loaded, TRAINER_EMPTY);
    SUCCEEDS(checkpoint_load(&loaded.trainer, path, stderr, &error));
    expect_same(&saved, &loaded);
    subject_close(&loaded);
    subject_close(&saved);
}

Test(adapter_files, merges_into_the_base) {
    for (int family = 0; family < 3; family++) {
        struct config config;
        struct subject subject;
        char path[FILE_PATH_MAX];
        make_base(&config, family);
        open_adapted(&subject, &config);
        fill_adapters(&subject.trainer.model);
        subject.trainer.state.step = 1;
        SUCCEEDS(checkpoint_save(&subject.trainer, in_folder("run"), path, &error));
        SUCCEEDS(export_model(in_folder("merged"), path,
                              &(const struct export_options){.merge = true}, &error));
        expect_merged(&subject.trainer.model, family == 0 ? "transformer." : "");
        SUCCEEDS(export_model(in_folder("alone"), path, &(const struct export_options){0}, &error));
        cr_expect_str_eq(names_in("alone"),
                         "adapter_config.json adapter_model.safetensors generation_config.json ");
        subject_close(&subject);
        SUCCEEDS(directory_remove(in_folder("base"), &error));
        SUCCEEDS(directory_remove(in_folder("merged"), &error));
        SUCCEEDS(directory_remove(in_folder("alone"), &error));
    }
    cr_expect_eq(export_model(in_folder("plain"), in_folder("run/checkpoints/step-00000001/.."),
                              &(const struct export_options){.merge = true}, &error),
                 -1);
    expect_text(error.text, "has no adapters to merge");
}

static const char whole[] =
    "{\"peft_type\": \"LORA\", \"r\": 5, \"lora_alpha\": 2.5, \"use_rslora\": true, "
    "\"target_modules\": [\"q_proj\", \"down_proj\"], \"bias\": \"none\", \"use_dora\": false, "
    "\"modules_to_save\": null, \"rank_pattern\": {}%s}";

static int read_adapter(struct config *config, const char *more) {
    char text[2048];
    snprintf(text, sizeof text, whole, more);
    put_text("adapter_config.json", text);
    config_defaults(config);
    set_family(config, 1);
    error.text[0] = '\0';
    return adapter_read_config(config, folder, &error);
}

Test(adapter_files, reads_what_peft_writes) {
    struct config config, again;
    cr_assert_eq(read_adapter(&config, ""), 0, "%s", error.text);
    cr_expect_eq(config.adapter.type, CONFIG_ADAPTER_LORA);
    cr_expect_eq(config.adapter.rank, 5);
    cr_expect_eq(config.adapter.alpha, 2.5);
    cr_expect(config.adapter.rslora);
    cr_expect_eq(config.adapter.targets.count, 2);
    cr_expect_str_eq(config.adapter.targets.items[1], "down_proj");
    FILE *out = fopen(in_folder("adapter_config.json"), "w");
    adapter_print_config(out, &config);
    fclose(out);
    config_defaults(&again);
    set_family(&again, 1);
    SUCCEEDS(adapter_read_config(&again, folder, &error));
    cr_expect_eq(memcmp(&again.adapter, &config.adapter, sizeof again.adapter), 0);
}

/* Each of these computes something else, or is no adapter. */
Test(adapter_files, refuses_other_kinds_by_name) {
    static const struct {
        const char *old, *changed, *reason;
    } cases[] = {
        {"\"LORA\"", "\"IA3\"", "peft_type is \"IA3\""},
        {"\"use_dora\": false", "\"use_dora\": true", "use_dora is true"},
        {"\"bias\": \"none\"", "\"bias\": \"all\"", "bias is \"all\""},
        {"\"modules_to_save\": null", "\"modules_to_save\": [\"lm_head\"]", "modules_to_save"},
        {"\"rank_pattern\": {}", "\"rank_pattern\": {\"q_proj\": 4}", "rank_pattern"},
        {"\"modules_to_save\": null", "\"exclude_modules\": \"q_proj\"", "exclude_modules"},
        {"\"r\": 5", "\"r\": 0", "r is 0"},
        {"\"r\": 5", "\"r\": 2.5", "r is 2.5"},
        {"\"lora_alpha\": 2.5", "\"lora_alpha\": null", "lora_alpha is null"},
        {"[\"q_proj\", \"down_proj\"]", "[\"q_proj\", \"lm_head\"]", "target_modules"},
        {"[\"q_proj\", \"down_proj\"]", "\"(?!k).*proj\"", "target_modules is \"(?!k).*proj\""},
        {"[\"q_proj\", \"down_proj\"]", "[]", "target_modules is []"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char text[2048], changed[2048];
        struct config config;
        snprintf(text, sizeof text, whole, "");
        char *at = strstr(text, cases[i].old);
        cr_assert_not_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, cases[i].changed,
                 at + strlen(cases[i].old));
        put_text("adapter_config.json", changed);
        config_defaults(&config);
        set_family(&config, 1);
        error.text[0] = '\0';
        cr_expect_eq(adapter_read_config(&config, folder, &error), -1, "%s", cases[i].reason);
        expect_text(error.text, cases[i].reason);
        cr_expect_eq(config.adapter.type, CONFIG_ADAPTER_NONE, "%s", cases[i].reason);
    }
}

/* PEFT saves whole weights beside adapters, with save_embedding_layers. */
Test(adapter_files, whole_weights_are_refused_by_name) {
    static const struct foreign_format plain = {.dtype = SAFETENSORS_F32, .prefix = ""};
    struct config config;
    struct tensor_files files;
    int64_t count;
    subject_config(&config, CONFIG_PRECISION_FP32);
    const struct model_shape shape = config_shape(&config); /* of no adapters */
    struct parameter *list = parameter_list(&shape, &count);
    put_weights(list, &plain);
    SUCCEEDS(tensor_files_open_directory(&files, folder, checkpoint_model_stem, &error));
    cr_expect_eq(checkpoint_check_adapters(list, &files, &error), -1);
    expect_text(error.text, "the config has no adapters for ");
    expect_text(error.text, files.tensors[0].entry->name);
    expect_text(error.text, files.tensors[1].entry->name);
    expect_text(error.text, "merge them in PEFT (merge_and_unload)");
    tensor_files_close(&files);
    arrfree(list);
}

/* Sizes of tensors cannot tell that a run of adapters lacks its model. */
Test(adapter_files, adapters_without_their_model_are_refused) {
    cr_expect_eq(checkpoint_check_base("", &error), -1);
    expect_text(error.text, "adapters are trained on a model, and there is none");
    expect_text(error.text, "model.init_from");
}
