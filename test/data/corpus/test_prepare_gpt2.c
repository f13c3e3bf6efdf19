/* Runs the program itself, with GPT-2's tokenizer on a small vocabulary: tokens, and the record
 * beside the shards. */
#include "data/util/files.h"
#include "test/data/corpus/prepare_fixture.h"

#include "data/util/random.h"
#include "data/tokenize/tokenizer.h"
#include "data/corpus/tokenizer_record.h"

static char small[FILE_PATH_MAX]; /* the folder of the vocabulary */
static struct tokenizer tokenizer;

static void set_up(void) {
    make_folder();
    cr_assert_not_null(realpath("test/golden/tokenizer/small", small));
    cr_assert_eq(tokenizer_open(&tokenizer, TOKENIZER_GPT2, small, &error), 0, "%s", error.text);
}

static void tear_down(void) {
    tokenizer_close(&tokenizer);
    remove_folder();
}

TestSuite(prepare_gpt2, .init = set_up, .fini = tear_down);

/* "--tokenizer gpt2:SMALL" and the rest. */
static const char *gpt2(const char *rest) {
    static char text[FILE_PATH_MAX + 500];
    snprintf(text, sizeof text, "--tokenizer gpt2:%s %s", small, rest);
    return text;
}

/* All tokens as text, with { for <|endoftext|>; the caller frees it with arrfree. */
static char *decoded(const char *pattern) {
    struct tokens tokens;
    char *text = NULL;
    cr_assert_eq(tokens_open(&tokens, in_folder("%s", pattern), &error), 0, "%s", error.text);
    for (size_t s = 0; s < arrlenu(tokens.shards); s++)
        for (uint64_t i = 0; i < tokens.shards[s].count; i++) {
            const int32_t token = token_at(&tokens.shards[s], i);
            size_t size;
            const uint8_t *bytes = tokenizer_bytes(&tokenizer, token, &size);
            if (token == tokenizer.end_of_text) arrput(text, '{');
            else memcpy(arraddnptr(text, size), bytes, size);
        }
    arrput(text, '\0');
    tokens_close(&tokens);
    return text;
}

static void expect_decoded(const char *pattern, const char *expected) {
    char *text = decoded(pattern);
    cr_expect_str_eq(text, expected, "%s: %s", pattern, text);
    arrfree(text);
}

/* A folder with weights is a model to fine-tune, so the next command begins with it. */
Test(prepare_gpt2, the_next_command_fine_tunes_the_model_of_the_tokenizer) {
    static const char lora[] = "next: ./train --config finetune-lora.json --set name=mine \\\n"
                               "    --set 'model.init_from=base' \\\n"
                               "    --set 'data.train=set_train_*.bin' \\\n"
                               "    --set 'data.val=set_val_*.bin' \\\n"
                               "    --set data.seq_len=1 \\\n"
                               "    --set train.grad_accum_steps=1\n";
    char command[2 * FILE_PATH_MAX + 20];
    write_text("a.txt", "One story, long enough to have a part for validation.");
    snprintf(command, sizeof command, "cp -r '%s' '%s'", small, in_folder("base"));
    cr_assert_eq(system(command), 0);
    write_text("base/model.safetensors", "");
    cr_assert_eq(run("--tokenizer base --out set a.txt"), 0, "%s", error_text);
    cr_expect_null(strstr(out_text, "finetune"), "no config.json: %s", out_text);
    write_text("base/config.json", "{}");
    cr_assert_eq(run("--tokenizer base --force --out set a.txt"), 0, "%s", error_text);
    cr_expect_not_null(strstr(out_text, lora), "%s", out_text);
    cr_assert_eq(run("--tokenizer base --val-fraction 0 --out all a.txt"), 0, "%s", error_text);
    cr_expect_not_null(
        strstr(out_text,
               "--set data.val= --set eval.every=0 \\\n    --set checkpoint.keep_best=false \\\n"
               "    --set data.seq_len=16 \\\n    --set train.micro_batch_size=1 \\\n"
               "    --set train.grad_accum_steps=1\n"),
        "%s", out_text);
}

