/* model/config: values, precedence, flags, computed defaults, warnings, and finding the file. */
#include "model/config/config_check.h"
#include "model/config/config_keys.h"
#include "model/config/precision_switch.h"
#include "model/core/precision.h"
#include "model/io/config_file.h"
#include "test/model/config/config_fixture.h"

#include <sys/stat.h>

Test(config, defaults_are_valid_and_complete) {
    struct fixture fixture;
    struct config defaults, loaded;
    fixture_open(&fixture);
    config_defaults(&defaults);
    load_well(&fixture, &loaded, "{}", NULL);
    cr_assert_str_eq(loaded.name, "run", "a config without a name is called after its file");
    strcpy(defaults.name, "run");
    char *expected = dump(&defaults), *found = dump(&loaded);
    cr_assert_str_eq(found, expected);
    cr_assert_eq(loaded.loss_scale.init_scale, 65536);
    cr_assert_eq(loaded.loss_scale.min_scale, 0x1p-14);
    cr_assert_eq(loaded.precision, CONFIG_PRECISION_AUTO);
    cr_assert(loaded.autocast.enabled);
    cr_assert_str_eq(loaded.data.val, "tales");
    free(expected);
    free(found);
    fixture_close(&fixture);
}

Test(config, table_is_sound) {
    int last_block = -1;
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];

        int block = config_option_block(option);
        cr_assert_eq(config_option_index(option->key, strlen(option->key)), i, "%s twice",
                     option->key);
        cr_assert(block == last_block || block == last_block + 1, "%s: blocks out of order",
                  option->key);
        cr_assert_eq(block < 0, strchr(option->key, '.') == NULL, "%s: no such block", option->key);
        if (option->type == CONFIG_INTEGER || option->type == CONFIG_NUMBER) {
            cr_assert_geq(option->initial, option->minimum, "%s", option->key);
            cr_assert_leq(option->initial, option->maximum, "%s", option->key);
        }
        last_block = block;
    }
    cr_assert_eq(last_block, config_block_count - 1);
}

Test(config, reads_every_type) {
    struct fixture fixture;
    struct config c;
    fixture_open(&fixture);
    load_well(&fixture, &c,
              "{\"name\": \"caf\\u00e9 \\\"x\\\"\", \"precision\": \"fp16\", \"seed\": 1e3,\n"
              " \"$schema\": \"./schema.json\", \"threads\": 2,\n"
              " \"optimizer\": {\"lr\": 2.5E-4, \"schedule\": \"wsd\"},\n"
              " \"autocast\": {\"enabled\": false, \"float32\": [\"lm_head\", \"gelu\"]},\n"
              " \"sample\": {\"prompt\": \"a\\tb\\n\"}, \"log\": {\"metrics\": false}}\r\n",
              NULL);
    cr_assert_str_eq(c.name, "caf\xc3\xa9 \"x\"");
    cr_assert_eq(c.precision, CONFIG_PRECISION_FP16);
    cr_assert_eq(c.seed, 1000);
    cr_assert_eq(c.threads, 2);
    cr_assert_eq(c.optimizer.lr, 2.5e-4);
    cr_assert_eq(c.optimizer.schedule, CONFIG_SCHEDULE_WSD);
    cr_assert(!c.autocast.enabled);
    cr_assert_eq(c.autocast.float32.count, 2);
    cr_assert_str_eq(c.autocast.float32.items[0], "lm_head");
    cr_assert_str_eq(c.autocast.float32.items[1], "gelu");
    cr_assert_str_eq(c.sample.prompt, "a\tb\n");
    cr_assert(!c.log.metrics);
    cr_assert(config_given(&c, "optimizer.lr") && config_given(&c, "autocast"));
    cr_assert(!config_given(&c, "optimizer.beta1") && !config_given(&c, "loss_scale"));
    fixture_close(&fixture);
}

