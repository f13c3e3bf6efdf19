#include "test/model/io/checkpoint_fixture.h"

#include <math.h>

#include "model/io/gguf.h"
#include "test/model/io/gguf_reader.h"
#include "test/safetensors_find.h"

TestSuite(gguf_container, .init = make_folder, .fini = remove_folder);

Test(gguf_container, the_file_holds_pairs_and_tensors) {
    struct gguf_writer writer = {0};
    struct read_gguf file;
    gguf_put_number(&writer, "a", GGUF_UINT32, 0xfedcba98);
    gguf_put_number(&writer, "b.c", GGUF_FLOAT32, -0.1);
    gguf_put_number(&writer, "yes", GGUF_BOOL, true);
    gguf_put_number(&writer, "no", GGUF_BOOL, false);
    gguf_put_string(&writer, "empty", "");
    gguf_put_string(&writer, "text", "na\xc3\xafve");
    gguf_put_array(&writer, "texts", GGUF_STRING, 2);
    gguf_add_text(&writer, "x\0y", 3);
    gguf_add_text(&writer, "", 0);
    gguf_put_array(&writer, "floats", GGUF_FLOAT32, 2);
    gguf_add_number(&writer, GGUF_FLOAT32, 0.5);
    gguf_add_number(&writer, GGUF_FLOAT32, -2);
    gguf_put_array(&writer, "whole", GGUF_INT32, 1);
    gguf_add_number(&writer, GGUF_INT32, -7);
    gguf_add_tensor(&writer, "vector", GGUF_F32, 0, 3);
    gguf_add_tensor(&writer, "matrix", GGUF_Q8_0, 2, 64);
    SUCCEEDS(gguf_write_begin(&writer, in_folder("file"), &error));
    SUCCEEDS(gguf_write_data(&writer, "abcdefghijkl", 12, &error));
    SUCCEEDS(gguf_write_end_tensor(&writer, &error));
    for (int i = 0; i < 4; i++) {
        char block[34];
        memset(block, 'A' + i, sizeof block);
        SUCCEEDS(gguf_write_data(&writer, block, sizeof block, &error));
    }
    SUCCEEDS(gguf_write_end_tensor(&writer, &error));
    cr_expect_not(file_exists(in_folder("file")), "before it is complete");
    SUCCEEDS(gguf_write_end(&writer, &error));
    gguf_writer_close(&writer);

    read_gguf(&file, in_folder("file"));
    cr_expect_eq(file.pair_count, 9u);
    expect_uint32(&file, "a", 0xfedcba98);
    expect_float32(&file, "b.c", -0.1f);
    expect_bool(&file, "yes", true);
    expect_bool(&file, "no", false);
    expect_string(&file, "empty", "");
    expect_string(&file, "text", "na\xc3\xafve");
    cr_expect_eq(string_item(&file, "texts", 0).size, 3u);
    expect_item(&file, "texts", 1, "");
    cr_expect_eq(word_item(&file, "floats", 6, 1), 0xc0000000);
    cr_expect_eq(word_item(&file, "whole", 5, 0), (uint32_t)-7);
    cr_expect_eq(file.info_count, 2u);
    cr_expect_eq(file.infos[0].dimensions, 1u);
    cr_expect_eq(file.infos[0].shape[0], 3u);
    cr_expect_eq(memcmp(file.infos[0].data, "abcdefghijkl", 12), 0);
    const struct read_info *matrix = find_info(&file, "matrix");
    cr_expect(matrix->dimensions == 2 && matrix->shape[0] == 64 && matrix->shape[1] == 2);
    cr_expect(matrix->data[0] == 'A' && matrix->data[4 * 34 - 1] == 'D');
    free(file.bytes);
}

Test(gguf_container, an_unfinished_file_is_removed) {
    struct gguf_writer writer = {0};
    gguf_add_tensor(&writer, "vector", GGUF_F32, 0, 3);
    SUCCEEDS(gguf_write_begin(&writer, in_folder("file"), &error));
    cr_expect_str_eq(names_in(""), "file.tmp ");
    gguf_writer_close(&writer);
    cr_expect_str_eq(names_in(""), "");
}

/* A file that another export wrote since this one began stays as it is. */
Test(gguf_container, an_existing_file_is_not_replaced) {
    struct gguf_writer writer = {0};
    SUCCEEDS(file_write_whole(in_folder("file"), "theirs", 6, NULL, &error));
    cr_expect_eq(gguf_write_begin(&writer, in_folder("file"), &error), -1);
    cr_expect_not_null(strstr(error.text, "already exists"), "%s", error.text);
    gguf_writer_close(&writer);
    char *bytes;
    size_t size;
    SUCCEEDS(file_read_all(&bytes, &size, in_folder("file"), 100, &error));
    cr_expect_str_eq(bytes, "theirs");
    free(bytes);
    cr_expect_not(file_exists(in_folder("file.tmp")));
}

/* Every block of test/golden/gguf.safetensors. */
Test(gguf_container, blocks_have_the_bits_of_gguf) {
    static const struct {
        const char *name;
        enum gguf_type type;
    } types[] = {{"Q8_0", GGUF_Q8_0}, {"Q4_0", GGUF_Q4_0}};
    struct safetensors file;
    SUCCEEDS(safetensors_open(&file, "test/golden/gguf.safetensors", &error));
    const struct safetensors_entry *entry = safetensors_find(&file, "values");
    float *values = safetensors_data(&file, entry);
    const int64_t rows = (int64_t)entry->shape[0];
    cr_assert(rows > 50 && entry->shape[1] == 32);
    for (int i = 0; i < 2; i++) {
        const size_t bytes = gguf_types[types[i].type].block_bytes;
        uint8_t row[2 * 34],
            *codes = safetensors_data(&file, safetensors_find(&file, types[i].name));
        for (int64_t r = 0; r + 1 < rows; r++) {
            cr_assert_eq(gguf_store(row, types[i].type, values + 32 * r, 64), -1);
            cr_expect_eq(memcmp(row, codes + bytes * (size_t)r, 2 * bytes), 0, "%s, rows from %d",
                         types[i].name, (int)r);
        }
        free(codes);
    }
    free(values);
    safetensors_close(&file);
}

Test(gguf_container, values_that_a_type_lacks_are_found) {
    static const struct {
        float value;
        bool fits[GGUF_TYPE_COUNT]; /* f32, f16, bf16, q8_0, q4_0 */
    } cases[] = {
        {65504, {true, true, true, true, true}},       {-65520, {true, false, true, true, true}},
        {-600000, {true, false, true, true, false}},   {9e6f, {true, false, true, false, false}},
        {3.4e38f, {true, false, false, false, false}}, {INFINITY, {true, true, true, false, false}},
        {NAN, {true, true, true, false, false}},       {1e-44f, {true, true, true, true, true}},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        for (enum gguf_type type = 0; type < GGUF_TYPE_COUNT; type++) {
            float row[64] = {1, 2, [40] = cases[i].value};
            uint8_t stored[sizeof row];
            cr_expect_eq(gguf_store(stored, type, row, 64), cases[i].fits[type] ? -1 : 40,
                         "%g as %s", (double)cases[i].value, gguf_types[type].name);
        }
}