/* The sequences of the next command are not longer than the positions of the model. */
Test(prepare_gpt2, the_next_command_fits_the_positions_of_the_model) {
    static const struct {
        const char *config, *setting; /* NULL: none, as of finetune-lora.json */
        int tokens;                   /* one for each byte 1 */
    } cases[] = {
        {"{\"max_position_embeddings\": 48}",
         "--set data.seq_len=48 \\\n    --set train.grad_accum_steps=3\n", 2000},
        {"{\"max_position_embeddings\": 48, \"n_positions\": 20}", "--set data.seq_len=48 ", 2000},
        {"{\"n_positions\": 20}", "--set data.seq_len=20 ", 2000},
        {"{\"n_ctx\": 20}", "--set data.seq_len=20 ", 40},
        {"{\"n_positions\": 20}", "--set data.seq_len=8 ", 10},
        {"{\"n_positions\": 1024}", NULL, 2000},
        {"{\"n_positions\": null}", NULL, 2000},
    };
    char command[2 * FILE_PATH_MAX + 20];
    snprintf(command, sizeof command, "cp -r '%s' '%s'", small, in_folder("base"));
    cr_assert_eq(system(command), 0);
    write_text("base/model.safetensors", "");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FILE *file = fopen(in_folder("a.txt"), "w");
        for (int token = 0; token < cases[i].tokens; token++) fputc(1, file);
        cr_assert_eq(fclose(file), 0);
        write_text("base/config.json", cases[i].config);
        cr_assert_eq(run("--tokenizer base --val-fraction 0 --force --out set a.txt"), 0, "%s",
                     error_text);
        const char *setting = cases[i].setting ? cases[i].setting
                                               : "checkpoint.keep_best=false \\\n"
                                                 "    --set train.micro_batch_size=1 ";
        cr_expect_not_null(strstr(out_text, setting), "%s\n%s", cases[i].config, out_text);
    }
    unlink(in_folder("base/model.safetensors")); /* the next command makes a model of its own */
    write_text("base/config.json", "{\"n_positions\": 20}");
    cr_assert_eq(run("--tokenizer base --val-fraction 0 --force --out set a.txt"), 0);
    cr_expect_null(strstr(out_text, "data.seq_len"), "%s", out_text);
}

/* A folder needs no prefix, even one called gpt2. */
Test(prepare_gpt2, plain_directories_are_tokenizers) {
    char next[200];
    write_text("a.txt", "One story, long enough to have a part for validation.");
    cr_assert_eq(symlink(small, in_folder("gpt2")), 0);
    cr_assert_eq(run(gpt2("--out a a.txt")), 0, "%s", error_text);
    cr_assert_eq(run("--tokenizer gpt2 --out b a.txt"), 0, "%s", error_text);
    char *a = decoded("a_train_*.bin"), *b = decoded("b_train_*.bin");
    cr_expect_str_eq(a, b);
    arrfree(a);
    arrfree(b);
    snprintf(next, sizeof next, " --set data.tokenizer=gpt2 --set model.vocab_size=%d \\\n",
             tokenizer.vocab_size);
    cr_expect_not_null(strstr(out_text, next), "%s", out_text);
}

