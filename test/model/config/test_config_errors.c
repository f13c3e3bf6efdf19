/* model/config: every class of user error, and its message. */
#include "test/model/config/config_fixture.h"

#include "data/util/random.h"
#include "model/config/config_keys.h"
#include "model/config/config_nearest.h"
#include "model/io/config_file.h"

#include <inttypes.h>

struct error_case {
    const char *text;     /* text of the file; NULL: {} */
    const char *flag;     /* or NULL */
    const char *words[4]; /* parts of the message, NULL-terminated */
};

static void expect_errors(const struct error_case *cases, size_t count) {
    struct fixture fixture;
    fixture_open(&fixture);
    for (size_t i = 0; i < count; i++) {
        const struct error_case *test = &cases[i];

        struct config config;
        struct error error = {0};
        const char *text = test->text ? test->text : "{}";
        cr_expect_eq(load(&fixture, &config, text, test->flag, &error), -1, "accepted: %.80s %s",
                     text, test->flag ? test->flag : "");
        for (int w = 0; w < 4 && test->words[w]; w++)
            cr_expect_not_null(strstr(error.text, test->words[w]),
                               "no \"%s\" in the message for %s %s:\n%s", test->words[w], text,
                               test->flag ? test->flag : "", error.text);
        cr_expect_not_null(strstr(error.text, test->flag ? "--set " : "run.json"),
                           "no place in: %s", error.text);
        cr_expect_neq(error.text[strlen(error.text) - 1], '\n');
    }
    fixture_close(&fixture);
}

#define ROPE(scaling, ...) \
    "{\"model\": {\"positions\": \"rope\", \"rope_scaling\": \"" scaling "\", " __VA_ARGS__ "}}"

Test(config_errors, ropes_that_cannot_be_computed) {
    static const struct error_case cases[] = {
        {ROPE("yarn", "\"rope_theta\": 1"), NULL, {"model.rope_theta above 1"}},
        {ROPE("yarn", "\"rope_beta_slow\": 40"),
         NULL,
         {"rope_beta_fast must be at least model.rope_beta_slow"}},
        {ROPE("dynamic", "\"head_dim\": 2"), NULL, {"a head size above 2"}},
        {ROPE("dynamic", "\"rope_original_positions\": 100, \"rope_factor\": 2.555"),
         NULL,
         {"model.n_positions is 256", "reaches 255 positions"}},
        {ROPE("longrope", "\"rope_factor\": 2"), NULL, {"rope_scaling", "yarn"}},
        {NULL, "model.rope_factor=0.5", {"rope_factor"}},
    };
    expect_errors(cases, sizeof cases / sizeof *cases);
}

