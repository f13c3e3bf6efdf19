#include "data/util/json.h"
#include "data/util/files.h"
#include "model/io/safetensors.h"
#include "test/safetensors_find.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/scratch.h"

static char path[64];

static void set_up(void) {
    make_folder();
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
}

TestSuite(safetensors, .init = set_up, .fini = remove_folder);

static void put_file(const void *bytes, size_t size) {
    SUCCEEDS(file_write_whole(path, bytes, size, NULL, &error));
}

/* A file with this length field, this header, and as many bytes of data, which count up from 1. */
static void put_parts(uint64_t length, const char *header, size_t header_bytes, size_t data_bytes) {
    const size_t size = 8 + header_bytes + data_bytes;
    uint8_t *bytes = malloc(size);
    cr_assert_not_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)(length >> (8 * i));
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) bytes[8 + header_bytes + i] = (uint8_t)(i + 1);
    put_file(bytes, size);
    free(bytes);
}

static void put_header(const char *header, size_t data_bytes) {
    put_parts(strlen(header), header, strlen(header), data_bytes);
}

/* Opening must fail with a message that names the file and contains `part`. */
static void expect_refused(const char *part) {
    struct safetensors file;
    strcpy(error.text, "");
    const int result = safetensors_open(&file, path, &error);
    cr_expect_eq(result, -1, "opened, though it should say \"%s\"", part);
    cr_expect_not_null(strstr(error.text, part), "\"%s\" is not in: %s", part, error.text);
    cr_expect_not_null(strstr(error.text, path), "the file is not named: %s", error.text);
    safetensors_close(&file);
}

/* The bytes that the official Python package, release 0.8.0, writes for the same tensors. */
static const char golden[] =
    "\x98\0\0\0\0\0\0\0"
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
    "\"weight\":{\"dtype\":\"BF16\",\"shape\":[1,3],\"data_offsets\":[4,10]}}  "
    "\0\0\xc0\x3f"
    "\x80\x3f\0\xc0\x40\x40";

static const struct safetensors_entry golden_entries[] = {
    {.name = "scale", .dtype = SAFETENSORS_F32, .rank = 0},
    {.name = "weight", .dtype = SAFETENSORS_BF16, .rank = 2, .shape = {1, 3}},
};

Test(safetensors, writes_the_golden_bytes) {
    struct safetensors_writer writer;
    const float scale = 1.5f;
    const uint16_t weight[3] = {0x3f80, 0xc000, 0x4040};
    SUCCEEDS(safetensors_write_begin(&writer, path, golden_entries, 2, &error));
    SUCCEEDS(safetensors_write_data(&writer, &scale, 3, &error));
    SUCCEEDS(safetensors_write_data(&writer, (const char *)&scale + 3, 1, &error));
    SUCCEEDS(safetensors_write_data(&writer, weight, sizeof(weight), &error));
    SUCCEEDS(safetensors_write_end(&writer, &error));

    char *bytes, hex[SHA256_HEX_MAX];
    size_t size;
    SUCCEEDS(file_read_all(&bytes, &size, path, 1000, &error));
    cr_assert_eq(size, sizeof(golden) - 1);
    cr_expect_eq(memcmp(bytes, golden, size), 0);
    free(bytes);
    SUCCEEDS(sha256_file(hex, NULL, path, &error));
    cr_expect_str_eq(writer.file.hex, hex);
    cr_expect_eq(writer.file.size, size);
}

Test(safetensors, reads_the_golden_bytes) {
    put_file(golden, sizeof(golden) - 1);
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, path, &error));
    cr_expect_eq(file.count, 2);
    const struct safetensors_entry *scale = safetensors_find(&file, "scale");
    const struct safetensors_entry *weight = safetensors_find(&file, "weight");
    cr_assert_not_null(scale);
    cr_assert_not_null(weight);
    cr_expect_null(safetensors_find(&file, "weigh"));
    cr_expect_null(safetensors_find(&file, "__metadata__"));
    cr_expect_eq(scale, &file.entries[0]);
    cr_expect_eq(scale->rank, 0);
    cr_expect_eq(scale->dtype, SAFETENSORS_F32);
    cr_expect_eq(scale->bytes, 4);
    const float value = 1.5f;
    cr_expect(safetensors_holds(&file, scale, &value));
    cr_expect_eq(weight->rank, 2);
    cr_expect_eq(weight->shape[0], 1);
    cr_expect_eq(weight->shape[1], 3);
    cr_expect_eq(weight->dtype, SAFETENSORS_BF16);
    cr_expect_eq(weight->offset, 4);
    cr_expect(safetensors_holds(&file, weight, "\x80\x3f\0\xc0\x40\x40"));
    safetensors_close(&file);
    safetensors_close(&file);
}

