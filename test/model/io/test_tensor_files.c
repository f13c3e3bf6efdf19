#include "data/util/files.h"
#include "model/io/safetensors.h"
#include "model/io/tensor_files.h"

#include <criterion/criterion.h>

#include <stb/stb_ds.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test/safetensors_find.h"
#include "test/scratch.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))
#define INDEX        "model.safetensors.index.json"

TestSuite(tensor_files, .init = make_folder, .fini = remove_folder);

static void put_text(const char *name, const char *text) {
    SUCCEEDS(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error));
}

/* A file of one-byte tensors: names, separated by spaces, whose first letters are their values. */
static void put_file(const char *name, const char *tensors) {
    struct safetensors_entry entries[16];
    char words[200], values[16];
    int count = 0;
    snprintf(words, sizeof words, "%s", tensors);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) {
        values[count] = word[0];
        entries[count++] =
            (struct safetensors_entry){.name = word, .dtype = SAFETENSORS_U8, .rank = 0};
    }
    SUCCEEDS(safetensors_put(in_folder("%s", name), entries, count, values, (size_t)count, &error));
}

/* Returns the value of a tensor, '\0' if it is missing. */
static char value(const struct tensor_files *files, const char *name) {
    const struct stored_tensor *place = tensor_files_find(files, name);
    char read = '\0';
    if (place) SUCCEEDS(safetensors_read(&read, place->file, place->entry, 0, 1, &error));
    return read;
}

static void open_well(struct tensor_files *files) {
    SUCCEEDS(tensor_files_open_directory(files, folder, "model", &error));
}

static void expect_refused(const char *reason, const char *file) {
    struct tensor_files files;
    error.text[0] = '\0';
    cr_expect_eq(tensor_files_open_directory(&files, folder, "model", &error), -1, "opened: %s",
                 reason);
    cr_expect_not_null(strstr(error.text, reason), "\"%s\" is not in: %s", reason, error.text);
    cr_expect_not_null(strstr(error.text, file), "\"%s\" is not in: %s", file, error.text);
    cr_expect_not_null(strstr(error.text, folder), "no path in: %s", error.text);
    for (const char *c = error.text; *c; c++) cr_expect(*c == '\n' || (unsigned char)*c >= 0x20);
    tensor_files_close(&files);
}

Test(tensor_files, one_file) {
    struct tensor_files files;
    put_file("model.safetensors", "b a c");
    open_well(&files);
    cr_expect_eq(files.count, 3);
    cr_expect_eq(arrlen(files.files), 1);
    cr_expect_eq(value(&files, "a"), 'a');
    cr_expect_eq(value(&files, "c"), 'c');
    cr_expect_eq(value(&files, "d"), '\0');
    cr_expect_str_eq(files.tensors[1].entry->name, "b");
    cr_expect_str_eq(files.where, in_folder("model.safetensors"));
    cr_expect_str_eq(files.tensors[1].file->reader.path, files.where);
    tensor_files_close(&files);
    tensor_files_close(&files);
}

Test(tensor_files, shards) {
    struct tensor_files files;
    put_file("s-1", "c a unlisted");
    put_file("s-2", "d b");
    put_text(INDEX, "{\"metadata\":{\"total_size\":4},\"weight_map\":"
                    "{\"a\":\"s-1\",\"b\":\"s-2\",\"c\":\"s-1\",\"d\":\"s-2\"}}");
    open_well(&files);
    cr_expect_eq(files.count, 5);
    cr_expect_eq(arrlen(files.files), 2);
    cr_expect_str_eq(files.where, in_folder(INDEX));
    static const char *const names[] = {"a", "b", "c", "d", "unlisted"};
    for (size_t i = 0; i < COUNT(names); i++) cr_expect_eq(value(&files, names[i]), names[i][0]);
    cr_expect_str_eq(tensor_files_find(&files, "d")->file->reader.path, in_folder("s-2"));
    tensor_files_close(&files);

    /* A model in one file takes precedence, as in transformers. Links are followed, because
     * caches use them. */
    put_file("blob", "z");
    cr_assert_eq(symlink("blob", in_folder("model.safetensors")), 0);
    open_well(&files);
    cr_expect_eq(value(&files, "z"), 'z');
    cr_expect_eq(value(&files, "a"), '\0');
    tensor_files_close(&files);
}

Test(tensor_files, indexes_that_lead_elsewhere_or_nowhere) {
    static const struct {
        const char *index, *reason;
    } cases[] = {
        {"", ""},
        {"{", ""},
        {"[]", "no JSON object"},
        {"{}", "\"weight_map\" is missing"},
        {"{\"weight_map\":[]}", "\"weight_map\" is missing or no object"},
        {"{\"weight_map\":{},\"weight_map\":{\"a\":\"s-1\"}}", "\"weight_map\" appears twice"},
        {"{\"weight_map\":{}}", "names 0 files (allowed: 1 to 1000)"},
        {"{\"weight_map\":{\"a\":1}}", "tensor a is in \"?\", which is no plain file name"},
        {"{\"weight_map\":{\"a\":\"\"}}", "tensor a is in \"\", which is no plain"},
        {"{\"weight_map\":{\"a\":\".\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "no plain file name"},
        {"{\"weight_map\":{\"b\":\"s-1\",\"a\":\"../s-1\"}}", "tensor a is in \"../s-1\""},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"./s-1\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"s-1/\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"s\\u002f1\"}}", "no plain file name"},
        {"{\"weight_map\":{\"a\":\"s-1\\u0000\"}}", "NUL"},
        {"{\"weight_map\":{\"a\":\"s-9\"}}", "names s-9, which is missing"},
        {"{\"weight_map\":{\"a\":\"s-1\",\"c\":\"s-1\"}}", "tensor c should be in s-1, but is not"},
        {"{\"weight_map\":{\"a\":\"s-2\",\"b\":\"s-1\"}}",
         "tensor a should be in s-2, but is in s-1"},
        {"{\"weight_map\":{\"a\":\"s-1\",\"b\":\"s-2\",\"a\":\"s-2\"}}", "\"a\" appears twice"},
        {"{\"weight_map\":{\"\\u001b[2J\":\"\\u001b[31m\"}}", "names  [31m, which is missing"},
    };
    put_file("s-1", "a");
    put_file("s-2", "b");
    for (size_t i = 0; i < COUNT(cases); i++) {
        put_text(INDEX, cases[i].index);
        expect_refused(cases[i].reason, INDEX);
    }
}

