/* Files of a teacher's logits: records are read as written, all else is refused. */
#include <unistd.h>

#include "data/corpus/loader.h"
#include "test/data/corpus/tokens_fixture.h"
#include "test/data/corpus/teacher_fixture.h"

TestSuite(teacher_logits, .init = make_folder, .fini = remove_folder);

enum { COUNT = 43, TOP = 3, VOCABULARY = 500, LENGTH = 8 };

/* The record of token i: its tokens tell i, and so do its logits. */
static void fill(int32_t *tokens, uint16_t *logits, int vocabulary) {
    for (int i = 0; i < COUNT - 1; i++) {
        const int32_t row[TOP] = {i, 100 + 2 * i, vocabulary - 1};
        for (int k = 0; k < TOP; k++) tokens[i * TOP + k] = row[k];
        logits[i * TOP] = (uint16_t)(0xbc00 + i); /* below -1 */
        logits[i * TOP + 1] = 0;
        logits[i * TOP + 2] = i % 2 ? 0xfc00 : 0x8000; /* -inf, -0 */
    }
}

static void write_file(const struct tokens *set, int vocabulary, bool isolated) {
    int32_t tokens[COUNT * TOP];
    uint16_t logits[COUNT * TOP];
    fill(tokens, logits, vocabulary);
    write_teacher(&set->shards[0], TOP, vocabulary, LENGTH, isolated, tokens, logits);
}

/* Whole sequences, and the tail that is filled up, in a shuffled order; ids of both widths. */
static void check_samples(int vocabulary) {
    struct tokens set;
    struct teacher_logits teacher;
    struct loader loader;
    int32_t expected[COUNT * TOP];
    uint16_t expected_logits[COUNT * TOP];
    write_good("part.bin", 7, COUNT);
    set = opened("part.bin");
    write_file(&set, vocabulary, false);
    fill(expected, expected_logits, vocabulary);
    SUCCEEDS(teacher_open(&teacher, folder, &set, vocabulary, LENGTH, false, &error));
    cr_assert_eq(teacher.header.top, TOP);
    const struct loader_options options = {
        .seq_len = LENGTH, .seed = 3, .shuffle = true, .vocab_size = vocabulary};
    SUCCEEDS(loader_open(&loader, &set, &options, &error));
    loader.teacher = &teacher;
    cr_assert_eq(loader.sequence_count, 6);
    for (uint64_t sample = 0; sample < 2 * 6; sample++) {
        int32_t tokens[LENGTH], targets[LENGTH], top[LENGTH * TOP];
        uint16_t logits[LENGTH * TOP];
        struct loader_arrays arrays = {
            .tokens = tokens, .targets = targets, .teacher_tokens = top, .teacher_logits = logits};
        SUCCEEDS(loader_batch(&loader, &arrays, sample, 1, &error));
        const int first = tokens[0] - 7, left = COUNT - 1 - first;
        const size_t rows = (size_t)(left < LENGTH ? left : LENGTH);
        cr_expect_arr_eq(top, expected + first * TOP, rows * TOP * sizeof *top);
        cr_expect_arr_eq(logits, expected_logits + first * TOP, rows * TOP * sizeof *logits);
    }
    loader_close(&loader);
    teacher_close(&teacher);
    tokens_close(&set);
}

Test(teacher_logits, samples_have_the_records_of_their_tokens) {
    check_samples(VOCABULARY);
    check_samples(VOCABULARY_16_BITS);
    check_samples(VOCABULARY_16_BITS + 1);
}

/* More records than are read at once. */
Test(teacher_logits, long_reads) {
    enum { LONG = 3000, MANY = 40 };
    struct teacher_logits teacher;
    int32_t *tokens = malloc(LONG * MANY * sizeof *tokens),
            *got = malloc(LONG * MANY * sizeof *got);
    uint16_t *logits = calloc(LONG * MANY, sizeof *logits), *logits_got = malloc(LONG * MANY * 2);
    write_good("part.bin", 1, LONG + 1);
    struct tokens set = opened("part.bin");
    for (int i = 0; i < LONG * MANY; i++) tokens[i] = i % MANY * 100 + i / MANY % 100;
    write_teacher(&set.shards[0], MANY, 4000, 16, false, tokens, logits);
    SUCCEEDS(teacher_open(&teacher, folder, &set, 4000, 16, false, &error));
    SUCCEEDS(teacher_read(&teacher, 0, 0, LONG, got, logits_got, &error));
    cr_expect_arr_eq(got, tokens, LONG * MANY * sizeof *got);
    SUCCEEDS(teacher_read(&teacher, 0, 1, LONG - 1, got, logits_got, &error));
    cr_expect_arr_eq(got, tokens + MANY, (LONG - 1) * MANY * sizeof *got);
    teacher_close(&teacher);
    tokens_close(&set);
    free(tokens), free(got), free(logits), free(logits_got);
}

static void expect_refused(const struct tokens *set, int vocabulary, int length, bool isolated,
                           const char *part) {
    struct teacher_logits teacher;
    cr_expect_eq(teacher_open(&teacher, folder, set, vocabulary, length, isolated, &error), -1,
                 "%s", part);
    cr_expect_not_null(strstr(error.text, part), "\"%s\" is not in: %s", part, error.text);
    cr_expect_not_null(strstr(error.text, ".logits"), "%s", error.text);
    cr_expect_eq(arrlen(teacher.files), 0);
}

