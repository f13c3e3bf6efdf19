/* Tensors in several files: the number and names of files, and that data reads back as written. */
#include "data/util/files.h"
#include "test/scratch.h"

#include <signal.h>
#include <stb/stb_ds.h>
#include <string.h>
#include <sys/resource.h>

#include "model/io/tensor_files.h"
#include "test/safetensors_find.h"

TestSuite(tensor_shards, .init = make_folder, .fini = remove_folder);

/* 13 + 7 + 24 + 2 = 46 bytes. */
static const struct safetensors_entry entries[] = {
    {.name = "a", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {13}},
    {.name = "b", .dtype = SAFETENSORS_I8, .rank = 1, .shape = {7}},
    {.name = "c", .dtype = SAFETENSORS_F32, .rank = 2, .shape = {2, 3}},
    {.name = "d", .dtype = SAFETENSORS_F16, .rank = 1, .shape = {1}},
};
enum { ENTRIES = sizeof entries / sizeof *entries, BYTES = 46 };

static uint8_t data[BYTES];

static void fill_data(void) {
    for (int i = 0; i < BYTES; i++) data[i] = (uint8_t)(37 * i + 5);
}

/* Writes the data of all entries one after the other. A context makes reading entry 2 fail. */
static int read_data(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                     struct error *reason) {
    size_t at = first;
    for (int i = 0; i < entry; i++) {
        uint64_t size;
        cr_assert(safetensors_entry_bytes(&size, &entries[i]));
        at += size;
    }
    cr_assert_leq(at + bytes, BYTES);
    memcpy(buffer, data + at, bytes);
    return context && entry == 2 ? fail(reason, "entry 2 cannot be read") : 0;
}

static int try_put(struct stored_file **files, uint64_t limit, bool fails) {
    const struct tensor_source source = {read_data, fails ? files : NULL};
    fill_data();
    return tensor_shards_write(folder, "x", entries, ENTRIES, limit, &source, files, &error);
}

static void put(struct stored_file **files, uint64_t limit) {
    cr_assert_eq(try_put(files, limit, false), 0, "%s", error.text);
}

static void expect_data(void) {
    struct tensor_files files;
    size_t at = 0;
    SUCCEEDS(tensor_files_open_directory(&files, folder, "x", &error));
    cr_expect_eq(files.count, ENTRIES);
    for (int i = 0; i < ENTRIES; i++) {
        const struct stored_tensor *place = tensor_files_find(&files, entries[i].name);
        cr_assert_not_null(place);
        cr_expect(safetensors_holds(place->file, place->entry, data + at));
        at += place->entry->bytes;
    }
    tensor_files_close(&files);
}

static void expect_names(const struct stored_file *files, const char *const *names) {
    ptrdiff_t i = 0;
    for (; names[i]; i++) {
        char hex[SHA256_HEX_MAX];
        uint64_t bytes;
        cr_assert_lt(i, arrlen(files));
        cr_expect_str_eq(files[i].name, names[i]);
        SUCCEEDS(sha256_file(hex, &bytes, in_folder("%s", names[i]), &error));
        cr_expect_str_eq(files[i].sha256, hex);
        cr_expect_eq(files[i].bytes, bytes);
    }
    cr_expect_eq(arrlen(files), i);
}

