/* Masks of shards round-trip, and damage is refused by name. */
#include "data/corpus/token_mask.h"
#include "test/data/corpus/tokens_fixture.h"

#include <sys/stat.h>
#include <unistd.h>

TestSuite(token_mask, .init = make_folder, .fini = remove_folder);

enum { TOKENS = 21 };

/* 0b10101 ..: tokens 0, 2, 4 ... count. */
static const uint8_t every_second[3] = {0x55, 0x55, 0x15};

/* Writes a mask of any form, without the code under test. */
static void write_mask(const char *name, const char *magic, uint32_t version, uint64_t tokens,
                       const uint8_t *bits, size_t bytes) {
    uint8_t file[64];
    memcpy(file, magic, 4);
    memcpy(file + 4, &version, sizeof version);
    memcpy(file + 8, &tokens, sizeof tokens);
    memcpy(file + 16, bits, bytes);
    write_plain(name, file, 16 + bytes);
}

Test(token_mask, belongs_to_the_shard_of_its_name) {
    write_good("a_000000.bin", 1, TOKENS);
    write_mask("a_000000.mask", "MASK", 1, TOKENS, every_second, 3);
    write_good("a_000001.bin", 1, 5);
    struct tokens tokens = opened("a_*");
    cr_assert_eq(arrlen(tokens.shards), 2, "masks are no shards");
    cr_expect_eq(tokens.count, TOKENS + 5);
    cr_expect_eq(tokens.counted, 11 + 5);
    for (uint64_t i = 0; i < TOKENS; i++)
        cr_expect_eq(token_mask_in_loss(&tokens.shards[0].mask, i), i % 2 == 0, "token %d", (int)i);
    cr_expect_null(tokens.shards[1].mask.bits);
    cr_expect(token_mask_in_loss(&tokens.shards[1].mask, 4));
    tokens_close(&tokens);
}

/* Version 2 has a byte of starts after each byte of bits. */
Test(token_mask, marks_the_first_tokens_of_documents) {
    write_good("a_000000.bin", 1, TOKENS);
    write_mask("a_000000.mask", "MASK", 1, TOKENS, every_second, 3);
    struct tokens tokens = opened("a_*");
    cr_expect_not(token_mask_has_starts(&tokens.shards[0].mask));
    cr_expect_not(token_mask_begins(&tokens.shards[0].mask, 0));
    tokens_close(&tokens);
    const uint8_t bits[6] = {0x55, 0x81, 0x55, 0x00, 0x15, 0x12};
    write_mask("a_000000.mask", "MASK", 2, TOKENS, bits, 6);
    tokens = opened("a_*");
    const struct token_mask *mask = &tokens.shards[0].mask;
    cr_assert(token_mask_has_starts(mask));
    cr_expect_eq(tokens.counted, 11);
    for (uint64_t i = 0; i < TOKENS; i++) {
        cr_expect_eq(token_mask_in_loss(mask, i), i % 2 == 0, "token %d", (int)i);
        cr_expect_eq(token_mask_begins(mask, i), i == 0 || i == 7 || i == 17 || i == 20, "token %d",
                     (int)i);
    }
    tokens_close(&tokens);
}

Test(token_mask, counts_any_range) {
    const struct token_mask mask = {.bits = every_second}, all = {0};
    for (uint64_t first = 0; first <= TOKENS; first++)
        for (uint64_t count = 0; count <= TOKENS - first; count++) {
            uint64_t expected = 0;
            for (uint64_t i = first; i < first + count; i++) expected += i % 2 == 0;
            cr_expect_eq(token_mask_counted(&mask, first, count), expected);
            cr_expect_eq(token_mask_counted(&all, first, count), count);
        }
}

Test(token_mask, raw_shards_have_masks_and_other_names_have_none) {
    const uint16_t raw[TOKENS] = {1, 2, 3};
    write_plain("train.bin", raw, sizeof raw);
    write_mask("train.mask", "MASK", 1, TOKENS, every_second, 3);
    struct tokens tokens = opened("train.bin");
    cr_expect_eq(tokens.counted, 11);
    tokens_close(&tokens);
    write_good("other.shard", 1, 5);
    write_mask("other.mask", "MASK", 1, TOKENS, every_second, 3);
    tokens = opened("other.shard");
    cr_expect_eq(tokens.counted, 5);
    tokens_close(&tokens);
}