/* In rows, its name is the token itself. */
Test(prepare_gpt2, the_special_token_precedes_each_document) {
    write_text("a.txt", "\xef\xbb\xbfOne story.\n<|endoftext|>\nAnother.<|endoftext|>");
    write_text("b.jsonl", "{\"text\":\"A row <|endoftext|> here\"}\n{\"text\":\"\"}\n"
                          "{\"text\":\"\\u00e9\\u0000\"}\n");
    write_text("c.txt", "Last");
    cr_assert_eq(run(gpt2("--val-fraction 0 --out set a.txt b.jsonl c.txt")), 0, "%s", error_text);
    struct tokens tokens;
    cr_assert_eq(tokens_open(&tokens, in_folder("set_train_*"), &error), 0);
    cr_assert_eq(token_at(&tokens.shards[0], 0), tokenizer.end_of_text);
    size_t special = 0, zeros = 0;
    for (uint64_t i = 0; i < tokens.count; i++) {
        size_t size;
        const int32_t token = token_at(&tokens.shards[0], i);
        const uint8_t *bytes = tokenizer_bytes(&tokenizer, token, &size);
        special += token == tokenizer.end_of_text;
        zeros += size == 1 && bytes[0] == 0;
    }
    cr_assert_eq(special, 6, "%zu", special);
    cr_assert_eq(zeros, 1);
    tokens_close(&tokens);
    char *text = decoded("set_train_*");
    const char expected[] = "{One story.\n{\nAnother.{A row { here{\xc3\xa9\0{Last";
    cr_assert(arrlenu(text) == sizeof expected && memcmp(text, expected, sizeof expected) == 0);
    arrfree(text);
    cr_assert_not_null(strstr(out_text, "5 documents"), "%s", out_text);
    cr_assert_not_null(strstr(out_text, "vocabulary 1200"), "%s", out_text);
}

Test(prepare_gpt2, validation_gets_whole_documents_or_whole_words) {
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (int i = 0; i < 20; i++) fprintf(file, "{\"text\":\"row number %02d\"}\n", i);
    fclose(file);
    cr_assert_eq(run(gpt2("--val-fraction 0.1 --out set a.jsonl")), 0, "%s", error_text);
    expect_decoded("set_val_*", "{row number 18{row number 19");
    write_text("a.txt", "Words are not torn apart, only documents.");
    cr_assert_eq(run(gpt2("--val-fraction 0.2 --force --out set a.txt")), 0, "%s", error_text);
    expect_decoded("set_train_*", "{Words are not torn apart, only");
    expect_decoded("set_val_*", " documents.");
}

/* A document of `size` bytes, words and white space, with the tokens it should have. */
static char *long_document(size_t size) {
    char *text = malloc(size);
    for (size_t at = 0, i = 0; at < size; i++) {
        const uint64_t bits = random_bits(9, 0, i);
        size_t length = 1 + bits % 9;
        for (; length > 0 && at < size; length--) text[at++] = (char)('a' + (bits >> length) % 26);
        if (at < size) text[at++] = bits % 50 == 0 ? '\n' : ' ';
        if (bits % 70 == 0 && at < size) text[at++] = ' ';
    }
    return text;
}

static void expect_same_shards(const char *a, const char *b, const char *what) {
    char *left, *right;
    size_t left_size, right_size;
    const size_t limit = 1 << 28;
    cr_assert_eq(file_read_all(&left, &left_size, in_folder("%s", a), limit, &error), 0, "%s",
                 error.text);
    cr_assert_eq(file_read_all(&right, &right_size, in_folder("%s", b), limit, &error), 0);
    cr_assert(left_size == right_size && memcmp(left, right, left_size) == 0, "%s", what);
    free(left);
    free(right);
}

/* Feeds text to a process through a pipe, in pieces of odd sizes. */
static pid_t feed(const char *text, size_t size, int *end) {
    int ends[2];
    cr_assert_eq(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        for (size_t at = 0, i = 0; at < size; i++) {
            size_t part = 1 + random_bits(4, 0, i) % 150001;
            if (part > size - at) part = size - at;
            const ssize_t written = write(ends[1], text + at, part);
            if (written < 0) _exit(1);
            at += (size_t)written;
        }
        _exit(0);
    }
    close(ends[1]);
    *end = ends[0];
    return child;
}

/* Shards do not depend on files, pipes or the number of threads. If all text is for training, the
 * tokens are those of the whole text. */