/* A flag, and the line "key": value that it must give in the dump. */
Test(config, flags) {
    static const struct {
        const char *flag, *line;
    } cases[] = {
        {"optimizer.lr=3e-4", "\"lr\": 0.0003,"},
        {"train.steps=1e2", "\"steps\": 100,"},
        {"precision=bf16", "\"precision\": \"bf16\","},
        {"precision=\"bf16\"", "\"precision\": \"bf16\","},
        {"seed=1", "\"autotune\": \"auto\","},
        {"autotune=on", "\"autotune\": \"on\","},
        {"autotune=\"off\"", "\"autotune\": \"off\","},
        {"autotune=true", "\"autotune\": \"on\","},
        {"autotune=false", "\"autotune\": \"off\","},
        {"name=123", "\"name\": \"123\","},
        {"name=true", "\"name\": \"true\","},
        {"name=\"quoted\"", "\"name\": \"quoted\","},
        {"sample.prompt=a = b, c", "\"prompt\": \"a = b, c\","},
        {"sample.prompt=\"Hi\" he said", "\"prompt\": \"\\\"Hi\\\" he said\","},
        {"log.metrics=false", "\"metrics\": false"},
        {"autocast.float32=gelu,qkv", "\"float32\": [\"gelu\", \"qkv\"],"},
        {"autocast.float32=[\"gelu\", \"qkv\"]", "\"float32\": [\"gelu\", \"qkv\"],"},
        {"autocast.float32=\"gelu\"", "\"float32\": [\"gelu\"],"},
        {"adapter.targets=\"all-linear\"", "\"targets\": [\"all-linear\"],"},
        {"autocast.float32=gelu", "\"float32\": [\"gelu\"],"},
        {"autocast.float32=", "\"float32\": [],"},
        {"model.init_from=", "\"init_from\": \"\""},
        {"seed=9007199254740991", "\"seed\": 9007199254740991,"},
    };
    struct fixture fixture;
    fixture_open(&fixture);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config config;
        load_well(&fixture, &config, "{}", cases[i].flag);
        char *text = dump(&config);
        cr_assert_not_null(strstr(text, cases[i].line), "%s gave\n%s", cases[i].flag, text);
        free(text);
    }
    fixture_close(&fixture);
}

Test(config, last_flag_wins) {
    struct fixture fixture;
    struct config config;
    struct error error = {0};
    char *flags[] = {"train.steps=5", "seed=2", "train.steps=7"};
    fixture_open(&fixture);
    write_bytes(fixture.path, "{\"train\": {\"steps\": 3}}", 23);
    cr_assert_eq(config_load(&config, fixture.path, flags, 3, &error), 0, "%s", error.text);
    cr_assert_eq(config.train.steps, 7);
    cr_assert_eq(config.seed, 2);
    fixture_close(&fixture);
}

/* The config.json of a run of an earlier version has all keys of that time. */
Test(config, removed_keys_that_changed_nothing_are_accepted) {
    struct fixture fixture;
    struct config config;
    fixture_open(&fixture);
    load_well(&fixture, &config,
              "{\"log\": {\"csv\": false, \"tensorboard\": false}, \"precision_switch\": "
              "{\"forward_only\": false}, \"fp8\": {\"sums\": \"exact\"}}",
              NULL);
    fixture_close(&fixture);
}