static void expect_mask_refused(const char *what) {
    struct tokens tokens;
    cr_expect_eq(open_in_folder(&tokens, "a_*"), -1, "%s", what);
    cr_expect_not_null(strstr(error.text, "a_000000.mask: "), "%s", error.text);
    cr_expect_not_null(strstr(error.text, what), "%s", error.text);
    tokens_close(&tokens);
}

Test(token_mask, damage_is_refused_by_name) {
    static const struct {
        const char *magic;
        uint32_t version;
        uint64_t tokens;
        uint8_t bits[6];
        size_t bytes;
        const char *what;
    } cases[] = {
        {"MASQ", 1, TOKENS, {0x55, 0x55, 0x15}, 3, "does not begin with MASK"},
        {"MASK", 4, TOKENS, {0x55, 0x55, 0x15}, 3, "version 4; only versions 1 to 3"},
        {"MASK", 0, TOKENS, {0x55, 0x55, 0x15}, 3, "version 0; only versions 1 to 3"},
        {"MASK", 2, TOKENS, {0x55, 0x55, 0x15}, 3, "22 bytes, the file has 19"},
        {"MASK", 2, TOKENS, {1, 2, 3, 4, 0x15, 0x20}, 6, "bits behind the last token"},
        {"MASK", 2, TOKENS, {1, 2, 3, 4, 0x35, 0}, 6, "bits behind the last token"},
        {"MASK",
         1,
         TOKENS + 1,
         {0x55, 0x55, 0x15},
         3,
         "the mask of 22 tokens, but the shard beside it has 21"},
        {"MASK", 1, TOKENS, {0x55, 0x55}, 2, "19 bytes, the file has 18"},
        {"MASK", 1, TOKENS, {0x55, 0x55, 0x15}, 4, "19 bytes, the file has 20"},
        {"MASK", 1, TOKENS, {0x55, 0x55, 0x35}, 3, "bits behind the last token"},
    };
    write_good("a_000000.bin", 1, TOKENS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_mask("a_000000.mask", cases[i].magic, cases[i].version, cases[i].tokens,
                   cases[i].bits, cases[i].bytes);
        expect_mask_refused(cases[i].what);
    }
    write_plain("a_000000.mask", "MASK\1\0\0\0\25", 9);
    expect_mask_refused("does not begin with MASK");
    write_plain("a_000000.mask", "", 0);
    expect_mask_refused("empty");
    cr_assert_eq(unlink(in_folder("a_000000.mask")), 0);
    cr_assert_eq(mkfifo(in_folder("a_000000.mask"), 0600), 0);
    expect_mask_refused("not a regular file");
}

/* Planes of a mask of two pairs, whose documents begin with tokens 0, 3, 8 and 17. */
enum { BITS, STARTS, REJECTED, LABELS, PLANES };
static const uint8_t pairs[PLANES * 3] = {
    0x44, 0x09, 0x08, 0x08, /* tokens 0 to 7 */
    0x80, 0x01, 0x00, 0x01, /* to 15 */
    0x18, 0x02, 0x02, 0x02, /* to 20 */
};

Test(token_mask, marks_pairs) {
    write_good("a_000000.bin", 1, TOKENS);
    write_mask("a_000000.mask", "MASK", 3, TOKENS, pairs, sizeof pairs);
    struct tokens tokens = opened("a_*");
    const struct token_mask *mask = &tokens.shards[0].mask;
    cr_assert(token_mask_has_starts(mask) && token_mask_has_pairs(mask));
    cr_expect_eq(tokens.counted, 5);
    for (uint64_t i = 0; i < TOKENS; i++) {
        cr_expect_eq(token_mask_in_loss(mask, i), i == 2 || i == 6 || i == 15 || i == 19 || i == 20,
                     "token %d", (int)i);
        cr_expect_eq(token_mask_begins(mask, i), i == 0 || i == 3 || i == 8 || i == 17, "token %d",
                     (int)i);
        cr_expect_eq(token_mask_is_rejected(mask, i), i == 3 || i == 17, "token %d", (int)i);
        cr_expect_eq(token_mask_has_label(mask, i), i == 3 || i == 8 || i == 17, "token %d",
                     (int)i);
    }
    tokens_close(&tokens);
}