Test(prepare_gpt2, a_text_of_several_blocks_is_one_text) {
    const size_t size = 20 << 20;
    char *text = long_document(size);
    int end, status;
    write_bytes("a.txt", text, size);
    setenv("OMP_NUM_THREADS", "1", 1);
    cr_assert_eq(run(gpt2("--out one a.txt")), 0, "%s", error_text);
    setenv("OMP_NUM_THREADS", "4", 1);
    const pid_t feeder = feed(text, size, &end);
    const pid_t child = start(gpt2("--out four -"), end, RLIM_INFINITY);
    close(end);
    cr_assert_eq(finish(child), 0, "%s", error_text);
    cr_assert_eq(waitpid(feeder, &status, 0), feeder);
    expect_same_shards("one_train_000000.bin", "four_train_000000.bin", "training");
    expect_same_shards("one_val_000000.bin", "four_val_000000.bin", "validation");

    cr_assert_eq(run(gpt2("--val-fraction 0 --out all a.txt")), 0, "%s", error_text);
    struct tokenizer_encoder *encoder = tokenizer_encoder_open(&tokenizer);
    int32_t *expected = NULL;
    arrput(expected, tokenizer.end_of_text);
    tokenizer_encode(encoder, &expected, text, size, false, &error);
    struct tokens tokens;
    cr_assert_eq(tokens_open(&tokens, in_folder("all_train_*"), &error), 0, "%s", error.text);
    cr_assert_eq(tokens.count, arrlenu(expected));
    for (uint64_t i = 0; i < tokens.count; i++)
        cr_assert_eq(token_at(&tokens.shards[0], i), expected[i]);
    tokens_close(&tokens);
    tokenizer_encoder_close(encoder);
    arrfree(expected);
    free(text);
}

/* Rows of all lengths: four threads and one put the same tokens in the same order. */
Test(prepare_gpt2, threads_do_not_change_the_order_of_rows) {
    const size_t size = 4 << 20;
    char *text = long_document(size);
    FILE *file = fopen(in_folder("a.jsonl"), "w");
    for (size_t at = 0, i = 0; at < size; i++) {
        size_t part = random_bits(6, 0, i) % (i % 40 == 0 ? 400000 : 300);
        if (part > size - at) part = size - at;
        fputs("{\"text\":\"", file);
        for (size_t j = at; j < at + part; j++)
            if (text[j] == '\n') fputs("\\n", file);
            else fputc(text[j], file);
        fputs("\"}\n", file);
        at += part;
    }
    fclose(file);
    free(text);
    setenv("OMP_NUM_THREADS", "1", 1);
    cr_assert_eq(run(gpt2("--out one a.jsonl")), 0, "%s", error_text);
    setenv("OMP_NUM_THREADS", "4", 1);
    cr_assert_eq(run(gpt2("--out four a.jsonl")), 0, "%s", error_text);
    expect_same_shards("one_train_000000.bin", "four_train_000000.bin", "training");
    expect_same_shards("one_val_000000.bin", "four_val_000000.bin", "validation");
}

static int read_record(struct tokenizer_record *record) {
    return tokenizer_record_of_shard(record, in_folder("set_train_000000.bin"), &error);
}

Test(prepare_gpt2, the_record_belongs_to_the_shards) {
    struct tokenizer_record record;
    write_text("a.txt", "some text");
    write_text("empty.txt", "");
    cr_assert_eq(run(gpt2("--out set a.txt")), 0, "%s", error_text);
    cr_assert_eq(read_record(&record), 0, "%s", error.text);
    cr_assert_eq(tokenizer_record_check(&record, &tokenizer, &error), 0, "%s", error.text);
    cr_assert_str_eq(record.directory, small);
    cr_assert_eq(run("--tokenizer bytes --force --out set empty.txt"), 1);
    cr_assert_eq(read_record(&record), 0);
    cr_assert_eq(record.kind, TOKENIZER_GPT2, "a failure leaves the old one");
    cr_assert_eq(run("--tokenizer bytes --force --out set a.txt"), 0, "%s", error_text);
    cr_assert_eq(read_record(&record), 0);
    cr_assert_eq(record.kind, TOKENIZER_BYTES);
    cr_assert_not(exists("set_tokenizer.json.part"));
}

