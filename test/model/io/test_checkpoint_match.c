#include "test/model/families.h"
#include "test/model/io/checkpoint_fixture.h"

#include <unistd.h>

#include "model/io/checkpoint_tensors.h"
#include "model/io/safetensors.h"
#include "test/model/io/foreign_weights.h"

TestSuite(checkpoint_match, .init = make_folder, .fini = remove_folder);

static void expect_values(struct model *model) {
    float *values = masters_values(model);
    for (ptrdiff_t p = 0; p < arrlen(model->list); p++) {
        const struct tensor lower = masters_read_tensor(&model->masters, &model->list[p]);
        for (int64_t k = 0; k < parameter_count(&model->list[p]); k++) {
            float value = values[model->list[p].offset + k];
            cr_assert_eq(value, value_of(p, k));
            if (lower.dtype == DTYPE_BF16)
                cr_assert_eq(((uint16_t *)lower.data)[k], bf16_from_master(value));
        }
    }
    free(values);
}

Test(checkpoint_match, weights_of_others_are_read) {
    static const struct foreign_format well[] = {
        {.dtype = SAFETENSORS_F32, .prefix = "transformer."},
        {.dtype = SAFETENSORS_F32, .prefix = "", .extra = "h.1.attn.bias"},
        {.dtype = SAFETENSORS_F16, .prefix = "", .extra = "h.0.attn.masked_bias", .head = 1},
        {.dtype = SAFETENSORS_BF16,
         .prefix = "transformer.",
         .extra = "transformer.h.1.attn.bias",
         .head = 1},
        {.dtype = SAFETENSORS_BF16, .prefix = "transformer.", .mixed = true},
        {.dtype = SAFETENSORS_F32, .prefix = "", .head = 1, .shards = 1},
        {.dtype = SAFETENSORS_F16, .prefix = "transformer.", .shards = 3},
        {.dtype = SAFETENSORS_BF16,
         .prefix = "",
         .extra = "h.1.attn.bias",
         .head = 1,
         .shards = 29,
         .mixed = true},
    };
    for (size_t i = 0; i < COUNT(well); i++) {
        struct subject subject;
        subject_open_tiny(&subject, CONFIG_PRECISION_BF16);
        struct model *model = &subject.trainer.model;
        unlink(in_folder("model.safetensors"));
        put_weights(model->list, &well[i]);
        cr_assert_eq(checkpoint_load_weights(model, NULL, folder, &error), 0, "%zu: %s", i,
                     error.text);
        expect_values(model);
        subject_close(&subject);
    }
}

/* Gemma 3 with images: the text's weights begin with language_model, in place of the first part of
 * their names or before it, and the others are those of images. */
Test(checkpoint_match, the_text_of_a_model_with_images_is_read) {
    static const char *const extras[] = {
        "vision_tower.vision_model.post_layernorm.weight",
        "model.multi_modal_projector.mm_input_projection_weight",
        "language_model.lm_head.weight",
        "audio_tower.weight",
    };
    for (size_t i = 0; i < COUNT(extras); i++) {
        const struct foreign_format format = {
            .dtype = SAFETENSORS_F32, .prefix = "language_model.", .extra = extras[i]};
        struct subject subject;
        subject_config(&subject.config, CONFIG_PRECISION_FP32);
        set_family(&subject.config, 7);
        subject_open(&subject);
        struct model *model = &subject.trainer.model;
        struct parameter *list = NULL;
        for (ptrdiff_t k = 0; k < arrlen(model->list); k++) arrput(list, model->list[k]);
        for (ptrdiff_t k = 0; i == 1 && k < arrlen(list); k++) /* model.language_model.layers. */
            memmove(list[k].name, list[k].name + 6, strlen(list[k].name + 6) + 1);
        struct foreign_format put = format;
        if (i == 1) put.prefix = "model.language_model.";
        put_weights(list, &put);
        int status = checkpoint_load_weights(model, NULL, folder, &error);
        cr_expect_eq(status, i >= 2 ? -1 : 0, "%s: %s", extras[i], status ? error.text : "");
        if (status == 0) expect_values(model);
        arrfree(list);
        subject_close(&subject);
    }
}

