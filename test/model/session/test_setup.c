/* Tokenizer of a run: its source, and the checks that it agrees with the data. */
#include <criterion/criterion.h>

#include <string.h>

#include "data/util/files.h"
#include "data/corpus/tokenizer_record.h"
#include "model/config/config_keys.h"
#include "model/session/sample_model.h"
#include "model/session/setup.h"
#include "test/data/corpus/shard_put.h"
#include "test/scratch.h"

TestSuite(setup, .init = make_folder, .fini = remove_folder);

static const char small[] = "test/golden/tokenizer/small"; /* vocab.json, merges.txt */

/* A text of 1000 tokens 65, with a record as written by ./prepare. */
static void write_text(const char *prefix, enum tokenizer_kind kind, const char *directory) {
    struct shard_writer writer;
    struct tokenizer tokenizer;
    int32_t tokens[1000];
    char path[FILE_PATH_MAX];
    for (int i = 0; i < 1000; i++) tokens[i] = 65;
    snprintf(path, sizeof path, "%s_train", prefix);
    SUCCEEDS(shard_writer_open(&writer, path, 256, 1000, &error));
    SUCCEEDS(shard_writer_put(&writer, tokens, 1000, &error));
    SUCCEEDS(shard_writer_finish(&writer, &error));
    SUCCEEDS(shard_writer_publish(&writer, &error));
    SUCCEEDS(tokenizer_open(&tokenizer, kind, directory, &error));
    SUCCEEDS(tokenizer_record_stage(prefix, &tokenizer, directory, &error));
    SUCCEEDS(tokenizer_record_publish(prefix, &error));
    tokenizer_close(&tokenizer);
}

static void text_config(struct config *config, enum tokenizer_kind tokenizer) {
    config_defaults(config);
    config->data.tokenizer = tokenizer;
    config->data.seq_len = 32;
    config->model.vocab_size = 5000;
}

static void open_text(struct source *source, const struct config *config, const char *prefix) {
    char pattern[FILE_PATH_MAX + 16];
    snprintf(pattern, sizeof pattern, "%s_train_*.bin", prefix);
    SUCCEEDS(source_open(source, config, pattern, SOURCE_TRAINING, &error));
}

static int setup(struct tokenizer *tokenizer, const struct config *config, const char *from,
                 const struct source *text) {
    error.text[0] = 0;
    return setup_tokenizer(tokenizer, config, from, &text, text ? 1 : 0, &error);
}

static void expect_refused(const struct config *config, const struct source *text,
                           const char *part) {
    struct tokenizer tokenizer;
    cr_expect_eq(setup(&tokenizer, config, NULL, text), -1);
    cr_expect_not_null(strstr(error.text, part), "no \"%s\" in: %s", part, error.text);
    cr_expect_eq(tokenizer.vocab_size, 0, "something is open");
}

Test(setup, bytes_need_no_files) {
    struct tokenizer tokenizer;
    struct config config;
    text_config(&config, TOKENIZER_BYTES);
    cr_assert_eq(setup(&tokenizer, &config, NULL, NULL), 0, "%s", error.text);
    cr_expect_eq(tokenizer.kind, TOKENIZER_BYTES);
    cr_expect_eq(tokenizer.vocab_size, 256);
    tokenizer_close(&tokenizer);
}