Test(prepare_gpt2, a_vocabulary_needs_the_special_token) {
    char path[FILE_PATH_MAX + 20], *text;
    size_t size;
    const char *names[] = {"vocab.json", "merges.txt"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", small, names[i]);
        cr_assert_eq(file_read_all(&text, &size, path, 1 << 20, &error), 0, "%s", error.text);
        char *special = strstr(text, ", \"<|endoftext|>\": 1199");
        cr_assert((special != NULL) == (i == 0));
        if (special) memset(special, ' ', strlen(", \"<|endoftext|>\": 1199"));
        write_text(names[i], text);
        free(text);
    }
    write_text("a.txt", "some text");
    cr_assert_eq(run("--tokenizer gpt2:. --out set a.txt"), 1);
    cr_assert_not_null(strstr(error_text, "without <|endoftext|>"), "%s", error_text);
}

/* A folder with the name of a shard makes the renaming fail half-way. */
Test(prepare_gpt2, half_published_shards_have_no_record) {
    write_text("a.txt", "some text");
    cr_assert_eq(run(gpt2("--out set a.txt")), 0, "%s", error_text);
    mkdir(in_folder("set_val_000001.bin"), 0755);
    cr_assert_eq(run("--tokenizer bytes --force --out set a.txt"), 1);
    cr_assert_not_null(strstr(error_text, "set_val_000001.bin"), "%s", error_text);
    cr_assert_not(exists("set_tokenizer.json"));
    cr_assert_not(exists("set_tokenizer.json.part"));
}

Test(prepare_gpt2, leftovers_of_kill_9_are_removed) {
    int ends[2], status;
    const size_t size = (16 << 20) + 1000;
    char *text = long_document(size);
    cr_assert_eq(pipe(ends), 0);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    const pid_t child = start(gpt2("--out set --shard-tokens 900000 -"), ends[0], RLIM_INFINITY);
    close(ends[0]);
    for (size_t done = 0; done < size;) done += (size_t)write(ends[1], text + done, size - done);
    free(text);
    for (int i = 0; i < 15000 && !exists("set_train_000003.bin.part"); i++) usleep(2000);
    cr_assert(exists("set_train_000003.bin.part"));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    close(ends[1]);
    cr_assert_not(exists("set_train_000000.bin"));
    cr_assert_not(exists("set_tokenizer.json"));
    write_text("a.txt", "some text");
    write_text("set_tokenizer.json.part", "half");
    cr_assert_eq(run("--tokenizer bytes --val-fraction 0 --out set a.txt"), 0, "%s", error_text);
    expect_tokens("set_*.bin", "some text");
    cr_assert_not(exists("set_train_000003.bin.part"));
    cr_assert_not(exists("set_tokenizer.json.part"));
}

/* Uses more text than memory. */
Test(prepare_gpt2, memory_does_not_grow_with_the_text) {
#ifdef __SANITIZE_ADDRESS__
    cr_skip("sanitizers need memory of their own");
#endif
    enum { MIB = 80 };
    static char text[1 << 20];
    int ends[2];
    for (size_t i = 0; i < sizeof text; i++) text[i] = "The cat sat on the mat. "[i % 24];
    setenv("OMP_NUM_THREADS", "2", 1);
    cr_assert_eq(pipe(ends), 0);
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    const pid_t child = start(gpt2("--out set -"), ends[0], RLIM_INFINITY);
    close(ends[0]);
    for (int i = 0; i < MIB; i++)
        for (size_t done = 0; done < sizeof text;)
            done += (size_t)write(ends[1], text + done, sizeof text - done);
    close(ends[1]);
    cr_assert_eq(finish(child), 0, "%s", error_text);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    cr_assert_lt(usage.ru_maxrss, 64 << 10, "%ld KiB", usage.ru_maxrss);
}