Test(safetensors, round_trip_of_every_dtype_and_of_awkward_names) {
    static const char *const names[] = {"quote\" back\\slash", "line\nbreak\x01", "", "\xc3\xa9",
                                        "a.very.long.name/with/slashes"};
    struct safetensors_entry entries[SAFETENSORS_DTYPE_COUNT + 5];
    char generated[SAFETENSORS_DTYPE_COUNT][32];
    int count = 0;
    uint64_t total = 0, bytes = 0;
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++) {
        snprintf(generated[i], sizeof(generated[i]), "zz.%d", SAFETENSORS_DTYPE_COUNT - i);
        entries[count] = (struct safetensors_entry){generated[i], i, 3, {3, 1, 4}, 0, 0};
        cr_assert(safetensors_entry_bytes(&bytes, &entries[count++]));
        total += bytes;
    }
    for (int i = 0; i < 5; i++) {
        const uint64_t length = i == 2 ? 0 : 5;
        entries[count++] = (struct safetensors_entry){names[i], SAFETENSORS_U8, 1, {length}, 0, 0};
        total += length;
    }
    uint8_t data[4096];
    cr_assert_leq(total, sizeof(data));
    for (size_t i = 0; i < total; i++) data[i] = (uint8_t)(i * 7 + 1);
    SUCCEEDS(safetensors_put(path, entries, count, data, total, &error));

    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, path, &error));
    cr_assert_eq(file.count, count);
    cr_expect_eq(file.data_start % 8, 0);
    uint64_t offset = 0;
    for (int i = 0; i < count; i++) {
        const struct safetensors_entry *entry = safetensors_find(&file, entries[i].name);
        cr_assert_not_null(entry, "%s", entries[i].name);
        cr_expect_eq(entry->dtype, entries[i].dtype);
        cr_expect_eq(entry->rank, entries[i].rank);
        cr_expect_arr_eq(entry->shape, entries[i].shape, sizeof(entry->shape));
        cr_expect_eq(entry->offset, offset);
        cr_expect(safetensors_holds(&file, entry, data + offset));
        offset += entry->bytes;
    }
    cr_expect_eq(offset, total);
    safetensors_close(&file);
}

/* Valid files of other writers: any order, any spacing, unknown members, no padding, odd
 * alignment. */
Test(safetensors, foreign_files_open) {
    put_header("{ \"b\" :\n{\"data_offsets\":[1,9],\"dtype\":\"I64\",\"shape\":[1],\"x\":{}},"
               "\"empty\":{\"dtype\":\"F16\",\"shape\":[7,0,2],\"data_offsets\":[9,9]},"
               "\"h.0.attn.bias\":{\"dtype\":\"BOOL\",\"shape\":[1,1,1],\"data_offsets\":[0,1]},"
               "\"\\u00e9\":{\"shape\":[1],\"dtype\":\"U8\",\"data_offsets\":[9,10]}} \t\n ",
               10);
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, path, &error));
    cr_assert_eq(file.count, 4);
    cr_expect_str_eq(file.entries[0].name, "h.0.attn.bias");
    cr_expect_str_eq(file.entries[1].name, "b");
    cr_expect_str_eq(file.entries[2].name, "empty");
    cr_expect(safetensors_holds(&file, safetensors_find(&file, "\xc3\xa9"), "\n"));
    safetensors_close(&file);

    put_header("{}", 0);
    SUCCEEDS(safetensors_open(&file, path, &error));
    cr_expect_eq(file.count, 0);
    cr_expect_null(safetensors_find(&file, "a"));
    safetensors_close(&file);
}

#define U8_(name, shape, begin, end) \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