/* Bits of every kind of number are kept: fp32 as it is, 16 bits widened. */
Test(checkpoint_match, nan_and_infinities_pass) {
    for (int wide = 0; wide < 2; wide++) {
        struct subject subject;
        struct safetensors_writer writer;
        subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
        struct model *model = &subject.trainer.model;
        struct saved_tensor *tensors = saved_weights(model->list, false);
        struct safetensors_entry *entries = saved_entries(tensors, wide ? DTYPE_F32 : DTYPE_BF16);
        SUCCEEDS(safetensors_write_begin(&writer, in_folder("model.safetensors"), entries,
                                         (int)arrlen(entries), &error));
        size_t size = wide ? 4 : 2;
        for (uint64_t k = 0; k < writer.announced / size; k++) {
            uint64_t bits = random_bits(5, 0, k);
            SUCCEEDS(safetensors_write_data(&writer, &bits, size, &error));
        }
        uint64_t next = 0;
        SUCCEEDS(safetensors_write_end(&writer, &error));
        SUCCEEDS(checkpoint_load_weights(model, NULL, folder, &error));
        float *values = masters_values(model);
        for (ptrdiff_t p = 0; p < arrlen(model->list); p++) {
            for (int64_t k = 0; k < parameter_count(&model->list[p]); k++) {
                uint32_t bits = (uint32_t)random_bits(5, 0, next++), got;
                memcpy(&got, &values[model->list[p].offset + k], sizeof got);
                cr_assert_eq(got, wide ? bits : bits << 16);
            }
        }
        free(values);
        arrfree(entries);
        arrfree(tensors);
        subject_close(&subject);
    }
}

/* Loading must fail with these parts in the message, and change nothing. */
static void expect_refused(struct model *model, const char *reason, const char *file) {
    error.text[0] = '\0';
    float *before = masters_values(model);
    cr_expect_eq(checkpoint_load_weights(model, NULL, folder, &error), -1, "loaded: %s", reason);
    expect_text(error.text, reason);
    expect_text(error.text, in_folder("%s", file));
    float *after = masters_values(model);
    cr_expect_eq(memcmp(before, after, (size_t)model->count * sizeof *after), 0,
                 "%s: weights changed", reason);
    free(before);
    free(after);
}

Test(checkpoint_match, weights_of_other_models_are_refused) {
    static const struct {
        struct foreign_format format;
        const char *reason;
    } cases[] = {
        {{.prefix = "", .head = 2}, "lm_head.weight differs"},
        {{.prefix = "", .extra = "h.1.attn.q_norm"}, "h.1.attn.q_norm is no part"},
        {{.prefix = "", .extra = "transformer.wte.weight"}, "wte.weight is no part"},
        {{.prefix = "transformer.", .extra = "wte.weight"}, "wte.weight is no part"},
        {{.prefix = "transformer.", .missing = "ln_f.bias"},
         "tensor transformer.ln_f.bias is missing\nit is not a model like"},
        {{.prefix = "_orig_mod.transformer."},
         "there is _orig_mod.transformer.wte.weight\nremove the prefix \"_orig_mod.\" from the "
         "names: torch.compile"},
        {{.prefix = "module."},
         "there is module.wte.weight\nremove the prefix \"module.\" from the names: Distributed"},
        {{.prefix = "x.y."}, "remove the prefix \"x.y.\" from the names"},
        {{.prefix = "", .missing = "wte.weight", .head = 1}, "wte.weight is missing"},
        {{.prefix = "", .extra = "h.2.ln_1.weight"}, "3 layers, but model.n_layer is 2"},
        {{.prefix = "", .extra = "\x1b[2J"}, "tensor  [2J is no part"},
    };
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    struct model *model = &subject.trainer.model;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct foreign_format format = cases[i].format;
        format.dtype = i % 2 ? SAFETENSORS_F16 : SAFETENSORS_F32;
        put_weights(model->list, &format);
        expect_refused(model, cases[i].reason, "model.safetensors");
    }
    subject_close(&subject);
}

/* The message names the file that holds the tensor; for a tensor in no file, the index. */
Test(checkpoint_match, shards_that_do_not_fit_are_named) {
    static const struct {
        struct foreign_format format;
        const char *reason, *file;
    } cases[] = {
        {{.longer = "wte.weight"},
         "tensor wte.weight is [301, 24], but the config wants [300, 24]\nset model.vocab_size",
         "model-00001-of-00003.safetensors"},
        {{.longer = "wpe.weight"},
         "tensor wpe.weight is [17, 24], but the config wants [16, 24]\nset model.n_positions",
         "model-00002-of-00003.safetensors"},
        {{.longer = "h.1.mlp.c_proj.weight"},
         "tensor h.1.mlp.c_proj.weight is [97, 24], but the config wants [96, 24]\nset "
         "model.n_inner as",
         "model-00001-of-00003.safetensors"},
        {{.longer = "h.0.mlp.c_fc.bias"},
         "tensor h.0.mlp.c_fc.bias is [97], but the config wants [96]\nset model.n_inner as",
         "model-00001-of-00003.safetensors"},
        {{.longer = "h.0.attn.c_attn.weight"},
         "tensor h.0.attn.c_attn.weight is [25, 72], but the config wants [24, 72]",
         "model-00003-of-00003.safetensors"},
        {{.extra = "h.0.attn.q_norm"},
         "h.0.attn.q_norm is no part",
         "model-00002-of-00003.safetensors"},
        {{.extra = "h.7.ln_1.weight"}, "8 layers", "model-00002-of-00003.safetensors"},
        {{.head = 2}, "lm_head.weight differs", "model-00002-of-00003.safetensors"},
        {{.missing = "h.1.mlp.c_fc.bias"},
         "transformer.h.1.mlp.c_fc.bias is missing",
         "model.safetensors.index.json"},
    };
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    struct model *model = &subject.trainer.model;
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct foreign_format format = cases[i].format;
        format.dtype = SAFETENSORS_BF16;
        format.prefix = "";
        format.shards = 3;
        put_weights(model->list, &format);
        expect_refused(model, cases[i].reason, cases[i].file);
    }
    subject_close(&subject);
}

