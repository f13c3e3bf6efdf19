/* File list of trainer.json: allowed names, and use of its hashes. */
#include "data/util/files.h"
#include "model/io/checkpoint_directory.h"
#include "test/model/io/checkpoint_fixture.h"

#include <unistd.h>

#include "model/config/config_check.h"
#include "model/io/checkpoint_manifest.h"

static char path[FILE_PATH_MAX];

TestSuite(checkpoint_manifest, .init = make_folder, .fini = remove_folder);

/* Rewrites trainer.json, with a hash at its end. */
static void put_sealed(const char *body) {
    char file[FILE_PATH_MAX + 64], hex[SHA256_HEX_MAX], *text;
    sha256_of(hex, body, strlen(body));
    cr_assert_gt(asprintf(&text, "%s,\n  \"sha256\": \"%s\"\n}\n", body, hex), 0);
    snprintf(file, sizeof file, "%s/trainer.json", path);
    SUCCEEDS(file_write_whole(file, text, strlen(text), NULL, &error));
    free(text);
}

/* Replaces trainer.json's list of files by other text. */
static void put_files(const char *list) {
    char *body, *text;
    size_t size;
    text = read_text(path, "trainer.json", &size);
    cr_assert_not_null(strstr(text, "  \"files\": {"));
    int before = (int)(strstr(text, "  \"files\": {") - text);
    cr_assert_gt(asprintf(&body, "%.*s  \"files\": %s", before, text, list), 0);
    put_sealed(body);
    free(text);
    free(body);
}

/* Returns {"NAME": {"bytes": ..., "sha256": ...}, ...} of files in the checkpoint, and `more`,
 * to be freed. */
static char *list_of(const char *const *names, size_t count, const char *more) {
    char *text, hex[SHA256_HEX_MAX];
    size_t size;
    FILE *out = open_memstream(&text, &size);
    fputc('{', out);
    for (size_t i = 0; i < count; i++) {
        char file[FILE_PATH_MAX + 64];
        uint64_t bytes;
        snprintf(file, sizeof file, "%s/%s", path, names[i]);
        SUCCEEDS(sha256_file(hex, &bytes, file, &error));
        fprintf(out, "%s\"%s\": {\"bytes\": %llu, \"sha256\": \"%s\"}", i ? ", " : "", names[i],
                (unsigned long long)bytes, hex);
    }
    fprintf(out, "%s}", more);
    fclose(out);
    return text;
}

static const char *const three[] = {"model.safetensors", "config.json", "optimizer.safetensors"};

/* Manifests written before other files existed. */
Test(checkpoint_manifest, of_three_files_resume) {
    struct subject subject, loaded;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject_open_tiny(&loaded, CONFIG_PRECISION_FP32);
    save_step(&subject, folder, 7, path);
    unlink(in_checkpoints(folder, "step-00000007/generation_config.json"));
    cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), -1);
    expect_text(error.text, "generation_config.json: it is missing");
    char *list = list_of(three, COUNT(three), "");
    put_files(list);
    cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), 0, "%s", error.text);
    SUCCEEDS(checkpoint_load(&loaded.trainer, path, stderr, &error));
    expect_same(&subject, &loaded);
    expect_newest(folder, 7);
    free(list);
    subject_close(&subject);
    subject_close(&loaded);
}

/* Seals trainer.json anew with `more` behind the first `after`. */
static void put_behind(const char *after, const char *more) {
    size_t size;
    char *body, *text = read_text(path, "trainer.json", &size);
    char *rest = strstr(text, after), *end = strstr(text, ",\n  \"sha256\": ");
    cr_assert(rest && end);
    rest += strlen(after);
    cr_assert_gt(
        asprintf(&body, "%.*s%s%.*s", (int)(rest - text), text, more, (int)(end - rest), rest), 0);
    put_sealed(body);
    free(text);
    free(body);
}

/* Manifests of earlier versions have keys that were removed since. */
Test(checkpoint_manifest, removed_keys_are_skipped_whatever_their_value) {
    struct subject subject;
    struct config config;
    struct notes notes;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 7, path);
    put_behind("\"log\": {", "\"csv\": true, \"tensorboard\": false, ");
    put_behind("\"precision_switch\": {", "\"forward_only\": true, ");
    SUCCEEDS(checkpoint_config(&config, path, &error));
    config_resolve_notes(&config, notes_open(&notes));
    notes_close(&notes);
    expect_text(notes.text, "log.csv was set by an earlier version");
    expect_text(notes.text, "precision_switch.forward_only was set");
    cr_expect_null(strstr(notes.text, "tensorboard"), "it changed nothing: %s", notes.text);
    SUCCEEDS(checkpoint_load(&subject.trainer, path, stderr, &error));
    subject_close(&subject);
}

#define FILE_OF(name)     ", \"" name "\": {\"bytes\": 0, \"sha256\": \"" DIGEST_OF_NOTHING "\"}"
#define DIGEST_OF_NOTHING "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