Test(token_mask, documents_that_are_no_pairs_are_refused) {
    static const struct {
        size_t group, plane;
        uint8_t bits;
        const char *what;
    } cases[] = {
        {0, STARTS, 0x08, "token 0 is not of a pair"},   /* nothing begins the first document */
        {0, REJECTED, 0x09, "token 0 is not of a pair"}, /* a rejected one comes first */
        {0, REJECTED, 0x00, "token 3 is not of a pair"}, /* a second chosen one */
        {0, REJECTED, 0x0c, "token 2 is not of a pair"}, /* rejected where nothing begins */
        {1, LABELS, 0x03, "token 9 is not of a pair"},   /* a label where nothing begins */
        {1, REJECTED, 0x01, "token 8 is not of a pair"}, /* a second rejected one */
        {2, LABELS, 0x22, "bits behind the last token"},
        {2, REJECTED, 0x22, "bits behind the last token"},
        {2, BITS, 0x38, "bits behind the last token"},
    };
    write_good("a_000000.bin", 1, TOKENS);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t planes[sizeof pairs];
        memcpy(planes, pairs, sizeof pairs);
        planes[cases[i].group * PLANES + cases[i].plane] = cases[i].bits;
        write_mask("a_000000.mask", "MASK", 3, TOKENS, planes, sizeof planes);
        expect_mask_refused(cases[i].what);
    }
    write_mask("a_000000.mask", "MASK", 3, TOKENS, pairs, sizeof pairs - PLANES);
    expect_mask_refused("28 bytes, the file has 24");
    uint8_t planes[sizeof pairs];
    memcpy(planes, pairs, sizeof pairs);
    planes[2 * PLANES + STARTS] = planes[2 * PLANES + REJECTED] = planes[2 * PLANES + LABELS] = 0;
    write_mask("a_000000.mask", "MASK", 3, TOKENS, planes, sizeof planes);
    expect_mask_refused("the last pair has one document");
}

Test(token_mask, a_set_needs_shards_and_tokens_that_count) {
    const uint8_t zeros[3] = {0};
    struct tokens tokens;
    write_mask("b_000000.mask", "MASK", 1, TOKENS, every_second, 3);
    cr_expect_eq(open_in_folder(&tokens, "b_*"), -1);
    cr_expect_not_null(strstr(error.text, "only masks"), "%s", error.text);
    write_good("c_000000.bin", 1, TOKENS);
    write_mask("c_000000.mask", "MASK", 1, TOKENS, zeros, 3);
    cr_expect_eq(open_in_folder(&tokens, "c_*.bin"), -1);
    cr_expect_not_null(strstr(error.text, "no token counts"), "%s", error.text);
}

/* Token i counts unless i is in 3 .. 6 of each 11, and begins a document if it is 5 or 9 of 13. */
static void make_marks(uint8_t *marks, int count) {
    for (int i = 0; i < count; i++)
        marks[i] = (i % 11 >= 3 && i % 11 <= 6 ? 0 : TOKEN_COUNTS) |
                   (i % 13 == 5 || i % 13 == 9 ? TOKEN_BEGINS : 0);
}

/* Writes tokens with their marks in parts, and finishes. */
static void put_marks(struct shard_writer *writer, int count, int part) {
    uint16_t tokens[200];
    uint8_t marks[200];
    make_marks(marks, count);
    for (int i = 0; i < count; i++) tokens[i] = (uint16_t)i;
    for (int at = 0, size; at < count; at += size) {
        size = count - at < part ? count - at : part;
        const int status =
            shard_writer_put_packed(writer, tokens + at, marks + at, (uint64_t)size, &error);
        cr_assert_eq(status, 0, "%s", error.text);
    }
    cr_assert_eq(shard_writer_finish(writer, &error), 0, "%s", error.text);
}