/* Limits at which the number of files changes. */
Test(tensor_shards, each_file_has_as_many_tensors_as_fit) {
    static const struct {
        uint64_t limit;
        const char *names[6];
    } cases[] = {
        {BYTES, {"x.safetensors"}},
        {BYTES - 1,
         {"x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors",
          "x.safetensors.index.json"}},
        {20,
         {"x-00001-of-00003.safetensors", "x-00002-of-00003.safetensors",
          "x-00003-of-00003.safetensors", "x.safetensors.index.json"}},
        {1,
         {"x-00001-of-00004.safetensors", "x-00002-of-00004.safetensors",
          "x-00003-of-00004.safetensors", "x-00004-of-00004.safetensors",
          "x.safetensors.index.json"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct stored_file *files = NULL;
        put(&files, cases[i].limit);
        expect_names(files, cases[i].names);
        expect_data();
        for (ptrdiff_t f = 0; f < arrlen(files); f++)
            cr_assert_eq(remove(in_folder("%s", files[f].name)), 0);
        arrfree(files);
    }
}

Test(tensor_shards, the_index_is_that_of_transformers) {
    struct stored_file *files = NULL;
    char *text;
    size_t size;
    put(&files, 20);
    SUCCEEDS(file_read_all(&text, &size, in_folder("x.safetensors.index.json"), 1 << 20, &error));
    cr_expect_str_eq(text, "{\n"
                           "  \"metadata\": {\n"
                           "    \"total_size\": 46\n"
                           "  },\n"
                           "  \"weight_map\": {\n"
                           "    \"a\": \"x-00001-of-00003.safetensors\",\n"
                           "    \"b\": \"x-00001-of-00003.safetensors\",\n"
                           "    \"c\": \"x-00002-of-00003.safetensors\",\n"
                           "    \"d\": \"x-00003-of-00003.safetensors\"\n"
                           "  }\n"
                           "}\n");
    free(text);
    arrfree(files);
}

/* Tensors that fit in one file give the same bytes as the writer of one file. */
Test(tensor_shards, one_file_has_the_bytes_it_always_had) {
    struct stored_file *files = NULL;
    char hex[SHA256_HEX_MAX];
    put(&files, BYTES);
    SUCCEEDS(safetensors_put(in_folder("y"), entries, ENTRIES, data, BYTES, &error));
    SUCCEEDS(sha256_file(hex, NULL, in_folder("y"), &error));
    cr_expect_str_eq(files[0].sha256, hex);
    arrfree(files);
}

Test(tensor_shards, a_source_that_fails_leaves_nothing_half_written) {
    static const uint64_t limits[] = {BYTES, 20, 1};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct stored_file *files = NULL;
        cr_expect_eq(try_put(&files, limits[i], true), -1);
        cr_expect_str_eq(error.text, "entry 2 cannot be read");
        cr_expect_not(file_exists(in_folder("x.safetensors.index.json")));
        cr_expect_not(file_exists(in_folder("x.safetensors.tmp")));
        cr_expect_not(file_exists(in_folder("x-00002-of-00003.safetensors.tmp")));
        arrfree(files);
    }
}

/* Byte i of an entry depends on both the entry and i. */
static int read_pattern(void *context, void *buffer, int entry, uint64_t first, size_t bytes,
                        struct error *reason) {
    uint8_t *to = buffer;
    (void)context, (void)reason;
    cr_assert_leq(bytes, TENSOR_PIECE_BYTES);
    for (size_t i = 0; i < bytes; i++) to[i] = (uint8_t)((first + i) * 131 / 64 + (uint64_t)entry);
    return 0;
}

Test(tensor_shards, large_tensors_are_read_in_pieces) {
    enum { LARGE = 2 * TENSOR_PIECE_BYTES + 5 };
    const struct safetensors_entry two[] = {
        {.name = "a", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {LARGE}},
        {.name = "b", .dtype = SAFETENSORS_U8, .rank = 1, .shape = {LARGE}},
    };
    const struct tensor_source source = {read_pattern, NULL};
    struct stored_file *written = NULL;
    struct tensor_files files;
    uint8_t *expected = malloc(LARGE);
    SUCCEEDS(tensor_shards_write(folder, "x", two, 2, LARGE, &source, &written, &error));
    SUCCEEDS(tensor_files_open_directory(&files, folder, "x", &error));
    for (int i = 0; i < 2; i++) {
        const struct stored_tensor *place = tensor_files_find(&files, two[i].name);
        for (size_t k = 0; k < LARGE; k++) expected[k] = (uint8_t)(k * 131 / 64 + (size_t)i);
        cr_expect(safetensors_holds(place->file, place->entry, expected));
    }
    tensor_files_close(&files);
    arrfree(written);
    free(expected);
}

Test(tensor_shards, more_files_than_can_be_read_are_refused) {
    struct safetensors_entry many[TENSOR_FILES_MAX + 1];
    char names[TENSOR_FILES_MAX + 1][8];
    struct tensor_division division;
    for (int i = 0; i <= TENSOR_FILES_MAX; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        many[i] = (struct safetensors_entry){
            .name = names[i], .dtype = SAFETENSORS_U8, .rank = 1, .shape = {1}};
    }
    cr_expect_eq(tensor_division_open(&division, "x", many, TENSOR_FILES_MAX + 1, 1, 1, &error),
                 -1);
    tensor_division_close(&division);
    cr_expect_not_null(strstr(error.text, "there would be 1001 files"), "%s", error.text);
    cr_expect_eq(tensor_division_open(&division, "x", many, TENSOR_FILES_MAX, 1, 1, &error), 0);
    tensor_division_close(&division);
}

/* If any of the files does not fit, no partial file remains under its name. */
Test(tensor_shards, a_full_disk_is_a_failure) {
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 220; limit += 8) {
        const struct rlimit few = {limit, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
        struct stored_file *files = NULL;
        setrlimit(RLIMIT_FSIZE, &few);
        int status = try_put(&files, 20, false);
        setrlimit(RLIMIT_FSIZE, &any);
        cr_expect_eq(status, -1, "written in %lu bytes a file", (unsigned long)limit);
        cr_expect_not_null(strstr(error.text, "disk full"), "%s", error.text);
        cr_expect_not(file_exists(in_folder("x.safetensors.index.json")));
        arrfree(files);
    }
}