Test(config, presets_and_precedence) {
    static const struct {
        const char *text, *flag;
        int64_t n_layer, n_head, n_embd, n_positions, vocab_size;
    } cases[] = {
        {"{}", NULL, 4, 4, 256, 256, 256},
        {"{}", "model.preset=gpt2", 12, 12, 768, 1024, 50257},
        {"{}", "model.preset=gpt2-medium", 24, 16, 1024, 1024, 50257},
        {"{}", "model.preset=gpt2-large", 36, 20, 1280, 1024, 50257},
        {"{\"model\": {\"preset\": \"gpt2-xl\"}}", NULL, 48, 25, 1600, 1024, 50257},
        /* explicit sizes beside a preset win, in the file and as flags */
        {"{\"model\": {\"n_layer\": 2, \"preset\": \"gpt2\"}}", NULL, 2, 12, 768, 1024, 50257},
        {"{\"model\": {\"preset\": \"gpt2\"}}", "model.vocab_size=300", 12, 12, 768, 1024, 300},
        /* a preset as a flag beats the file's sizes */
        {"{\"model\": {\"n_layer\": 2}}", "model.preset=gpt2", 12, 12, 768, 1024, 50257},
        {"{\"model\": {\"preset\": \"gpt2\"}}", "model.preset=", 4, 4, 256, 256, 256},
        /* the vocabulary of the tokenizer */
        {"{\"data\": {\"tokenizer\": \"gpt2\", \"train\": \"x*\"}}", NULL, 4, 4, 256, 256, 50257},
    };
    struct fixture fixture;
    fixture_open(&fixture);
    for (size_t i = 0; i < COUNT(cases); i++) {
        struct config c;
        load_well(&fixture, &c, cases[i].text, cases[i].flag);
        cr_assert_eq(c.model.n_layer, cases[i].n_layer, "case %zu", i);
        cr_assert_eq(c.model.n_head, cases[i].n_head, "case %zu", i);
        cr_assert_eq(c.model.n_embd, cases[i].n_embd, "case %zu", i);
        cr_assert_eq(c.model.n_positions, cases[i].n_positions, "case %zu", i);
        cr_assert_eq(c.model.vocab_size, cases[i].vocab_size, "case %zu", i);
    }
    fixture_close(&fixture);
}

Test(config, parameter_count_of_gpt2) {
    struct fixture fixture;
    struct config config;
    fixture_open(&fixture);
    load_well(&fixture, &config, "{}", "model.preset=gpt2");
    cr_assert_eq(config_parameter_count(&config), 124439808); /* as Hugging Face counts it */
    load_well(&fixture, &config, "{}", "model.preset=gpt2-xl");
    cr_assert_eq(config_parameter_count(&config), 1557611200);
    fixture_close(&fixture);
}

Test(config, computed_defaults) {
    struct fixture fixture;
    struct config c;
    fixture_open(&fixture);
    load_well(&fixture, &c, "{\"data\": {\"train\": \"x_*.bin\"}}", NULL);
    cr_assert_str_eq(c.data.val, "", "tales does not validate another text unasked");
    cr_assert_eq(c.eval.every, 0);
    load_well(&fixture, &c, "{\"data\": {\"train\": \"x_*.bin\", \"val\": \"y_*.bin\"}}", NULL);
    cr_assert_str_eq(c.data.val, "y_*.bin");
    cr_assert_eq(c.eval.every, 100);
    fixture_close(&fixture);
}

Test(config, dependent_values_are_adapted_with_a_note) {
    struct fixture fixture;
    struct config c;
    struct notes notes;
    fixture_open(&fixture);
    const char *text = "{\"optimizer\": {\"warmup_steps\": 50}, \"data\": {\"train\": \"x\"}, "
                       "\"eval\": {\"every\": 5}}";
    load_well(&fixture, &c, text, "train.steps=20");
    cr_expect_eq(c.optimizer.warmup_steps, 20);
    cr_expect_eq(c.eval.every, 0);
    config_resolve_notes(&c, notes_open(&notes));
    cr_expect_eq(notes_close(&notes), 2, "%s", notes.text);
    cr_expect_not_null(strstr(notes.text, "optimizer.warmup_steps is 20"), "%s", notes.text);
    cr_expect_not_null(strstr(notes.text, "data.val"), "%s", notes.text);
    load_well(&fixture, &c, text, "train.steps=50");
    cr_expect_eq(c.optimizer.warmup_steps, 50);
    config_resolve_notes(&c, notes_open(&notes));
    cr_expect_eq(notes_close(&notes), 1, "%s", notes.text);
    load_well(&fixture, &c, text, "train.steps=48");
    cr_expect_eq(c.optimizer.warmup_steps, 24);
    text = "{\"optimizer\": {\"warmup_steps\": 80, \"schedule\": \"wsd\"}}";
    load_well(&fixture, &c, text, "train.steps=100");
    cr_expect_eq(c.optimizer.warmup_steps, 80, "with the decay as long as the run");
    load_well(&fixture, &c, text, "train.steps=98");
    cr_expect_eq(c.optimizer.warmup_steps, 49);
    load_well(&fixture, &c, text, "train.steps=20");
    cr_expect_eq(c.optimizer.warmup_steps, 16, "beside a decay of 4 steps");
    fixture_close(&fixture);
}