Test(token_mask, masks_of_all_sizes_round_trip) {
    const int cases[][3] = {{1000, 150, 1}, {1000, 150, 200}, {7, 150, 4},  {1, 30, 3},
                            {64, 128, 64},  {33, 150, 33},    {40, 150, 7}, {8, 16, 5}};
    uint8_t marks[200];
    make_marks(marks, 200);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct shard_writer writer;
        open_writer(&writer, "set", 256, (uint64_t)cases[c][0]);
        put_marks(&writer, cases[c][1], cases[c][2]);
        cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
        struct tokens tokens = opened("set_*.bin");
        int position = 0;
        for (int s = 0; s < (int)arrlen(tokens.shards); s++) {
            bool any = false;
            const struct token_shard *shard = &tokens.shards[s];
            for (uint64_t i = 0; i < shard->count; i++, position++) {
                const uint8_t mark = marks[position];
                cr_expect_eq(token_mask_in_loss(&shard->mask, i), mark & TOKEN_COUNTS, "case %zu",
                             c);
                cr_expect_eq(token_mask_begins(&shard->mask, i), mark / TOKEN_BEGINS, "case %zu",
                             c);
                any |= mark != TOKEN_COUNTS;
            }
            cr_expect_eq(token_mask_has_starts(&shard->mask), any, "case %zu, shard %d", c, s);
        }
        cr_expect_eq(position, cases[c][1]);
        tokens_close(&tokens);
    }
}

/* Pairs of documents of 3 and 4 tokens, every third pair labelled, and half of these undesirable.
 */
static void make_pair_marks(uint8_t *marks, int count) {
    for (int i = 0; i < count; i++) {
        const int pair = i / 7, place = i % 7;
        const uint8_t label = pair % 3 == 0 && (place == 3 || pair % 2 == 0) ? TOKEN_LABEL : 0;
        marks[i] = place == 0   ? TOKEN_BEGINS | label
                   : place == 3 ? TOKEN_BEGINS | TOKEN_REJECTED | label
                                : TOKEN_COUNTS;
    }
}

static void expect_pair_marks(const struct token_mask *mask, const uint8_t *marks, int count) {
    cr_assert(token_mask_has_pairs(mask));
    for (int i = 0; i < count; i++) {
        const uint64_t token = (uint64_t)i;
        const int found = token_mask_in_loss(mask, token) * TOKEN_COUNTS |
                          token_mask_begins(mask, token) * TOKEN_BEGINS |
                          token_mask_is_rejected(mask, token) * TOKEN_REJECTED |
                          token_mask_has_label(mask, token) * TOKEN_LABEL;
        cr_expect_eq(found, marks[i], "token %d", i);
    }
}

/* A shard ends before the first pair that begins at or after its limit. Parts of any size give the
 * same files. */
Test(token_mask, shards_of_pairs_divide_no_pair) {
    enum { COUNT = 140 };
    static const struct {
        uint64_t limit, shard;
    } cases[] = {{1, 7}, {7, 7}, {8, 14}, {14, 14}, {20, 21}, {139, 140}, {1000, 140}};
    uint8_t marks[COUNT];
    uint16_t values[COUNT];
    make_pair_marks(marks, COUNT);
    for (int i = 0; i < COUNT; i++) values[i] = (uint16_t)i;
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int part = 1; part <= COUNT; part = 2 * part + 1) {
            struct shard_writer writer;
            open_writer(&writer, "set", 256, cases[c].limit);
            writer.has_pairs = true;
            for (int at = 0; at < COUNT; at += part) {
                const int size = COUNT - at < part ? COUNT - at : part;
                cr_assert_eq(shard_writer_put_packed(&writer, values + at, marks + at,
                                                     (uint64_t)size, &error),
                             0, "%s", error.text);
            }
            publish(&writer);
            struct tokens tokens = opened("set_*");
            cr_expect_eq(tokens.count, COUNT);
            uint64_t first = 0;
            for (ptrdiff_t s = 0; s < arrlen(tokens.shards); s++) {
                const struct token_shard *shard = &tokens.shards[s];
                const uint64_t left = COUNT - first;
                cr_expect_eq(shard->count, left < cases[c].shard ? left : cases[c].shard,
                             "limit %d, parts of %d", (int)cases[c].limit, part);
                expect_pair_marks(&shard->mask, marks + first, (int)shard->count);
                cr_expect_eq(token_at(shard, 0), (int)first);
                first += shard->count;
            }
            tokens_close(&tokens);
        }
}