Test(setup, finds_the_files_of_gpt2) {
    struct tokenizer tokenizer;
    struct config config;
    struct source text = {0};
    char prefix[FILE_PATH_MAX];
    text_config(&config, TOKENIZER_GPT2);
    cr_expect_eq(setup(&tokenizer, &config, NULL, NULL), 1, "found without being named");
    cr_expect_not_null(strstr(error.text, "data.tokenizer_dir"), "%s", error.text);
    cr_expect_eq(setup(&tokenizer, &config, folder, NULL), 1, "the folder holds none");
    cr_expect_eq(setup(&tokenizer, &config, small, NULL), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
    strcpy(config.model.init_from, small);
    cr_expect_eq(setup(&tokenizer, &config, NULL, NULL), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
    config.model.init_from[0] = 0;
    /* The tokenizer's files in the folder that the record of the shards names. */
    snprintf(prefix, sizeof prefix, "%s/text", folder);
    write_text(prefix, TOKENIZER_GPT2, small);
    open_text(&text, &config, prefix);
    cr_expect_eq(setup(&tokenizer, &config, NULL, &text), 0, "%s", error.text);
    cr_expect_gt(tokenizer.vocab_size, 256);
    tokenizer_close(&tokenizer);
    /* A folder given by the user must contain the files. */
    strcpy(config.data.tokenizer_dir, folder);
    expect_refused(&config, &text, folder);
    source_close(&text);
}

Test(setup, texts_of_another_tokenizer_are_refused) {
    struct config bytes, gpt2;
    struct source of_bytes = {0}, of_gpt2 = {0};
    char prefix[FILE_PATH_MAX], other[FILE_PATH_MAX];
    text_config(&bytes, TOKENIZER_BYTES);
    text_config(&gpt2, TOKENIZER_GPT2);
    strcpy(gpt2.data.tokenizer_dir, small);
    snprintf(prefix, sizeof prefix, "%s/bytes", folder);
    write_text(prefix, TOKENIZER_BYTES, "");
    open_text(&of_bytes, &bytes, prefix);
    snprintf(prefix, sizeof prefix, "%s/gpt2", folder);
    write_text(prefix, TOKENIZER_GPT2, small);
    open_text(&of_gpt2, &gpt2, prefix);
    expect_refused(&bytes, &of_gpt2, "set data.tokenizer to \"gpt2\"");
    expect_refused(&gpt2, &of_bytes, "set data.tokenizer to \"bytes\"");
    /* Tokenizer of the same kind with other merges. */
    snprintf(other, sizeof other, "%s/other", folder);
    char command[4 * FILE_PATH_MAX];
    snprintf(command, sizeof command,
             "mkdir %.200s && cp %s/*.* %.200s && sed -i '$d' %.200s/merges.txt", other, small,
             other, other);
    cr_assert_eq(system(command), 0);
    strcpy(gpt2.data.tokenizer_dir, other);
    expect_refused(&gpt2, &of_gpt2, "merges.txt");
    source_close(&of_bytes);
    source_close(&of_gpt2);
}

Test(setup, a_vocabulary_beyond_the_model_is_refused) {
    struct config config;
    text_config(&config, TOKENIZER_GPT2);
    strcpy(config.data.tokenizer_dir, small);
    config.model.vocab_size = 300;
    expect_refused(&config, NULL, "model.vocab_size is 300");
}

/* data.isolate follows from the text, unless it is given. */
Test(setup, isolation_needs_marked_documents) {
    static const uint8_t starts[1000 / 8] = {1};
    struct config config, given;
    struct source text = {0};
    char prefix[FILE_PATH_MAX];
    text_config(&config, TOKENIZER_BYTES);
    given = config;
    given.sources[config_option_of("data.isolate") - config_options] = CONFIG_SOURCE_FILE;
    snprintf(prefix, sizeof prefix, "%s/text", folder);
    write_text(prefix, TOKENIZER_BYTES, "");
    SUCCEEDS(setup_documents(&config, &text, &error));
    cr_expect_not(config.data.isolate, "no text is open");
    open_text(&text, &config, prefix);
    SUCCEEDS(setup_documents(&config, &text, &error));
    cr_expect_not(config.data.isolate);
    cr_expect_eq(config.masked_share, 0);
    const double rows = (double)text.loader.sequence_count * text.loader.options.seq_len;
    text.tokens.counted = (uint64_t)(rows / 4);
    SUCCEEDS(setup_documents(&config, &text, &error));
    cr_expect_float_eq(config.masked_share, 0.75, 1 / rows);
    given.data.isolate = true;
    cr_expect_eq(setup_documents(&given, &text, &error), -1);
    cr_expect_not_null(strstr(error.text, "data.isolate is true"), "%s", error.text);
    text.tokens.shards[0].mask.starts = starts;
    SUCCEEDS(setup_documents(&config, &text, &error));
    cr_expect(config.data.isolate);
    SUCCEEDS(setup_documents(&given, &text, &error));
    given.data.isolate = false;
    SUCCEEDS(setup_documents(&given, &text, &error));
    cr_expect_not(given.data.isolate);
    source_close(&text);
}

/* Shards of other programs have no record, and are accepted. */
Test(setup, texts_without_a_record) {
    struct tokenizer tokenizer;
    struct config config;
    struct source text = {0};
    char prefix[FILE_PATH_MAX], path[FILE_PATH_MAX + 32];
    text_config(&config, TOKENIZER_GPT2);
    strcpy(config.data.tokenizer_dir, small);
    snprintf(prefix, sizeof prefix, "%s/text", folder);
    write_text(prefix, TOKENIZER_BYTES, "");
    snprintf(path, sizeof path, "%s_tokenizer.json", prefix);
    cr_assert_eq(remove(path), 0);
    open_text(&text, &config, prefix);
    cr_expect_eq(setup(&tokenizer, &config, NULL, &text), 0, "%s", error.text);
    tokenizer_close(&tokenizer);
    source_close(&text);
}

/* A model without data.seq_len, such as one of Hugging Face, samples with unscaled frequencies. */
Test(setup, dynamic_rope_samples_at_its_original_positions) {
    struct config config;
    config_defaults(&config);
    config.model.n_positions = 128;
    config.model.rope_original_positions = 32;
    config.model.rope_scaling = ROPE_DYNAMIC;
    cr_expect_eq(sample_model_context(&config), 128, "positions are learned");
    config.model.positions = POSITIONS_ROPE;
    cr_expect_eq(sample_model_context(&config), 32);
    config.model.rope_scaling = ROPE_YARN;
    cr_expect_eq(sample_model_context(&config), 128);
    config.model.rope_scaling = ROPE_DYNAMIC;
    config.data.seq_len = 100;
    config.sources[config_option_of("data.seq_len") - config_options] = CONFIG_SOURCE_FILE;
    cr_expect_eq(sample_model_context(&config), 100);
}