Test(checkpoint_manifest, lists_of_files_are_checked) {
    static const char sixty_four[] =
        FILE_OF("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    static const struct {
        size_t count;
        const char *more, *reason;
    } cases[] = {
        {2, "", "\"optimizer.safetensors\" is missing"},
        {0, "", "\"model.safetensors\" is missing"},
        {3, FILE_OF("model.safetensors"), "\"model.safetensors\" appears twice"},
        {3, FILE_OF("x") FILE_OF("x"), "\"x\" appears twice"},
        {3, FILE_OF("../x"), "names \"../x\", which is no plain"},
        {3, FILE_OF("/etc/passwd"), "no plain file name"},
        {3, FILE_OF("a/b"), "no plain file name"},
        {3, FILE_OF(""), "no plain file name"},
        {3, FILE_OF("."), "no plain file name"},
        {3, FILE_OF(".."), "no plain file name"},
        {3, sixty_four, "no plain file name"},
        {3, ", \"x\": {\"bytes\": -1, \"sha256\": \"" DIGEST_OF_NOTHING "\"}",
         "\"x\" is missing or"},
        {3, ", \"x\": {\"bytes\": 0, \"sha256\": \"e3\"}", "\"x\" is missing or has"},
        {3, ", \"x\": 1", "\"x\" is missing or has"},
        {3, FILE_OF("absent"), "absent: it is missing"},
        {3, FILE_OF("trainer.json"), "trainer.json: it has"},
    };
    struct subject subject;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 7, path);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *list = list_of(three, cases[i].count, cases[i].count ? cases[i].more : "");
        put_files(list);
        error.text[0] = '\0';
        cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), -1, "%s", list);
        expect_text(error.text, cases[i].reason);
        free(list);
    }
    char *many = NULL, number[16 + sizeof FILE_OF("")];
    for (int i = 0; i < CHECKPOINT_FILES_MAX - 2; i++) {
        int length = snprintf(number, sizeof number, FILE_OF("%d"), i);
        memcpy(arraddnptr(many, length), number, (size_t)length);
    }
    arrput(many, '\0');
    char *list = list_of(three, 3, many);
    put_files(list);
    cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), -1);
    expect_text(error.text, "more than 2012");
    free(list);
    arrfree(many);
    list = list_of(three, 3, FILE_OF("empty"));
    put_files(list);
    SUCCEEDS(file_write_whole(in_checkpoints(folder, "step-00000007/empty"), "", 0, NULL, &error));
    cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), 0, "%s", error.text);
    free(list);
    subject_close(&subject);
}

/* Expects an error about `key` from a sealed copy of `text` whose value from `value` to `rest` is
 * replaced. */
static void expect_value_refused(const char *file, const char *text, const char *value,
                                 const char *replacement, const char *rest, const char *key) {
    struct checkpoint_manifest manifest;
    const char *end = strstr(text, ",\n  \"sha256\": ");
    char *body, message[100];
    cr_assert_gt(asprintf(&body, "%.*s%s%.*s", (int)(value - text), text, replacement,
                          (int)(end - rest), rest),
                 0);
    put_sealed(body);
    free(body);
    cr_expect_eq(checkpoint_manifest_open(&manifest, file, &error), -1, "%s", replacement);
    snprintf(message, sizeof message, "\"%s\" is missing or has no possible value", key);
    expect_text(error.text, message);
}

Test(checkpoint_manifest, loss_scales_are_floats_above_zero) {
    static const char *const scales[] = {"1e300", "1e999", "1e-300", "0"};
    static const char key[] = "\"loss_scale\": ";
    struct subject subject;
    size_t size;
    char file[FILE_PATH_MAX], *text;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 7, path);
    snprintf(file, sizeof file, "%s", in_checkpoints(folder, "step-00000007/trainer.json"));
    SUCCEEDS(file_read_all(&text, &size, file, 1 << 20, &error));
    char *scale = strstr(text, key) + strlen(key);
    for (size_t i = 0; i < COUNT(scales); i++) {
        char *rest = strchr(scale, ',');
        expect_value_refused(file, text, scale, scales[i], rest, "loss_scale");
    }
    free(text);
    subject_close(&subject);
}

Test(checkpoint_manifest, the_best_validation_is_kept) {
    static const char *const wrong[] = {
        "{}",
        "7",
        "{\"val_loss\": 1e999, \"step\": 5, \"since\": 2}",
        "{\"val_loss\": 2.5, \"step\": 0, \"since\": 2}",
        "{\"val_loss\": 2.5, \"step\": 5, \"since\": -1}",
        "{\"val_loss\": \"2.5\", \"step\": 5, \"since\": 2}",
        "{\"val_loss\": 2.5, \"step\": 5, \"since\": 2, \"last\": 0}",
    };
    static const char key[] = "  \"best\": ";
    struct checkpoint_manifest manifest;
    struct subject subject;
    size_t size;
    char file[FILE_PATH_MAX], *text;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 6, path);
    snprintf(file, sizeof file, "%s", in_checkpoints(folder, "step-00000006/trainer.json"));
    SUCCEEDS(checkpoint_manifest_open(&manifest, file, &error));
    cr_expect_eq(manifest.state.best.step, 0, "there was no validation");
    checkpoint_manifest_close(&manifest);
    subject.trainer.state.best =
        (struct best_validation){1.0 / 3, .step = 5, .since = 2, .last = 7};
    save_step(&subject, folder, 7, path);
    snprintf(file, sizeof file, "%s", in_checkpoints(folder, "step-00000007/trainer.json"));
    SUCCEEDS(checkpoint_manifest_open(&manifest, file, &error));
    const struct best_validation *best = &manifest.state.best;
    cr_expect(best->loss == 1.0 / 3 && best->step == 5 && best->since == 2 && best->last == 7);
    checkpoint_manifest_close(&manifest);
    SUCCEEDS(file_read_all(&text, &size, file, 1 << 20, &error));
    char *at = strstr(text, key);
    cr_assert_not_null(at);
    at += strlen(key);
    for (size_t i = 0; i < COUNT(wrong); i++) {
        char *rest = strchr(at, '}') + 1;
        expect_value_refused(file, text, at, wrong[i], rest, "best");
    }
    free(text);
    subject_close(&subject);
}