Test(config_errors, errors_of_grammar) {
    static const struct error_case cases[] = {
        {"", NULL, {"empty", "{}"}},
        {"{", NULL, {"run.json:1:2: ", "key", "end of the text"}},
        {"{\n  \"seed\": 1,\n}", NULL, {"run.json:2:12: ", "comma before }"}},
        {"{\"autocast\": {\"float32\": [\"gelu\",]}}", NULL, {"run.json:1:33: ", "comma before ]"}},
        {"{\n \"seed\": 1\n \"threads\": 2}", NULL, {"run.json:3:2: ", "comma", "\"threads\": 2}"}},
        {"{\"seed\" 1}", NULL, {"run.json:1:9: ", "colon", "found 1}"}},
        {"{seed: 1}", NULL, {"run.json:1:2: ", "double quotes", "found seed"}},
        {"{\"seed\": 1} {}", NULL, {"run.json:1:13: ", "after the end", "found {}"}},
        {"// seed\n{}", NULL, {"run.json:1:1: ", "no comments"}},
        {"{\"seed\": }", NULL, {"run.json:1:10: ", "expected a value", "found }"}},
        {"{\"seed\": 01}", NULL, {"run.json:1:10: ", "01 is not a JSON number"}},
        {"{\"seed\": .5}", NULL, {"run.json:1:10: ", "expected a value", "found .5}"}},
        {"{\"seed\": NaN}", NULL, {"found NaN}"}},
        {"{\"name\": \"a\n\"}", NULL, {"run.json:1:10: ", "no closing quote", "\"a"}},
        {"{\"name\": \"a\tb\"}", NULL, {"run.json:1:12: ", "control character", "\\u0009"}},
        {"{\"name\": \"a\\qb\"}", NULL, {"run.json:1:12: ", "backslash"}},
        {"{\"name\": \"a\\", NULL, {"backslash"}},
        {"{\"name\": \"\\u12g4\"}", NULL, {"four hexadecimal digits"}},
        {"{\"name\": \"a\\u0000\"}", NULL, {"NUL"}},
        {"{\"name\": \"\\ud800x\"}", NULL, {"half a character"}},
        {"\xef\xbb\xbf{}", NULL, {"byte order mark"}},
        {"\xff\xfe{", NULL, {"UTF-16"}},
        {"{\n\"name\": \"\xc3(\"}", NULL, {"run.json:2:10: ", "0xc3", "UTF-8"}},
        {"{\"name\": \"\xc0\x80\"}", NULL, {"0xc0", "UTF-8"}},
        {"[[[[[[[[[[[[[[[[[[[[[[[[", NULL, {"run.json:1:17: ", "nested more than 16"}},
    };
    expect_errors(cases, COUNT(cases));
}

Test(config_errors, errors_of_keys) {
    static const struct error_case cases[] = {
        {"[]", NULL, {"run.json:1: ", "an object", "holds []"}},
        {"\n\n3", NULL, {"run.json:3: ", "an object", "holds 3"}},
        {"{\"train\": {\n\"stepz\": 1}}",
         NULL,
         {"run.json:2: ", "train.stepz", "mean train.steps?"}},
        {"{\"train\": {\"batch_size\": 1}}", NULL, {"train.batch_size", "train.micro_batch_size?"}},
        {"{\"lr\": 1}", NULL, {"run.json:1: ", "\"lr\"", "optimizer.lr?"}},
        {"{\"eval\": {\"evrey\": 1}}", NULL, {"eval.evrey", "mean eval.every?"}},
        {"{\"optimiser\": {\"lr\": 1}}", NULL, {"no block \"optimiser\"", "\"optimizer\"?"}},
        {"{\"optimizer\": {\"learning_speed\": 1}}",
         NULL,
         {"learning_speed", "has: name, lr, min_lr,"}},
        {"{\"zzz\": 1}", NULL, {"\"zzz\"", "has: name, precision", "checkpoint"}},
        {"{\"\": 1}", NULL, {"no key \"\""}},
        {"{\"model.n_layer\": 1}", NULL, {"write model.n_layer as \"n_layer\"", "\"model\""}},
        {"{\"seed\": 1,\n \"seed\": 1}",
         NULL,
         {"run.json:2:2: ", "\"seed\" appears twice", "line 1"}},
        {"{\"log\": {\"every\": 1,\n\"\\u0065very\": 1}}",
         NULL,
         {":2:1: ", "\"every\" appears twice"}},
        {"{\"model\": 4}", NULL, {"run.json:1: ", "model is 4", "block of keys"}},
        {"{\"$schema\": 1}", NULL, {"$schema"}},
        {"{\"model\": {\"$schema\": \"a\"}}", NULL, {"model.$schema"}},
        {NULL, "train.steps", {"--set train.steps: ", "KEY=VALUE"}},
        {NULL, "=3", {"--set =3: ", "KEY=VALUE"}},
        {NULL, "train.stepz=3", {"--set train.stepz=3: ", "mean train.steps?"}},
        {NULL, "steps=3", {"--set steps=3: ", "mean train.steps?"}},
        {NULL, "model={\"n_layer\": 2}", {"model is a block", "model.KEY=VALUE"}},
        {NULL, "model.=2", {"no key \"model.\"", "model has: preset"}},
        {NULL, "optimizer.learning_rate=1", {"no key", "Did you mean optimizer.lr?"}},
        {"{\"max_iters\": 1}", NULL, {"no key", "Did you mean train.steps?"}},
        {NULL, "model.attention_dropout=0.1", {"no key", "Attention has no dropout"}},
        {NULL, "model.dropout=1", {"model.dropout is 1"}},
        {NULL, "precision=bfloat16", {"Did you mean \"bf16\"?"}},
        {NULL, "precision=BF16", {"Did you mean \"bf16\"?"}},
        {NULL, "precision=Float32", {"Did you mean \"fp32\"?"}},
        {NULL, "Precision=fp32", {"Did you mean precision?"}},
        {NULL, "train.MICRO_BATCH_SIZ=1", {"Did you mean train.micro_batch_size?"}},
        {NULL, "train.BATCH_SIZE=1", {"Did you mean train.micro_batch_size?"}},
        {"{\"OPTIMIZER\": {\"lr\": 1}}", NULL, {"no block \"OPTIMIZER\"", "\"optimizer\"?"}},
        {NULL, "$schema=x", {"no key \"$schema\""}},
    };
    expect_errors(cases, COUNT(cases));
}