Test(safetensors, malformed_headers) {
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *part;
    } cases[] = {
        {"[]", 0, "does not begin with '{'"},
        {" {}", 0, "does not begin with '{'"},
        {"{", 0, "its header:1:"},
        {"{\"", 0, "its header:1:"},
        {"{\"a\":", 0, "its header:1:"},
        {"{\"a\":1,}", 0, "its header:1:"},
        {"{1:2}", 0, "its header:1:"},
        {"{} x", 0, "nothing after the end"},
        {"{}{}", 0, "nothing after the end"},
        {"{\"\xff\":1}", 0, "not UTF-8"},
        {"{\"\xc0\x80\":1}", 0, "not UTF-8"},
        {"{\"\xed\xa0\x80\":1}", 0, "not UTF-8"},
        {"{\"\xe2\x82", 0, "not UTF-8"},
        {"{\"\\ud800\":1}", 0, "its header:1:"},
        {"{\"a\x01\":1}", 0, "control character"},
        {"{\"a\\u0000b\":1}", 0, "NUL"},
        {"{\"a\":1}", 0, "tensor a is not described by an object"},
        {"{\"a\":[]}", 0, "tensor a is not described by an object"},
        {"{\"a\":{}}", 0, "tensor a needs one \"dtype\""},
        {"{\"a\":{\"dtype\":3}}", 0, "tensor a needs one \"dtype\""},
        {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
         "\"dtype\" appears twice"},
        {"{\"a\":{\"dtype\":\"F33\"}}", 0, "unknown dtype \"F33\""},
        {"{\"a\":{\"dtype\":\"f32\"}}", 0, "unknown dtype \"f32\""},
        {"{\"a\":{\"dtype\":\"U8\"}}", 0, "tensor a needs one \"shape\""},
        {"{" U8_("a", "1", 0, 1) "}", 1, "tensor a needs one \"shape\""},
        {"{" U8_("a", "[\"1\"]", 0, 1) "}", 1, "dimension 0"},
        {"{" U8_("a", "[1,-1]", 0, 1) "}", 1, "dimension 1"},
        {"{" U8_("a", "[1.5]", 0, 1) "}", 1, "dimension 0"},
        {"{" U8_("a", "[1e400]", 0, 1) "}", 1, "dimension 0"},
        {"{" U8_("a", "[9007199254740992]", 0, 1) "}", 1, "dimension 0"},
        {"{" U8_("a", "[null]", 0, 1) "}", 1, "dimension 0"},
        {"{" U8_("a", "[1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1, "more than 8 dimensions"},
        {"{" U8_("a", "[4294967296,4294967296]", 0, 0) "}", 0, "not representable"},
        {"{" U8_("a", "[4294967296,4294967296,0]", 0, 0) "}", 0, "not representable"},
        {"{\"a\":{\"dtype\":\"F64\",\"shape\":[4503599627370496,4096],\"data_offsets\":[0,0]}}", 0,
         "not representable"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1, "not representable"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "needs one \"data_offsets\""},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, "two whole numbers"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,1]}}", 1, "two whole"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":{\"b\":0,\"e\":1}}}", 1, "two"},
        {"{" U8_("a", "[1]", -1, 0) "}", 1, "two whole numbers"},
        {"{" U8_("a", "[1]", 0, 9007199254740993) "}", 1, "two whole numbers"},
        {"{" U8_("a", "[1]", 0, 18446744073709551617) "}", 1, "two whole numbers"},
        {"{" U8_("a", "[1]", 2, 1) "}", 2, "begins at byte 2 but ends at byte 1"},
        {"{" U8_("a", "[2]", 0, 2) "}", 1, "ends at byte 2 of the data"},
        {"{" U8_("a", "[2]", 0, 1) "}", 1, "tensor a needs 2 bytes"},
        {"{" U8_("a", "[2]", 0, 3) "}", 3, "tensor a needs 2 bytes"},
        {"{" U8_("a", "[0]", 0, 1) "}", 1, "tensor a needs 0 bytes"},
        {"{" U8_("a", "[]", 0, 0) "}", 0, "tensor a needs 1 bytes"},
        {"{" U8_("a", "[1]", 1, 2) "}", 2, "hole of 1 byte lies before tensor a"},
        {"{" U8_("a", "[1]", 0, 1) "," U8_("b", "[2]", 2, 4) "}", 4, "hole of 1 byte"},
        {"{" U8_("a", "[2]", 0, 2) "," U8_("b", "[2]", 1, 3) "}", 3, "tensor b overlaps tensor a"},
        {"{" U8_("a", "[2]", 0, 2) "," U8_("b", "[2]", 0, 2) "}", 2, "tensor b overlaps tensor a"},
        {"{" U8_("a", "[3]", 0, 3) "," U8_("b", "[0]", 1, 1) "}", 3, "tensor b overlaps tensor a"},
        {"{" U8_("a", "[1]", 0, 1) "}", 2, "1 byte after the last tensor"},
        {"{}", 8, "8 bytes after the last tensor"},
        {"{" U8_("a", "[1]", 0, 1) "," U8_("a", "[1]", 1, 2) "}", 2, "\"a\" appears twice"},
        {"{" U8_("a", "[1]", 0, 1) "," U8_("\\u0061", "[1]", 1, 2) "}", 2, "\"a\" appears twice"},
        {"{\"__metadata__\":[]}", 0, "\"__metadata__\" is not an object"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "\"k\" is not a string"},
        {"{\"__metadata__\":{\"k\":{}}}", 0, "\"k\" is not a string"},
        {"{\"__metadata__\":{\"k\":\"1\",\"j\":\"\",\"k\":\"2\"}}", 0, "\"k\" appears twice"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "\"__metadata__\" appears twice"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        put_header(cases[i].header, cases[i].data_bytes);
        expect_refused(cases[i].part);
    }
}

