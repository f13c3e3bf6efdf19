/* Files of a model folder that an export copies: no file of the user gets into it. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "data/util/files.h"
#include "data/util/json.h"
#include "model/io/base_files.h"
#include "test/scratch.h"

TestSuite(copied_file, .init = make_folder, .fini = remove_folder);

static void put(const char *name, const char *text) {
    cr_assert_eq(file_write_whole(in_folder("%s", name), text, strlen(text), NULL, &error), 0, "%s",
                 error.text);
}

static void expect_refused(const char *directory, const char *name, const char *reason) {
    char *bytes;
    size_t size;
    error.text[0] = '\0';
    cr_expect_eq(copied_file_read(&bytes, &size, in_folder("%s", directory), name, &error), -1);
    cr_expect_null(bytes);
    cr_expect_not_null(strstr(error.text, reason), "%s", error.text);
    cr_expect_not_null(strstr(error.text, name), "%s", error.text);
}

static void expect_read(const char *directory, const char *name, const char *expected) {
    char *bytes;
    size_t size;
    cr_assert_eq(copied_file_read(&bytes, &size, in_folder("%s", directory), name, &error), 0, "%s",
                 error.text);
    cr_expect_eq(size, strlen(expected));
    cr_expect_str_eq(bytes, expected);
    free(bytes);
}

Test(copied_file, links_must_stay_in_the_folder) {
    static const char *const outside[] = {"../secret", "../m2/secret", "inner/../../secret"};
    cr_assert_eq(directory_create(in_folder("m/inner"), &error), 0);
    cr_assert_eq(directory_create(in_folder("m2"), &error), 0);
    put("secret", "{}");
    put("m2/secret", "{}");
    put("m/inner/x", "{\"x\": 1}");
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(symlink(outside[i], in_folder("m/added_tokens.json")), 0);
        expect_refused("m", "added_tokens.json", "outside its folder");
        cr_assert_eq(unlink(in_folder("m/added_tokens.json")), 0);
        cr_assert_eq(symlink(outside[i], in_folder("m/merges.txt")), 0);
        expect_refused("m", "merges.txt", "outside its folder");
        cr_assert_eq(unlink(in_folder("m/merges.txt")), 0);
    }
    cr_assert_eq(symlink("inner/x", in_folder("m/added_tokens.json")), 0);
    expect_read("m", "added_tokens.json", "{\"x\": 1}");
    cr_assert_eq(symlink("m", in_folder("link")), 0);
    expect_read("link", "added_tokens.json", "{\"x\": 1}");
    cr_assert_eq(symlink("nowhere", in_folder("m/vocab.json")), 0);
    expect_refused("m", "vocab.json", "cannot read");
}

/* The cache of Hugging Face: MODEL/snapshots/REVISION links to MODEL/blobs. */
Test(copied_file, links_to_blobs_of_the_cache_are_followed) {
    cr_assert_eq(directory_create(in_folder("hub/snapshots/1"), &error), 0);
    cr_assert_eq(directory_create(in_folder("hub/blobs"), &error), 0);
    put("hub/blobs/7", "{\"blob\": 7}");
    put("hub/seven", "{}");
    cr_assert_eq(symlink("../../blobs/7", in_folder("hub/snapshots/1/vocab.json")), 0);
    expect_read("hub/snapshots/1", "vocab.json", "{\"blob\": 7}");
    cr_assert_eq(symlink("../../seven", in_folder("hub/snapshots/1/tokenizer.json")), 0);
    expect_refused("hub/snapshots/1", "tokenizer.json", "outside its folder");
    /* blobs that lead elsewhere themselves */
    cr_assert_eq(directory_create(in_folder("home"), &error), 0);
    put("home/7", "{}");
    cr_assert_eq(directory_remove(in_folder("hub/blobs"), &error), 0);
    cr_assert_eq(symlink("../home", in_folder("hub/blobs")), 0);
    expect_refused("hub/snapshots/1", "vocab.json", "outside its folder");
}

Test(copied_file, json_files_hold_one_object) {
    static const char *const cases[][2] = {
        {"-----BEGIN KEY-----", "is not a JSON number"},
        {"[1]", "does not hold one JSON object"},
        {"{} x", "expected nothing after the end"},
        {"{", "expected a key"},
        {"", "is empty"},
        {"{}{}", "expected nothing after the end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put("added_tokens.json", cases[i][0]);
        expect_refused("", "added_tokens.json", cases[i][1]);
    }
    char *many = malloc(2 * JSON_VALUES_MAX + 10), *end = stpcpy(many, "{\"a\":[0");
    for (int i = 0; i < JSON_VALUES_MAX; i++) end = stpcpy(end, ",0");
    strcpy(end, "]}");
    put("added_tokens.json", many);
    expect_refused("", "added_tokens.json", "more than 4000000 values");
    free(many);
    put("added_tokens.json", " {\"a\": [1, {\"b\": null}]}\n");
    expect_read("", "added_tokens.json", " {\"a\": [1, {\"b\": null}]}\n");
    put("merges.txt", "a b\n");
    expect_read("", "merges.txt", "a b\n");
    char *bytes;
    size_t size;
    cr_expect_eq(copied_file_read(&bytes, &size, folder, "vocab.json", &error), RESULT_NONE);
}