Test(config, epochs_become_steps) {
    struct fixture fixture;
    struct config c;
    struct error error = {0};
    struct notes notes;
    fixture_open(&fixture);
    const char *text = "{\"train\": {\"steps\": 9, \"epochs\": 1.5, \"micro_batch_size\": 4}, "
                       "\"optimizer\": {\"warmup_steps\": 30}}";
    load_well(&fixture, &c, text, NULL);
    cr_expect_eq(config_resolve_epochs(&c, 81, 0, 0, &error), 0, "%s", error.text);
    cr_expect_eq(c.train.steps, 31); /* 1.5 * 81 / 4 = 30.4 */
    c.train.epochs = 0.5;
    cr_expect_eq(config_resolve_epochs(&c, 81, 0, 0, &error), 0, "%s", error.text);
    cr_expect_eq(c.train.steps, 11);
    cr_expect_eq(c.optimizer.warmup_steps, 11);
    config_resolve_notes(&c, notes_open(&notes));
    cr_expect_eq(notes_close(&notes), 1, "%s", notes.text);
    c.train.epochs = 1e-9;
    cr_expect_eq(config_resolve_epochs(&c, 81, 0, 0, &error), 0, "%s", error.text);
    cr_expect_eq(c.train.steps, 1);
    c.train.epochs = 1.5;
    cr_expect_eq(config_resolve_epochs(&c, 81, 10, 20, &error), 0, "%s", error.text);
    cr_expect_eq(c.train.steps, 36, "10 steps of two samples, then 102 samples");
    cr_expect_eq(config_resolve_epochs(&c, 81, 40, 160, &error), 0, "%s", error.text);
    cr_expect_eq(c.train.steps, 40, "all samples were taken");
    c.train.epochs = 1e6;
    cr_expect_eq(config_resolve_epochs(&c, UINT64_C(1) << 40, 0, 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "train.epochs"), "%s", error.text);
    /* A flag beats the file, whichever of the two it gives. */
    load_well(&fixture, &c, text, "train.steps=100");
    cr_expect_eq(c.train.epochs, 0);
    load_well(&fixture, &c, "{\"train\": {\"steps\": 9}}", "train.epochs=2");
    cr_expect_eq(c.train.epochs, 2);
    load_well(&fixture, &c, text, "optimizer.warmup_steps=20");
    c.train.epochs = 0.5;
    cr_expect_eq(config_resolve_epochs(&c, 81, 0, 0, &error), -1, "asked for by --set");
    cr_expect_not_null(strstr(error.text, "warmup"), "%s", error.text);
    fixture_close(&fixture);
}

static void expect_warning(const struct fixture *fixture, const char *text, const char *word) {
    struct config config;
    struct notes notes;
    load_well(fixture, &config, text, NULL);
    config_warnings(&config, notes_open(&notes));
    const int count = notes_close(&notes);
    cr_assert_eq(count, word != NULL, "%s: %s", text, notes.text);
    if (word) cr_assert_not_null(strstr(notes.text, word), "%s", notes.text);
}

/* 7 % of 100 are 7, and 55 % are 55, although the products of doubles are larger. */
Test(config, parts_of_counts_are_exact) {
    for (int percent = 1; percent < 100; percent++) {
        struct config c;
        struct error error = {0};
        config_defaults(&c);
        strcpy(c.name, "c");
        c.train.steps = 100;
        c.precision_switch.at = percent / 100.0;
        cr_expect_eq(precision_switch_step(&c), percent);
        c.train.epochs = percent / 100.0;
        c.train.micro_batch_size = c.train.grad_accum_steps = c.rank_count = 1;
        c.optimizer.warmup_steps = 0;
        cr_expect_eq(config_resolve_epochs(&c, 100, 0, 0, &error), 0, "%s", error.text);
        cr_expect_eq(c.train.steps, percent);
        cr_expect_eq(precision_blocks(percent / 100.0, 100), percent);
        c.train.steps = 100;
        c.train.epochs = 0;
        c.optimizer.schedule = CONFIG_SCHEDULE_WSD;
        c.optimizer.decay_fraction = percent / 100.0;
        c.optimizer.warmup_steps = 100 - percent;
        cr_expect_eq(config_check(&c, &(struct config_origins){.path = "c"}, &error), 0, "%s",
                     error.text);
    }
}