Test(safetensors, malformed_lengths) {
    put_file("", 0);
    expect_refused("too short");
    put_file("\2\0\0\0\0\0\0", 7);
    expect_refused("too short");
    put_parts(0, "", 0, 0);
    expect_refused("allowed: 1 to 100000000");
    put_parts(0, "{}", 2, 0);
    expect_refused("allowed: 1 to 100000000");
    put_parts(3, "{}", 2, 0);
    expect_refused("claims 3 bytes, but the file has 10");
    put_parts(100000000, "{}", 2, 0);
    expect_refused("claims 100000000 bytes, but the file has 10");
    put_parts(100000001, "{}", 2, 0);
    expect_refused("allowed: 1 to 100000000");
    put_parts(UINT64_MAX, "{}", 2, 0);
    expect_refused("allowed: 1 to 100000000");
    put_parts(3, "{\0}", 3, 0);
    expect_refused("NUL byte");
}

Test(safetensors, pointers_of_git_lfs) {
    static const char pointer[] =
        "version https://git-lfs.github.com/spec/v1\n"
        "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca2"
        "4d17e2393\nsize 548105171\n";
    put_file(pointer, sizeof pointer - 1);
    expect_refused("is a Git LFS pointer, not the weights\nrun `git lfs pull`");
    put_file("version https://git-lf", 22);
    expect_refused("its header claims");
}

/* A truncated file of any length is rejected. */
Test(safetensors, every_cut_of_a_file) {
    for (size_t size = 0; size < sizeof(golden) - 1; size++) {
        put_file(golden, size);
        expect_refused("cut short");
    }
}

Test(safetensors, nesting_bombs) {
    enum { DEPTH = 200000 };
    static const char *const openings[] = {"[", "{\"a\":"};
    for (int k = 0; k < 2; k++) {
        const size_t one = strlen(openings[k]);
        char *header = malloc(5 + DEPTH * one + 1);
        cr_assert_not_null(header);
        strcpy(header, "{\"a\":");
        for (size_t i = 0; i < DEPTH; i++) memcpy(header + 5 + i * one, openings[k], one + 1);
        put_header(header, 0);
        expect_refused("its header:1:");
        free(header);
    }
}

/* Without a limit the parser would use 35 times the header's bytes. Commas in a text are no values.
 */
Test(safetensors, headers_of_too_many_values) {
    const size_t count = SAFETENSORS_VALUES_MAX;
    char *header = malloc(2 * count + 10);
    cr_assert_not_null(header);
    size_t used = (size_t)sprintf(header, "{\"a\":[");
    for (size_t i = 0; i < count; i++, used += 2) memcpy(header + used, "1,", 2);
    strcpy(header + used - 1, "]}");
    put_header(header, 0);
    expect_refused("more than 1048576 values");
    memset(header + 7, ',', used - 8);
    memcpy(header, "{\"__metadata__\":{\"\\\"\":\"", 23);
    strcpy(header + used - 4, "\"}}");
    put_header(header, 0);
    struct safetensors file;
    cr_expect_eq(safetensors_open(&file, path, &error), 0, "%s", error.text);
    safetensors_close(&file);
    free(header);
}

Test(safetensors, messages_fit_and_obey_no_terminal) {
    char header[3000] = "{\"\\u001b[31m";
    memset(header + strlen(header), 'x', 2500);
    strcat(header, "\":1}");
    put_header(header, 0);
    expect_refused("tensor ?[31mxxx");
    cr_expect_not_null(strstr(error.text, "copy or download it again"), "%s", error.text);
}

Test(safetensors, what_is_no_file) {
    struct safetensors file;
    cr_expect_eq(safetensors_open(&file, path, &error), -1);
    cr_expect_not_null(strstr(error.text, "No such file"), "%s", error.text);
    cr_expect_eq(safetensors_open(&file, folder, &error), -1);
    cr_expect_not_null(strstr(error.text, "it is a directory"), "%s", error.text);
    cr_assert_eq(mkfifo(path, 0600), 0);
    expect_refused("not a regular file");
}