Test(teacher_logits, other_data_are_refused) {
    write_good("part.bin", 7, COUNT);
    struct tokens set = opened("part.bin");
    expect_refused(&set, VOCABULARY, LENGTH, false, "there is no");
    write_file(&set, VOCABULARY, false);
    expect_refused(&set, VOCABULARY + 1, LENGTH, false, "vocabulary of 500 tokens");
    expect_refused(&set, VOCABULARY, LENGTH + 1, false, "data.seq_len is 9");
    expect_refused(&set, VOCABULARY, LENGTH, true, "data.isolate false");
    tokens_close(&set);
    write_good("part.bin", 8, COUNT);
    set = opened("part.bin");
    expect_refused(&set, VOCABULARY, LENGTH, false, "other tokens");
    tokens_close(&set);
    write_good("part.bin", 7, COUNT + 1);
    set = opened("part.bin");
    expect_refused(&set, VOCABULARY, LENGTH, false, "other tokens");
    tokens_close(&set);
}

/* With isolation the logits depend on where documents begin, and without it they do not. */
Test(teacher_logits, documents_that_begin_elsewhere_are_refused) {
    uint8_t starts[COUNT / 8 + 1] = {1};
    struct teacher_logits teacher;
    write_good("part.bin", 7, COUNT);
    struct tokens set = opened("part.bin");
    set.shards[0].mask.starts = starts;
    write_file(&set, VOCABULARY, true);
    SUCCEEDS(teacher_open(&teacher, folder, &set, VOCABULARY, LENGTH, true, &error));
    teacher_close(&teacher);
    starts[1] = 4;
    expect_refused(&set, VOCABULARY, LENGTH, true, "other tokens");
    write_file(&set, VOCABULARY, false);
    starts[1] = 0;
    SUCCEEDS(teacher_open(&teacher, folder, &set, VOCABULARY, LENGTH, false, &error));
    teacher_close(&teacher);
    set.shards[0].mask.starts = NULL;
    tokens_close(&set);
}

Test(teacher_logits, shards_with_different_tops_are_refused) {
    int32_t tokens[COUNT * TOP];
    uint16_t logits[COUNT * TOP];
    fill(tokens, logits, VOCABULARY);
    write_good("a.bin", 7, COUNT);
    write_good("b.bin", 7, COUNT);
    struct tokens set = opened("?.bin");
    write_teacher(&set.shards[0], TOP, VOCABULARY, LENGTH, false, tokens, logits);
    write_teacher(&set.shards[1], TOP - 1, VOCABULARY, LENGTH, false, tokens, logits);
    expect_refused(&set, VOCABULARY, LENGTH, false, "b.logits: it has 2 logits");
    tokens_close(&set);
}

/* Overwrites bytes of the file. */
static void patch(long at, const void *bytes, size_t size) {
    FILE *file = fopen(in_folder("part.logits"), "r+");
    cr_assert(fseek(file, at, SEEK_SET) == 0 && fwrite(bytes, size, 1, file) == 1);
    cr_assert_eq(fclose(file), 0);
}

Test(teacher_logits, damaged_files_are_refused) {
    static const struct {
        long at;
        uint32_t value;
        const char *part;
    } headers[] = {{0, 0, "not the logits"},         {4, 2, "not the logits"},
                   {8, 0, "damaged: 0 logits"},      {8, 1025, "damaged: 1025 logits"},
                   {8, 501, "damaged: 501"},         {8, 4, "truncated or damaged"},
                   {24, 43, "truncated or damaged"}, {28, 1, "truncated or damaged"},
                   {32, 0, "other tokens"}};
    write_good("part.bin", 7, COUNT);
    struct tokens set = opened("part.bin");
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        write_file(&set, VOCABULARY, false);
        patch(headers[i].at, &headers[i].value, sizeof headers[i].value);
        expect_refused(&set, VOCABULARY, LENGTH, false, headers[i].part);
    }
    static const off_t sizes[] = {0, 100, 256, 256 + 12 * 42 - 1, 256 + 12 * 42 + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        write_file(&set, VOCABULARY, false);
        cr_assert_eq(truncate(in_folder("part.logits"), sizes[i]), 0);
        expect_refused(&set, VOCABULARY, LENGTH, false, "truncated");
    }
    tokens_close(&set);
}

/* Records of 12 bytes, three ids and three logits, behind the header. */
Test(teacher_logits, damaged_records_are_refused) {
    static const struct {
        int at; /* byte of record 5 */
        uint16_t value;
    } damages[] = {
        {0, 110},    /* equal tokens */
        {2, 4},      /* falling tokens */
        {4, 500},    /* beyond the vocabulary */
        {6, 0x3c00}, /* a positive logit */
        {6, 0xfe00}, /* NaN */
        {8, 0xbc00}, /* no largest one */
    };
    struct teacher_logits teacher;
    int32_t tokens[COUNT * TOP];
    uint16_t logits[COUNT * TOP];
    write_good("part.bin", 7, COUNT);
    struct tokens set = opened("part.bin");
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        write_file(&set, VOCABULARY, false);
        patch(TEACHER_HEADER_BYTES + 5 * 12 + damages[i].at, &damages[i].value, 2);
        SUCCEEDS(teacher_open(&teacher, folder, &set, VOCABULARY, LENGTH, false, &error));
        SUCCEEDS(teacher_read(&teacher, 0, 0, 5, tokens, logits, &error));
        SUCCEEDS(teacher_read(&teacher, 0, 6, COUNT - 1 - 6, tokens, logits, &error));
        cr_expect_eq(teacher_read(&teacher, 0, 3, 8, tokens, logits, &error), -1, "case %zu", i);
        cr_expect_not_null(strstr(error.text, "damaged at token 5"), "%s", error.text);
        teacher_close(&teacher);
    }
    tokens_close(&set);
}