/* The length of a model that is not known yet is the largest number. */
Test(config, batch_tokens_of_sequences_of_any_length) {
    struct config c;
    struct error error = {0};
    config_defaults(&c);
    strcpy(c.name, "c");
    c.data.seq_len = INT64_MAX;
    c.train.batch_tokens = 1 << 20;
    config_resolve(&c);
    cr_expect_eq(c.train.grad_accum_steps, 1);
    c.data.seq_len = 256;
    c.train.micro_batch_size = 3;
    config_resolve(&c);
    cr_expect_eq(c.train.grad_accum_steps, (1 << 20) / 768);
    c.train.micro_batch_size = c.data.seq_len = 1;
    config_resolve(&c);
    cr_expect_eq(config_check(&c, &(struct config_origins){.path = "c"}, &error), -1);
    cr_expect_not_null(strstr(error.text, "train.grad_accum_steps is 1048576, but must be"), "%s",
                       error.text);
}

Test(config, warnings) {
    struct fixture fixture;
    fixture_open(&fixture);
    expect_warning(&fixture, "{\"precision\": \"bf16\"}", NULL);
    expect_warning(&fixture, "{\"data\": {\"train\": \"x\", \"val\": \"tales\"}}", "another text");
    fixture_close(&fixture);
}

/* Writes a config.json of Hugging Face into the fixture's folder. */
static void write_model(const char *folder, char path[200], const char *text) {
    snprintf(path, 200, "%s/config.json", folder);
    write_bytes(path, text, strlen(text));
}