/* Words of Hugging Face's Trainer and models, PEFT, nanoGPT, llm.c and axolotl, as their
 * documentation spells them, and the keys that do the same here. */
Test(config_errors, words_of_other_trainers) {
    static const struct error_case cases[] = {
        {NULL, "gradient_checkpointing=1", {"Did you mean train.recompute?"}},
        {NULL, "train.gradient_accumulation=4", {"Did you mean train.grad_accum_steps?"}},
        {NULL, "max_grad_norm=1", {"Did you mean optimizer.grad_clip?"}},
        {NULL, "num_warmup_steps=1", {"Did you mean optimizer.warmup_steps?"}},
        {NULL, "save_steps=1", {"Did you mean checkpoint.every?"}},
        {NULL, "adapter.r=8", {"Did you mean adapter.rank?"}},
        {NULL, "adapter.lora_dropout=0.1", {"Did you mean adapter.dropout?"}},
        {NULL, "target_modules=q_proj", {"Did you mean adapter.targets?"}},
        {NULL, "simpo_gamma=1", {"Did you mean objective.gamma?"}},
        {NULL,
         "gamma_beta_ratio=0.5",
         {"\". objective.gamma is gamma_beta_ratio times objective.beta."}},
        {NULL, "load_in_4bit=true", {"Did you mean adapter.base?"}},
        {"{\"model\": {\"block_size\": 64}}", NULL, {"Did you mean data.seq_len?"}},
        {"{\"dtype\": \"bfloat16\"}", NULL, {"Did you mean precision?"}},
        {"{\"hidden_size\": 64}", NULL, {"Did you mean model.n_embd?"}},
        {"{\"val_loss_every\": 64}", NULL, {"Did you mean eval.every?"}},
        {"{\"train\": {\"Learning-Rate\": 1}}", NULL, {"Did you mean optimizer.lr?"}},
        {"{\"gradient_acumulation_steps\": 1}", NULL, {"Did you mean train.grad_accum_steps?"}},
        {"{\"resume_from_checkpoint\": true}", NULL, {"Did you mean the flag --resume?"}},
        {"{\"wandb_project\": \"a\"}", NULL, {"scripts/follow_run.py RUN"}},
        {"{\"log\": {\"csv\": true}}", NULL, {"\"log.csv\"", "scripts/follow_run.py RUN"}},
        {"{}", "log.csv=true", {"scripts/follow_run.py RUN"}},
    };
    expect_errors(cases, COUNT(cases));
}