static void expect_unwritable(const struct safetensors_entry *entries, int count,
                              const char *part) {
    struct safetensors_writer writer;
    strcpy(error.text, "");
    cr_expect_eq(safetensors_write_begin(&writer, path, entries, count, &error), -1);
    cr_expect_not_null(strstr(error.text, part), "\"%s\" is not in: %s", part, error.text);
    safetensors_write_abandon(&writer);
    cr_expect_not(file_exists(path));
}

Test(safetensors, requests_that_cannot_be_written) {
    const struct safetensors_entry a = {.name = "a", .dtype = SAFETENSORS_U8};
    struct safetensors_entry entries[3] = {a, a, a};
    entries[1].name = "b";
    expect_unwritable(entries, 3, "\"a\" is reserved or used twice");
    entries[1].name = "__metadata__";
    expect_unwritable(entries, 2, "\"__metadata__\" is reserved");
    entries[1].name = "\xff";
    expect_unwritable(entries, 2, "not UTF-8");
    entries[1] = (struct safetensors_entry){"f4", SAFETENSORS_F4, 1, {3}, 0, 0};
    expect_unwritable(entries, 2, "tensor f4");
    entries[1] = (struct safetensors_entry){"big", SAFETENSORS_U8, 1, {1ull << 53}, 0, 0};
    expect_unwritable(entries, 2, "tensor big is too large");
}

Test(safetensors, data_must_match_the_announcement) {
    const struct safetensors_entry a = {"a", SAFETENSORS_F32, 1, {2}, 0, 0};
    for (size_t size = 7; size <= 9; size += 2) {
        struct safetensors_writer writer;
        SUCCEEDS(safetensors_write_begin(&writer, path, &a, 1, &error));
        int result = safetensors_write_data(&writer, "123456789", size, &error);
        cr_expect_eq(result, size > 8 ? -1 : 0);
        if (result == 0) result = safetensors_write_end(&writer, &error);
        cr_expect_eq(result, -1);
        cr_expect_not_null(strstr(error.text, size > 8 ? "more data" : "less data"), "%s",
                           error.text);
        cr_expect_not(file_exists(path));
        cr_expect_eq(rmdir(folder), 0, "the temporary file must be gone");
        cr_assert_eq(mkdir(folder, 0700), 0);
    }
}

Test(safetensors, thousands_of_tensors) {
    enum { COUNT = 5000 };
    struct safetensors_entry *entries = calloc(COUNT, sizeof(*entries));
    char(*names)[24] = malloc(COUNT * sizeof(*names));
    static int values[COUNT];
    cr_assert(entries && names);
    for (int i = 0; i < COUNT; i++) {
        snprintf(names[i], sizeof(*names), "h.%d.weight", i * 7919 % COUNT);
        entries[i] = (struct safetensors_entry){names[i], SAFETENSORS_I32, 1, {1}, 0, 0};
        values[i] = i;
    }
    SUCCEEDS(safetensors_put(path, entries, COUNT, values, sizeof values, &error));
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, path, &error));
    for (int i = 0; i < COUNT; i++) {
        const struct safetensors_entry *entry = safetensors_find(&file, names[i]);
        cr_assert_not_null(entry);
        cr_assert(safetensors_holds(&file, entry, &values[i]));
    }
    safetensors_close(&file);
    free(entries);
    free(names);
}

/* A file that another process changes meanwhile. */
Test(safetensors, files_that_shrink_in_use_are_named) {
    enum { SIZE = 100000, LEFT = 50000 };
    const struct safetensors_entry entry = {
        .name = "x", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {SIZE}};
    struct safetensors file;
    uint8_t *data = malloc(SIZE), *back = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) data[i] = (uint8_t)(i * 7 + i / 5003);
    SUCCEEDS(safetensors_put(in_folder("x"), &entry, 1, data, SIZE, &error));
    SUCCEEDS(safetensors_open(&file, in_folder("x"), &error));
    cr_assert_eq(truncate(in_folder("x"), (off_t)file.data_start + LEFT), 0);
    cr_expect_eq(safetensors_read(back, &file, file.entries, 0, LEFT, &error), 0);
    cr_expect_eq(memcmp(back, data, LEFT), 0);
    cr_expect_eq(safetensors_read(back, &file, file.entries, LEFT - 1, 2, &error), -1);
    cr_expect_not_null(strstr(error.text, in_folder("x")), "%s", error.text);
    cr_expect_not_null(strstr(error.text, "cut short while in use"), "%s", error.text);
    safetensors_close(&file);
    free(data);
    free(back);
}