static const char small_model[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 6, \"n_embd\": 72, "
    "\"n_positions\": 300, \"vocab_size\": 1003}";

Test(config, sizes_come_from_the_model_to_begin_with) {
    struct fixture fixture;
    struct config config;
    char model[200], tokenizer[200], text[400];
    fixture_open(&fixture);
    write_model(fixture.folder, model, small_model);
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", fixture.folder);
    snprintf(text, sizeof text,
             "{\"model\": {\"init_from\": \"%s\"}, \"data\": {\"train\": \"x\"}}", fixture.folder);
    load_well(&fixture, &config, text, NULL);
    cr_expect_eq(config.model.n_layer, 3);
    cr_expect_eq(config.model.n_head, 6);
    cr_expect_eq(config.model.n_embd, 72);
    cr_expect_eq(config.model.n_positions, 300);
    cr_expect_eq(config.model.vocab_size, 1003);
    cr_expect_eq(config.data.tokenizer, TOKENIZER_BYTES);
    write_bytes(tokenizer, "{}", 2);
    load_well(&fixture, &config, text, NULL);
    cr_expect_eq(config.data.tokenizer, TOKENIZER_FILES, "they are there");
    /* Given values take precedence, and are rejected later if the weights do not agree. */
    load_well(&fixture, &config, text, "model.n_layer=2");
    cr_expect_eq(config.model.n_layer, 2);
    cr_expect_eq(config.model.n_embd, 72);
    load_well(&fixture, &config, text, "model.preset=gpt2");
    cr_expect_eq(config.model.n_embd, 768);
    load_well(&fixture, &config, text, "data.tokenizer=bytes");
    cr_expect_eq(config.data.tokenizer, TOKENIZER_BYTES);
    unlink(tokenizer);
    unlink(model);
    /* Weights may come without a config.json. */
    load_well(&fixture, &config, text, NULL);
    cr_expect_eq(config.model.n_embd, 256);
    fixture_close(&fixture);
}

Test(config, the_class_comes_from_model_and_preset) {
    struct fixture fixture;
    struct config config;
    char model[200], text[400];
    fixture_open(&fixture);
    write_model(fixture.folder, model,
                "{\"model_type\": \"mistral\", \"num_hidden_layers\": 3, \"hidden_size\": 72, "
                "\"num_attention_heads\": 6, \"num_key_value_heads\": 6, \"intermediate_size\": "
                "40, \"vocab_size\": 259, "
                "\"max_position_embeddings\": 300, \"sliding_window\": null}");
    snprintf(text, sizeof text,
             "{\"model\": {\"init_from\": \"%s\"}, \"data\": {\"train\": \"x\"}}", fixture.folder);
    load_well(&fixture, &config, text, NULL);
    cr_expect_eq(config.model.type, CONFIG_CLASS_MISTRAL);
    load_well(&fixture, &config, text, "model.type=auto");
    cr_expect_eq(config.model.type, CONFIG_CLASS_AUTO);
    load_well(&fixture, &config, text, "model.preset=llama-2-7b");
    cr_expect_eq(config.model.type, CONFIG_CLASS_AUTO);
    unlink(model);
    load_well(&fixture, &config, "{\"model\": {\"preset\": \"mistral-7b\"}}", NULL);
    cr_expect_eq(config.model.type, CONFIG_CLASS_MISTRAL);
    load_well(&fixture, &config, "{\"model\": {\"preset\": \"mistral-7b\"}}", "model.type=auto");
    cr_expect_eq(config.model.type, CONFIG_CLASS_AUTO);
    fixture_close(&fixture);
}

Test(config, other_models_are_refused) {
    struct fixture fixture;
    struct config config;
    char model[200], text[400];
    struct error error = {0};
    fixture_open(&fixture);
    write_model(fixture.folder, model, "{\"model_type\": \"bert\"}");
    snprintf(text, sizeof text, "{\"model\": {\"init_from\": \"%s\"}}", fixture.folder);
    write_bytes(fixture.path, text, strlen(text));
    cr_expect_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "bert"), "%s", error.text);
    unlink(model);
    snprintf(model, sizeof model, "%s/checkpoints", fixture.folder);
    cr_assert_eq(mkdir(model, 0755), 0);
    cr_expect_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "has no complete checkpoint yet"), "%s", error.text);
    rmdir(model);
    snprintf(text, sizeof text, "{\"model\": {\"init_from\": \"%s/none\"}}", fixture.folder);
    write_bytes(fixture.path, text, strlen(text));
    cr_expect_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "/none"), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "fetch it: scripts/get_model.sh ORG/NAME /"), "%s",
                       error.text);
    write_bytes(fixture.path, "{\"model\": {\"init_from\": \"Qwen/Qwen2.5-0.5B\"}}", 45);
    cr_expect_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_expect_not_null(strstr(error.text, "scripts/get_model.sh Qwen/Qwen2.5-0.5B, which puts it "
                                          "into datasets/Qwen2.5-0.5B"),
                       "%s", error.text);
    write_bytes(fixture.path, text, strlen(text));
    /* A run that has all sizes no longer needs the folder. */
    char *all[] = {"model.n_layer=2"};
    cr_expect_eq(config_load(&config, fixture.path, all, 1, &error), 0, "%s", error.text);
    fixture_close(&fixture);
}

Test(config, dimension_notes) {
    struct fixture fixture;
    struct config config;
    struct notes notes;
    fixture_open(&fixture);
    load_well(&fixture, &config, "{}", NULL);
    config_dimension_notes(&config, notes_open(&notes));
    cr_assert_eq(notes_close(&notes), 0, "%s", notes.text);
    load_well(&fixture, &config, "{\"model\": {\"n_embd\": 96, \"n_head\": 8}}",
              "data.seq_len=250");
    config_dimension_notes(&config, notes_open(&notes));
    cr_assert_eq(notes_close(&notes), 2, "%s", notes.text);
    cr_assert(strstr(notes.text, "head size, model.n_embd / model.n_head, is 12,"), "%s",
              notes.text);
    cr_assert(strstr(notes.text, "data.seq_len is 250") && !strstr(notes.text, "n_embd is"), "%s",
              notes.text);
    load_well(&fixture, &config, "{\"model\": {\"head_dim\": 12}}", NULL);
    config_dimension_notes(&config, notes_open(&notes));
    cr_assert_eq(notes_close(&notes), 1, "%s", notes.text);
    cr_expect(strncmp(notes.text, "note: model.head_dim is 12,", 27) == 0, "%s", notes.text);
    fixture_close(&fixture);
}