/* A shard ends before the first row that begins at or after its limit. The rows of make_marks begin
 * at 5, 9, 18, 22, 31 ... */
Test(token_mask, shards_of_rows_divide_no_row) {
    static const struct {
        uint64_t limit, shards[4];
    } cases[] = {{5, {5, 13, 13, 13}},   {6, {9, 9, 13, 13}}, {9, {9, 9, 13, 13}},
                 {10, {18, 13, 13, 13}}, {31, {31, 31}},      {1000, {62}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int part = 1; part <= 62; part = 2 * part + 1) {
            struct shard_writer writer;
            open_writer(&writer, "set", 256, cases[c].limit);
            put_marks(&writer, 62, part);
            cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
            struct tokens tokens = opened("set_*.bin");
            cr_expect_eq(tokens.count, 62);
            for (ptrdiff_t s = 0; s < arrlen(tokens.shards) && s < 4; s++)
                cr_expect_eq(tokens.shards[s].count, cases[c].shards[s], "limit %d, parts of %d",
                             (int)cases[c].limit, part);
            tokens_close(&tokens);
        }
}

/* Tokens without marks count, and none of them begins a pair. */
Test(token_mask, parts_without_marks_stay_in_the_shard) {
    struct shard_writer writer;
    const uint8_t marks[] = {TOKEN_BEGINS, 1, TOKEN_BEGINS | TOKEN_REJECTED, 1};
    const uint16_t values[10] = {0};
    open_writer(&writer, "set", 256, 5);
    writer.has_pairs = true;
    for (int pair = 0; pair < 2; pair++) {
        cr_assert_eq(shard_writer_put_packed(&writer, values, marks, 4, &error), 0);
        cr_assert_eq(shard_writer_put_packed(&writer, values, NULL, 10, &error), 0);
    }
    publish(&writer);
    struct tokens tokens = opened("set_*");
    cr_assert_eq(arrlen(tokens.shards), 2);
    cr_expect_eq(tokens.shards[0].count, 14);
    cr_expect_eq(token_mask_counted(&tokens.shards[0].mask, 0, 14), 12);
    tokens_close(&tokens);
}

Test(token_mask, tokens_in_memory_have_marks) {
    enum { COUNT = 35 };
    struct tokens tokens;
    uint8_t marks[COUNT];
    make_pair_marks(marks, COUNT);
    cr_assert_eq(tokens_from_memory_marked(&tokens, calloc(COUNT, sizeof(int32_t)), marks, COUNT,
                                           "some", &error),
                 0, "%s", error.text);
    expect_pair_marks(&tokens.shards[0].mask, marks, COUNT);
    cr_expect_eq(tokens.counted, COUNT / 7 * 5);
    tokens_close(&tokens);
    cr_expect_eq(tokens_from_memory_marked(&tokens, calloc(COUNT, sizeof(int32_t)), marks,
                                           COUNT - 4, "some", &error),
                 -1);
    cr_expect_not_null(strstr(error.text, "some: damaged: the last pair has one document"));
    make_marks(marks, COUNT);
    cr_assert_eq(tokens_from_memory_marked(&tokens, calloc(COUNT, sizeof(int32_t)), marks, COUNT,
                                           "some", &error),
                 0, "%s", error.text);
    cr_expect_not(token_mask_has_pairs(&tokens.shards[0].mask));
    for (int i = 0; i < COUNT; i++)
        cr_expect_eq(token_mask_begins(&tokens.shards[0].mask, (uint64_t)i), marks[i] / 2);
    tokens_close(&tokens);
    memset(marks, TOKEN_BEGINS, COUNT);
    cr_expect_eq(tokens_from_memory_marked(&tokens, calloc(COUNT, sizeof(int32_t)), marks, COUNT,
                                           "some", &error),
                 -1);
    cr_expect_not_null(strstr(error.text, "some: no token counts"), "%s", error.text);
}

/* The first token that needs a mask comes in a later part: those before it count. */
Test(token_mask, is_opened_when_needed) {
    struct shard_writer writer;
    const int32_t many[13] = {0};
    const uint16_t two[2] = {0};
    open_writer(&writer, "set", 256, 100);
    cr_assert_eq(shard_writer_put(&writer, many, 13, &error), 0);
    cr_assert_not(exists("set_000000.mask.part.tmp"));
    cr_assert_eq(shard_writer_put_packed(&writer, two, (const uint8_t[]){1, 0}, 2, &error), 0);
    cr_assert(exists("set_000000.mask.part.tmp"));
    cr_assert_eq(shard_writer_put(&writer, many, 3, &error), 0);
    publish(&writer);
    struct tokens tokens = opened("set_*");
    cr_expect_eq(tokens.counted, 17);
    cr_expect_not(token_mask_in_loss(&tokens.shards[0].mask, 14));
    cr_expect(token_mask_has_starts(&tokens.shards[0].mask));
    tokens_close(&tokens);
    /* The header of the shard says that there is a mask; otherwise all tokens would count. */
    cr_assert_eq(unlink(in_folder("set_000000.mask")), 0);
    cr_assert_eq(open_in_folder(&tokens, "set_*"), -1);
    cr_expect_not_null(strstr(error.text, "the mask that belongs to this token shard"));
    cr_assert_eq(rename(in_folder("set_000000.bin"), in_folder("other_name")), 0);
    cr_assert_eq(open_in_folder(&tokens, "other_name"), -1);
    cr_expect_not_null(strstr(error.text, "copy the .mask file too"));
}

Test(token_mask, is_published_and_abandoned_with_its_shard) {
    struct shard_writer writer;
    open_writer(&writer, "set", 256, 50);
    put_marks(&writer, 120, 30);
    cr_expect(exists("set_000000.mask.part") && exists("set_000002.mask.part"));
    cr_expect_not(exists("set_000000.mask"));
    shard_writer_abandon(&writer);
    cr_expect_not(exists("set_000000.mask.part") || exists("set_000002.mask.part"));
    open_writer(&writer, "set", 256, 50);
    put_marks(&writer, 120, 30);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
    cr_expect(exists("set_000000.mask") && exists("set_000002.mask"));
    cr_expect_not(exists("set_000000.mask.part"));
    /* Abandoning in the middle of a shard keeps the old files. */
    const uint16_t token = 1;
    open_writer(&writer, "set", 256, 50);
    cr_assert_eq(shard_writer_put_packed(&writer, &token, (const uint8_t[]){0}, 1, &error), 0);
    cr_expect(exists("set_000000.mask.part.tmp"));
    shard_writer_abandon(&writer);
    cr_expect_not(exists("set_000000.mask.part.tmp"));
    cr_expect(exists("set_000000.mask") && exists("set_000002.mask"));
}

Test(token_mask, a_set_without_masks_removes_those_of_another) {
    struct shard_writer writer;
    const int32_t token = 1;
    open_writer(&writer, "set", 256, 50);
    put_marks(&writer, 120, 30);
    cr_assert_eq(shard_writer_publish(&writer, &error), 0, "%s", error.text);
    write_plain("set_1_000000.mask", "x", 1);
    write_plain("set_000007.mask", "x", 1);
    open_writer(&writer, "set", 256, 50);
    cr_assert_eq(shard_writer_put(&writer, &token, 1, &error), 0);
    publish(&writer);
    cr_expect_not(exists("set_000000.mask") || exists("set_000002.mask"));
    cr_expect_not(exists("set_000007.mask"));
    cr_expect(exists("set_1_000000.mask"), "the mask of another prefix");
    struct tokens tokens = opened("set_0*");
    cr_expect_eq(tokens.counted, 1);
    tokens_close(&tokens);
}

Test(token_mask, leftovers_of_a_killed_writer_are_removed) {
    struct shard_writer writer;
    write_plain("set_000003.mask.part", "x", 1);
    write_plain("set_000004.mask.part.tmp", "x", 1);
    write_plain("set_000004.mask.partly", "x", 1);
    open_writer(&writer, "set", 256, 10);
    cr_expect_not(exists("set_000003.mask.part") || exists("set_000004.mask.part.tmp"));
    cr_expect(exists("set_000004.mask.partly"));
    shard_writer_abandon(&writer);
}