/* Each word has one answer, which is a key, a flag or a sentence. */
Test(config_errors, synonyms_are_found) {
    static const struct {
        const char *answer, *words;
    } rows[] = {
#include "model/config/config_synonyms.inc"
    };
    char word[80];
    bool exact;
    for (size_t i = 0; i < COUNT(rows); i++) {
        const char *answer = rows[i].answer, *words = rows[i].words;
        cr_expect(config_option_index(answer, strlen(answer)) >= 0 ||
                      strncmp(answer, "--", 2) == 0 || answer[strlen(answer) - 1] == '.',
                  "%s", answer);
        for (int used; sscanf(words, "%79s%n", word, &used) == 1; words += used) {
            const char *found = config_suggest(word, strlen(word), -1, &exact);
            cr_expect(found && strcmp(found, answer) == 0 && exact, "%s: %s", word, answer);
            cr_expect_lt(config_option_index(word, strlen(word)), 0, "%s is a key", word);
        }
    }
}

Test(config_errors, errors_of_values) {
    static const struct error_case cases[] = {
        {"{\"train\": {\n\"steps\": 1.5}}",
         NULL,
         {"run.json:2: train.steps is 1.5", "whole number"}},
        {"{\"train\": {\"steps\": \"5\"}}", NULL, {"train.steps is \"5\"", "from 1 to 1000000000"}},
        {"{\"train\": {\"steps\": 0}}", NULL, {"train.steps is 0", "from 1 to"}},
        {"{\"train\": {\"steps\": {\"a\": 1}}}", NULL, {"train.steps is an object"}},
        {"{\"seed\": -1}", NULL, {"seed is -1", "from 0"}},
        {"{\"seed\": 9007199254740992}", NULL, {"9007199254740992", "to 9007199254740991"}},
        {"{\"seed\": 1e999}", NULL, {"seed is 1e999"}},
        {"{\"optimizer\": {\"lr\": -1e-3}}", NULL, {"optimizer.lr is -1e-3", "a number from 0"}},
        {"{\"optimizer\": {\"lr\": 1e999}}", NULL, {"optimizer.lr is 1e999"}},
        {"{\"optimizer\": {\"beta1\": 1}}", NULL, {"beta1 is 1", "from 0 to below 1"}},
        {"{\"loss_scale\": {\"growth_factor\": 1}}", NULL, {"growth_factor is 1", "1.001"}},
        {"{\"loss_scale\": {\"backoff_factor\": 0}}", NULL, {"backoff_factor is 0", "0.001"}},
        {"{\"log\": {\"metrics\": 1}}", NULL, {"log.metrics is 1", "true or false"}},
        {"{\"precision\": \"bf61\"}",
         NULL,
         {"precision is \"bf61\"", "\"fp16\"", "mean \"bf16\"?"}},
        {"{\"precision\": \"double\"}", NULL, {"\"double\"", "one of \"fp32\", \"fp16\""}},
        {"{\"checkpoint\": {\"resume\": true}}", NULL, {"resume is true", "\"never\", \"auto\""}},
        {"{\"autocast\": {\"float32\": 3}}", NULL, {"float32 is 3", "a list of"}},
        {"{}", "adapter.init_from=x", {"adapter.type is none", "Set adapter.type to \"lora\""}},
        {"{\"adapter\": {\"targets\": \"linear\"}}", NULL, {"names \"linear\"", "\"all-linear\"?"}},
        {"{\"autocast\": {\"float32\": [[\"gelu\"]]}}", NULL, {"float32 is [[\"gelu\"]]"}},
        {"{\"autocast\": {\"float32\": [\"lmhead\"]}}", NULL, {"names \"lmhead\"", "\"lm_head\"?"}},
        {"{\"autocast\": {\"float32\": [\"gelu\", \"gelu\"]}}", NULL, {"\"gelu\" twice"}},
        {"{\"name\": 1}", NULL, {"name is 1", "a string"}},
        {"{\"run_dir\": \"\"}", NULL, {"run_dir must not be empty"}},
        {NULL, "train.steps=1.5", {"--set train.steps=1.5: train.steps is 1.5", "whole"}},
        {NULL, "train.steps=", {"train.steps is empty", "whole"}},
        {NULL, "train.steps=5\n6", {"--set train.steps=5 6: train.steps is 5 6"}},
        {NULL, "optimizer.lr=inf", {"optimizer.lr is inf"}},
        {NULL, "log.metrics=yes", {"log.metrics is yes", "true or false"}},
        {NULL, "autotune=yes", {"autotune is \"yes\"", "\"off\", \"auto\", \"on\", true, false"}},
        {NULL, "precision=true", {"precision is \"true\"", "\"bf16\""}},
        {"{\"precision\": true}", NULL, {"precision is true", "\"bf16\""}},
        {NULL, "precision=fp4", {"precision is \"fp4\""}},
        {NULL, "autocast.float32=gelu,", {"names \"\""}},
        {NULL, "autocast.float32=gelu,gelu", {"\"gelu\" twice"}},
        {NULL, "sample.prompt=", {"sample.prompt must not be empty"}},
        {NULL, "sample.prompt=\xff", {"--set sample.prompt=?: ", "not UTF-8"}},
    };
    expect_errors(cases, COUNT(cases));
}