Test(config, find_searches_this_directory_and_configs) {
    struct fixture fixture;
    char path[4096], small[8];
    struct error error = {0};
    fixture_open(&fixture);
    write_bytes(fixture.path, "{}", 2);
    cr_assert_eq(config_find(path, sizeof path, "a/b", &error), -1, "configs/a/b is not tried");
    cr_assert(strstr(error.text, "\ntried a/b, a/b.json") && !strstr(error.text, "configs/a"), "%s",
              error.text);
    cr_assert_eq(config_find(path, sizeof path, "a/b.json", &error), -1);
    cr_assert(strstr(error.text, "\ntried a/b.json") && !strstr(error.text, ".json.json"), "%s",
              error.text);

    cr_assert_eq(chdir(fixture.folder), 0);
    cr_assert_eq(mkdir("configs", 0700), 0);
    write_bytes("configs/other.json", "{}", 2);
    write_bytes("configs/run.json", "{}", 2);
    cr_assert_eq(config_find(path, sizeof path, "run.json", &error), 0);
    cr_assert_str_eq(path, "run.json", "the current folder comes first");
    cr_assert_eq(config_find(path, sizeof path, "other.json", &error), 0, "%s", error.text);
    cr_assert_str_eq(path, "configs/other.json");
    cr_assert_eq(config_find(path, sizeof path, "other", &error), 0, "%s", error.text);
    cr_assert_str_eq(path, "configs/other.json", "the ending may be left out");
    cr_assert_eq(config_find(path, sizeof path, "run", &error), 0, "%s", error.text);
    cr_assert_str_eq(path, "run.json");
    cr_assert_eq(config_find(path, sizeof path, "configs/run", &error), 0, "%s", error.text);
    cr_assert_str_eq(path, "configs/run.json");
    write_bytes("run", "{}", 2);
    cr_assert_eq(config_find(path, sizeof path, "run", &error), 0, "%s", error.text);
    cr_assert_str_eq(path, "run", "a file of the very name comes first");
    unlink("run");

    cr_assert_eq(config_find(path, sizeof path, "othr", &error), -1);
    cr_assert(strstr(error.text, "mean \"other.json\"?\ntried othr, othr.json, /") &&
                  strstr(error.text, ", configs/othr, configs/othr.json"),
              "%s", error.text);
    cr_assert_eq(config_find(path, sizeof path, "othr.json", &error), -1);
    cr_assert(strstr(error.text, "\"othr.json\"") && strstr(error.text, "mean \"other.json\"?"),
              "%s", error.text);
    static const char *const others[] = {"nope.json", "nope", "x.json"};
    write_bytes("configs/nvfp4.json", "{}", 2);
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(config_find(path, sizeof path, others[i], &error), -1);
        cr_expect_null(strstr(error.text, "mean"), "%s", error.text);
    }
    cr_assert_eq(config_find(path, sizeof path, "nvfp.json", &error), -1);
    cr_expect_not_null(strstr(error.text, "mean \"nvfp4.json\"?"), "%s", error.text);
    cr_assert_eq(config_find(path, sizeof path, "", &error), -1);
    cr_assert_eq(config_find(small, sizeof small, "other.json", &error), -1);
    cr_assert_eq(config_find(small, sizeof small, "run.json", &error), -1);
    unlink("configs/nvfp4.json");
    unlink("configs/other.json");
    unlink("configs/run.json");
    cr_assert_eq(rmdir("configs"), 0);
    cr_assert_eq(chdir("/"), 0);
    fixture_close(&fixture);
}