/* A message about a shape names the keys of the dimension that differs. */
Test(checkpoint_match, a_wrong_dimension_names_its_keys) {
    static const char heads[] = "model.n_head or model.head_dim",
                      kv_heads[] = "model.n_kv_head or model.head_dim";
    static const struct {
        int family; /* GPT-2, Llama, Qwen2 or Qwen3 */
        const char *name, *rows, *columns;
    } cases[] = {
        {0, "h.0.attn.c_attn.weight", "model.n_embd", "model.n_embd"},
        {0, "h.0.attn.c_proj.weight", "model.n_embd", "model.n_embd"},
        {0, "h.0.mlp.c_fc.weight", "model.n_embd", "model.n_inner"},
        {0, "h.0.mlp.c_proj.weight", "model.n_inner", "model.n_embd"},
        {0, "h.0.mlp.c_fc.bias", "model.n_inner", "model.n_inner"},
        {0, "wpe.weight", "model.n_positions", "model.n_embd"},
        {0, "h.0.mlp.c_fc.lora_A.weight", "adapter.rank", "model.n_embd"},
        {0, "h.0.mlp.c_fc.lora_B.weight", "model.n_inner", "adapter.rank"},
        {0, "h.0.mlp.c_proj.lora_A.weight", "adapter.rank", "model.n_inner"},
        {1, "model.layers.0.mlp.up_proj.weight", "model.n_inner", "model.n_embd"},
        {1, "model.layers.0.mlp.down_proj.weight", "model.n_embd", "model.n_inner"},
        {1, "model.layers.0.self_attn.q_proj.weight", heads, "model.n_embd"},
        {1, "model.layers.0.self_attn.k_proj.weight", kv_heads, "model.n_embd"},
        {1, "model.layers.0.self_attn.o_proj.weight", "model.n_embd", heads},
        {1, "model.layers.0.self_attn.v_proj.lora_B.weight", kv_heads, "adapter.rank"},
        {1, "model.layers.0.self_attn.o_proj.lora_A.weight", "adapter.rank", heads},
        {1, "model.embed_tokens.weight", "model.vocab_size", "model.n_embd"},
        {1, "lm_head.weight", "model.vocab_size", "model.n_embd"},
        {2, "model.layers.0.self_attn.k_proj.bias", kv_heads, kv_heads},
        {5, "model.layers.0.self_attn.q_norm.weight", "model.head_dim", "model.head_dim"},
        {5, "model.norm.weight", "model.n_embd", "model.n_embd"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        int64_t count;
        config_defaults(&config);
        set_family(&config, cases[i].family);
        config.adapter.type = CONFIG_ADAPTER_LORA;
        struct model_shape shape = config_shape(&config);
        struct parameter *list = parameter_list(&shape, &count);
        const struct parameter *p = list;
        while (p < list + arrlen(list) && strcmp(p->name, cases[i].name) != 0) p++;
        cr_assert(p < list + arrlen(list), "%s", cases[i].name);
        const uint64_t rows = (uint64_t)p->extent.rows, columns = (uint64_t)p->extent.columns;
        struct safetensors_entry entry = {.rank = 2, .shape = {rows + 1, columns}};
        cr_expect_str_eq(tensor_key_of_shape(p, &entry), cases[i].rows, "%s", cases[i].name);
        entry.shape[0] = rows, entry.shape[1] = columns + 1;
        cr_expect_str_eq(tensor_key_of_shape(p, &entry), cases[i].columns, "%s", cases[i].name);
        arrfree(list);
    }
}

/* An adapter with other prefixes is not one for other layers. */
Test(checkpoint_match, an_adapter_of_other_names_is_named) {
    static const struct parameter parameter = {
        .name = "model.layers.0.self_attn.q_proj.lora_A.weight", .adapter = true};
    struct saved_tensor wanted = {
        .parameter = &parameter, .moment = SAVED_WEIGHT, .name = "base_model.model."};
    strcat(wanted.name, parameter.name);
    static const struct {
        const char *name, *reason;
    } cases[] = {
        {"model.layers.0.self_attn.q_proj.lora_A.weight",
         "tensor base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight is missing, but "
         "there is model.layers.0"},
        {"base_model.model._orig_mod.model.layers.0.self_attn.q_proj.lora_A.weight",
         "but there is base_model.model._orig_mod.model.layers.0"},
        {"base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", "adapter.targets"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct safetensors_entry entry = {.name = (char *)cases[i].name};
        struct stored_tensor tensor = {.entry = &entry};
        const struct tensor_files files = {.tensors = &tensor, .count = 1, .where = "adapter"};
        cr_expect_eq(saved_missing(&files, &wanted, &error), -1);
        expect_text(error.text, cases[i].reason);
    }
}

Test(checkpoint_match, other_dtypes_are_refused) {
    struct subject subject;
    struct safetensors_writer writer;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    struct model *model = &subject.trainer.model;
    struct saved_tensor *tensors = saved_weights(model->list, false);
    struct safetensors_entry *entries = saved_entries(tensors, DTYPE_F32);
    entries[3].dtype = SAFETENSORS_I32;
    SUCCEEDS(safetensors_write_begin(&writer, in_folder("model.safetensors"), entries,
                                     (int)arrlen(entries), &error));
    char *zeros = calloc(1, writer.announced);
    SUCCEEDS(safetensors_write_data(&writer, zeros, writer.announced, &error));
    SUCCEEDS(safetensors_write_end(&writer, &error));
    char reason[200];
    snprintf(reason, sizeof reason, "tensor %s is I32, but only F32, F16 and BF16",
             entries[3].name);
    expect_refused(model, reason, "model.safetensors");
    free(zeros);
    arrfree(entries);
    arrfree(tensors);
    subject_close(&subject);
}

/* Codes of moments without scales, or with scales of another count or dtype. */
Test(checkpoint_match, codes_of_moments_need_their_scales) {
    static const char *const reasons[] = {NULL, "is U8, but only F32, F16 and BF16",
                                          "does not have an F32 scale for each 256",
                                          "does not have an F32 scale for each 256"};
    struct subject subject;
    subject_open_moments(&subject, CONFIG_MOMENTS_INT8);
    struct saved_tensor *tensors = saved_moments(&subject.trainer.optimizer);
    ptrdiff_t scales = 0;
    while (tensors[scales].array != MOMENT_SCALES) scales++;
    for (int defect = 0; defect < (int)COUNT(reasons); defect++) {
        struct safetensors_writer writer;
        struct tensor_files files;
        struct safetensors_entry *entries = saved_entries(tensors, DTYPE_F32);
        if (defect == 1) entries[scales].name = "others";
        if (defect == 2) entries[scales].shape[0]--;
        if (defect == 3) entries[scales].dtype = SAFETENSORS_I32;
        SUCCEEDS(safetensors_write_begin(&writer, in_folder("optimizer.safetensors"), entries,
                                         (int)arrlen(entries), &error));
        char *zeros = calloc(1, writer.announced);
        SUCCEEDS(safetensors_write_data(&writer, zeros, writer.announced, &error));
        SUCCEEDS(safetensors_write_end(&writer, &error));
        SUCCEEDS(tensor_files_open_directory(&files, folder, checkpoint_optimizer_stem, &error));
        error.text[0] = '\0';
        int status = checkpoint_check_moments(&subject.trainer.optimizer, &files, &error);
        cr_expect_eq(status, defect ? -1 : 0, "defect %d: %s", defect, error.text);
        if (defect) expect_text(error.text, reasons[defect]);
        tensor_files_close(&files);
        free(zeros);
        arrfree(entries);
    }
    arrfree(tensors);
    subject_close(&subject);
}

/* A shard that ends early at any offset (here some of them) is named in the message. */
Test(checkpoint_match, cut_shards_are_refused) {
    static const struct foreign_format sharded = {
        .dtype = SAFETENSORS_F16, .prefix = "transformer.", .shards = 2};
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    struct model *model = &subject.trainer.model;
    put_weights(model->list, &sharded);
    const char *name = shard_name(&sharded, 1);
    char *bytes;
    size_t size;
    SUCCEEDS(file_read_all(&bytes, &size, in_folder("%s", name), 1 << 24, &error));
    free(bytes);
    static const char *const reasons[] = {"too short", "cut short", "cut short", "ends at byte"};
    const size_t sizes[] = {0, 100, size / 2, size - 1};
    for (size_t i = COUNT(sizes); i-- > 0;) {
        cr_assert_eq(truncate(in_folder("%s", name), (off_t)sizes[i]), 0);
        expect_refused(model, reasons[i], name);
    }
    subject_close(&subject);
}