/* Heads of 16: q has 64 columns, k and v have 32. The limit is that of the targets alone. */
Test(config_errors, adapters_have_at_most_the_rank_of_their_matrices) {
    static const struct {
        const char *target;
        int rank;
        const char *layer;
    } limits[] = {{"q_proj", 64, "self_attn.q_proj"},  {"v_proj", 32, "self_attn.v_proj"},
                  {"o_proj", 64, "self_attn.o_proj"},  {"gate_proj", 100, "mlp.gate_proj"},
                  {"down_proj", 100, "mlp.down_proj"}, {"all-linear", 32, "self_attn.k_proj"}};
    struct fixture fixture;
    struct config config;
    struct error error;
    fixture_open(&fixture);
    for (size_t i = 0; i < COUNT(limits); i++) {
        char text[300], message[100], flag[40];
        snprintf(text, sizeof text,
                 "{\"model\": {\"norm\": \"rmsnorm\", \"n_head\": 4, \"n_kv_head\": 2, "
                 "\"head_dim\": 16, \"n_inner\": 100},\n\"adapter\": {\"type\": \"lora\", "
                 "\"targets\": [\"%s\"], \"rank\": %d}}",
                 limits[i].target, limits[i].rank);
        cr_expect_eq(load(&fixture, &config, text, NULL, &error), 0, "%s", error.text);
        snprintf(flag, sizeof flag, "adapter.rank=%d", limits[i].rank + 1);
        cr_expect_eq(load(&fixture, &config, text, flag, &error), -1, "accepted: %s", flag);
        snprintf(message, sizeof message, "more than %d, the smaller side of %s,", limits[i].rank,
                 limits[i].layer);
        cr_expect_not_null(strstr(error.text, message), "%s", error.text);
    }
    fixture_close(&fixture);
}