Test(tensor_files, shards_that_are_damaged) {
    put_text(INDEX, "{\"weight_map\":{\"a\":\"s-1\",\"b\":\"s-2\",\"c\":\"s-2\"}}");
    put_file("s-1", "a");
    put_file("s-2", "b a c");
    expect_refused("tensor a is also in", "s-1");
    expect_refused("tensor a is also in", "s-2");
    put_file("s-2", "b c");
    struct stat status;
    cr_assert_eq(stat(in_folder("s-2"), &status), 0);
    for (off_t size = 0; size < status.st_size; size++) {
        put_file("s-2", "b c");
        cr_assert_eq(truncate(in_folder("s-2"), size), 0);
        expect_refused("", "s-2");
    }
    cr_assert_eq(unlink(in_folder("s-2")), 0);
    cr_assert_eq(mkdir(in_folder("s-2"), 0755), 0);
    expect_refused("it is a directory", "s-2");
    cr_assert_eq(rmdir(in_folder("s-2")), 0);
    cr_assert_eq(mkfifo(in_folder("s-2"), 0644), 0);
    expect_refused("not a regular file", "s-2");
}

Test(tensor_files, too_many_shards) {
    for (int count = TENSOR_FILES_MAX; count <= TENSOR_FILES_MAX + 1; count++) {
        FILE *out = fopen(in_folder(INDEX), "w");
        cr_assert_not_null(out);
        fputs("{\"weight_map\":{", out);
        for (int i = 0; i < count; i++) fprintf(out, "%s\"t%d\":\"s%d\"", i ? "," : "", i, i);
        fputs("}}", out);
        fclose(out);
        if (count > TENSOR_FILES_MAX)
            expect_refused("names 1001 files (allowed: 1 to 1000)", INDEX);
        else expect_refused("names s0, which is missing", INDEX);
    }
}

Test(tensor_files, no_weights) {
    expect_refused("holds neither model.safetensors nor", INDEX);
    put_text("pytorch_model.bin.index.json", "{}");
    expect_refused("only safetensors files are read", "pytorch_model.bin.index.json");
    put_text("pytorch_model.bin", "");
    expect_refused("safe_serialization=True", "pytorch_model.bin:");
    cr_assert_eq(remove(in_folder("pytorch_model.bin")), 0);
    cr_assert_eq(remove(in_folder("pytorch_model.bin.index.json")), 0);
    put_text("adapter_model.bin", "");
    expect_refused("AutoPeftModelForCausalLM.from_pretrained(DIR)", "adapter_model.bin:");
    put_file("model.safetensors", "a");
    struct tensor_files files;
    open_well(&files);
    tensor_files_close(&files);
    cr_expect_eq(tensor_files_open_directory(&files, in_folder("absent"), "model", &error), -1);
    cr_expect_not_null(strstr(error.text, "absent"));
    char *deep = calloc(1, FILE_PATH_MAX);
    memset(deep, 'x', FILE_PATH_MAX - 1);
    cr_expect_eq(tensor_files_open_directory(&files, deep, "model", &error), -1);
    free(deep);
}

/* Writes a tensor of BYTES bytes, with byte `at` changed, and hashes its folder. */
static void hash_changed(char hex[SHA256_HEX_MAX], const char *name, enum safetensors_dtype dtype,
                         size_t at) {
    enum { BYTES = 200000 };
    static uint8_t values[BYTES];
    struct tensor_files files;
    const struct safetensors_entry entry = {.name = name,
                                            .dtype = dtype,
                                            .rank = 1,
                                            .shape = {BYTES / (dtype == SAFETENSORS_U8 ? 1 : 4)}};
    if (at < BYTES) values[at] ^= 1;
    SUCCEEDS(safetensors_put(in_folder("model.safetensors"), &entry, 1, values, BYTES, &error));
    if (at < BYTES) values[at] ^= 1;
    open_well(&files);
    SUCCEEDS(tensor_files_fingerprint(hex, &files, &error));
    tensor_files_close(&files);
}

/* Results that are stored by a fingerprint belong to these weights alone. */
Test(tensor_files, fingerprints_cover_every_byte) {
    static const size_t changed[] = {0, 5000, 65535, 65536, 99999, 150001, 199999};
    char original[SHA256_HEX_MAX], hex[SHA256_HEX_MAX];
    hash_changed(original, "a", SAFETENSORS_U8, SIZE_MAX);
    hash_changed(hex, "a", SAFETENSORS_U8, SIZE_MAX);
    cr_expect_str_eq(hex, original);
    for (size_t i = 0; i < COUNT(changed); i++) {
        hash_changed(hex, "a", SAFETENSORS_U8, changed[i]);
        cr_expect_str_neq(hex, original, "byte %zu", changed[i]);
    }
    hash_changed(hex, "b", SAFETENSORS_U8, SIZE_MAX);
    cr_expect_str_neq(hex, original, "another name");
    hash_changed(hex, "a", SAFETENSORS_F32, SIZE_MAX);
    cr_expect_str_neq(hex, original, "another dtype and shape");
}