Test(config_errors, errors_between_values) {
    static const struct error_case cases[] = {
        {"{\"model\": {\"n_embd\": 250,\n\"n_head\": 4}}",
         NULL,
         {"run.json:1: ", "n_embd is 250", "n_head is 4", "multiple"}},
        {NULL, "model.n_head=3", {"--set model.n_head=3: ", "n_embd is 256", "multiple of n_head"}},
        {NULL, "model.n_embd=2048", {"head size", "512", "at most 256", "at least 8"}},
        {"{\"data\": {\"seq_len\": 257}}", NULL, {"run.json:1: ", "257", "n_positions = 256"}},
        {NULL, "model.vocab_size=255", {"vocab_size is 255", "\"bytes\"", "at least 256"}},
        {"{\"data\": {\"train\": \"x\", \"tokenizer\": \"gpt2\"}}",
         "model.vocab_size=255",
         {"--set model.vocab_size", "\"gpt2\" has a token for each byte", "at least 256"}},
        {NULL, "data.tokenizer=gpt2", {"data.train is \"tales\"", "bytes"}},
        {"{\"data\": {\"train\": \"x\", \"val\": \"tales\", \"tokenizer\": \"gpt2\"}}",
         NULL,
         {"data.val is \"tales\"", "bytes"}},
        {"{\"data\": {\"train\": \"x\"}}", "eval.every=5", {"eval.every is 5", "data.val"}},
        {NULL, "optimizer.min_lr=0.01", {"min_lr is 0.01", "lr, 0.001"}},
        {"{\"optimizer\": {\"name\": \"muon\", \"lr\": 0}}",
         "optimizer.adamw_lr=0.01",
         {"adamw_lr is 0.01", "optimizer.lr is 0"}},
        {"{\"train\": {\"steps\": 20}}",
         "optimizer.warmup_steps=50",
         {"--set optimizer.warmup_steps=50: ", "warmup_steps is 50", "train.steps, 20"}},
        {"{\"optimizer\": {\"warmup_steps\": 50}, \"train\": {\"steps\": 20}}",
         NULL,
         {"run.json:1: ", "warmup_steps is 50", "train.steps, 20"}},
        {"{\"optimizer\": {\"schedule\": \"wsd\", \"warmup_steps\": 500}}",
         NULL,
         {"run.json:1: ", "decay_fraction (0.2 of 600 steps)", "overlap"}},
        {NULL, "loss_scale.min_scale=70000", {"70000", "init_scale, 65536"}},
        {"{\"model\": {\"n_layer\": 1024, \"n_embd\": 65536, \"n_head\": 256}}",
         NULL,
         {"parameters", "5.28e+13", "1e+12", "n_layer (1024)"}},
        {NULL, "train.micro_batch_size=65537", {"from 1 to 65536"}},
        {"{\"model\": {\"n_positions\": 1048576}, \"data\": {\"seq_len\": 1048576}}",
         "train.micro_batch_size=65536",
         {"68719476736 tokens", "grad_accum_steps"}},
        {"{\"train\": {\"steps\": 9}}", "train.epochs=-1", {"train.epochs is -1"}},
        {"{\"eval\": {\"every\": 0}}",
         "train.patience=2",
         {"--set train.patience=2: ", "validation loss", "eval.every"}},
        {"{\"checkpoint\": {\"keep_best\": true}, \"data\": {\"train\": \"x\"}}",
         NULL,
         {"run.json:1: checkpoint.keep_best", "data.val"}},
        {"{\"train\": {\"minutes\": -1}}", NULL, {"train.minutes is -1", "from 0"}},
        {"{\"train\": {\"micro_batch_size\": 65536, \"grad_accum_steps\": 65536}}",
         "train.steps=1000000000",
         {"2^53", "train.steps"}},
        {NULL, "name=a/b", {"--set name=a/b: ", "\"a/b\"", "/"}},
        {NULL, "name=..", {"must not begin with a dot"}},
        {"{\"name\": \"a\\nb\"}", NULL, {"control character"}},
    };
    expect_errors(cases, COUNT(cases));
}

Test(config_errors, strings_fit_or_are_refused) {
    struct fixture fixture;
    struct config config;
    char text[700];
    struct error error = {0};
    fixture_open(&fixture);
    for (int length = 510; length <= 513; length++) {
        int used = snprintf(text, sizeof text, "{\"run_dir\": \"%0*d\"}", length, 0);
        cr_assert_lt(used, (int)sizeof text);
        int status = load(&fixture, &config, text, NULL, &error);
        cr_assert_eq(status, length < CONFIG_STRING_MAX ? 0 : -1, "%d", length);
        if (status == 0) cr_assert_eq(strlen(config.run_dir), (size_t)length);
        if (status != 0) cr_assert_not_null(strstr(error.text, "at most 511"), "%s", error.text);
    }
    char flag[300];
    snprintf(flag, sizeof flag, "name=%0201d", 0);
    cr_assert_eq(load(&fixture, &config, "{}", flag, &error), -1);
    cr_assert_not_null(strstr(error.text, "201 bytes, but must have 1 to 200"), "%s", error.text);
    fixture_close(&fixture);
}

Test(config_errors, errors_of_files) {
    struct fixture fixture;
    struct config config;
    struct error error = {0};
    fixture_open(&fixture);
    cr_assert_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_assert(strstr(error.text, "run.json") && strstr(error.text, "No such file"), "%s",
              error.text);
    cr_assert_eq(config_load(&config, fixture.folder, NULL, 0, &error), -1);
    cr_assert_not_null(strstr(error.text, "is a folder"), "%s", error.text);

    write_bytes(fixture.path, "{\"seed\": 1\0}", 12);
    cr_assert_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_assert(strstr(error.text, "run.json:1:11: ") && strstr(error.text, "NUL byte"), "%s",
              error.text);

    char *large = malloc(CONFIG_FILE_MAX + 1);
    memset(large, ' ', CONFIG_FILE_MAX + 1);
    memcpy(large, "{}", 2);
    write_bytes(fixture.path, large, CONFIG_FILE_MAX);
    cr_assert_eq(config_load(&config, fixture.path, NULL, 0, &error), 0, "%s", error.text);
    write_bytes(fixture.path, large, CONFIG_FILE_MAX + 1);
    cr_assert_eq(config_load(&config, fixture.path, NULL, 0, &error), -1);
    cr_assert_not_null(strstr(error.text, "larger than 1 MiB"), "%s", error.text);
    free(large);

    char long_path[3000];
    memset(long_path, 'x', sizeof long_path);
    strcpy(long_path + sizeof long_path - 10, "/end.json");
    cr_assert_eq(config_load(&config, long_path, NULL, 0, &error), -1);
    cr_assert_not_null(strstr(error.text, "/end.json: "), "the end of a long path is shown: %s",
                       error.text);
    fixture_close(&fixture);
}

/* Any text either loads or gives a message; `make test-sanitize` checks for memory errors. */
Test(config_errors, mangled_files_never_crash) {
    char *seeds[] = {read_whole("configs/fp16.json"), read_whole("configs/gpt2-124m.json")};
    static const char alphabet[] = "{}[]\",:\\u0019eE.+-tfn/ \n\xef\xbb\xff";
    int loaded = 0;
    for (uint64_t round = 0; round < 4000; round++) {
        const char *seed = seeds[round & 1];
        size_t length = strlen(seed);
        char *text = malloc(length + 1);
        memcpy(text, seed, length);
        uint64_t edits = random_bits(3, round, 0) % 4;
        for (uint64_t i = 0; i < edits; i++) {
            uint64_t bits = random_bits(3, round, i + 1);
            text[bits % length] = alphabet[(bits >> 32) % (sizeof alphabet)];
        }
        if (round % 5 == 0) length = random_bits(4, round, 0) % length;
        text[length] = '\0';
        struct config config;
        struct config_origins origins = {.path = "mangled"};
        struct error error = {0};
        config_defaults(&config);
        bool accepted = config_read_text(&config, &origins, text, length, &error) == 0;
        cr_assert_neq(accepted, error.text[0] != '\0', "round %" PRIu64, round);
        loaded += accepted;
        free(text);
    }
    cr_assert(loaded > 100 && loaded < 3500, "%d: the changes are too mild or too wild", loaded);
    free(seeds[0]);
    free(seeds[1]);
}
