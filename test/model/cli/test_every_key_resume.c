/* Every config key with another value on --resume: it is refused or noted by name, or the following
 * steps, their validation and their weights have the same bits. */
#include "test/model/cli/every_key.h"

TestSuite(every_key_resume, .init = set_up_every_key, .fini = remove_folder, .timeout = 300);

#define RESUME "|--resume|a/whole/checkpoints/step-00000002"

/* Keys of which another value cannot be tried here: folders, keys of a GPU, a shorter run, and
 * weights in several files. */
static const char *const untried[] = {
    "train.minutes",
    "checkpoint.shard_gb",
    "name",
    "run_dir",
    "tf32",
    "cuda_graphs",
    "cuda_wgmma",
    "data.tokenizer_dir",
    "fp8.require",
    "offload.optimizer",
    "offload.weights",
    "offload.gradients",
    "offload.activations",
};

/* Resumes into an empty folder but for the reference's values of preference losses. */
static int resume(const char *settings, const struct key_case *key) {
    forget("a/run");
    if (exists("a/whole/reference_train.bin")) {
        char command[FILE_PATH_MAX + 100];
        snprintf(command, sizeof command, "cd %s/a && mkdir run && cp whole/reference_* run",
                 folder);
        cr_assert_eq(system(command), 0);
    }
    return train("run", RESUME, settings, key);
}

/* Trains without an interruption, and returns what steps 3 and 4 show. */
static struct seen see_whole(const char *settings) {
    static const char *before;
    static struct seen seen;
    if (before && strcmp(before, settings) == 0) return seen;
    before = settings;
    forget("a/whole");
    int status = train("whole", "", settings, NULL);
    cr_assert_eq(status, 0, "%s: exit %d\n%s", settings, status, error_text);
    const struct seen whole = see("whole");
    status = resume(settings, NULL);
    cr_assert_eq(status, 0, "%s: exit %d\n%s", settings, status, error_text);
    seen = see("run");
    cr_expect_eq(whole.of[WEIGHTS], seen.of[WEIGHTS], "%s: resumes with other weights", settings);
    cr_expect(!strstr(error_text, "in the checkpoint") || strstr(settings, "precision_switch"),
              "%s: %s", settings, error_text);
    return seen;
}

static void expect_declared(const struct key_case *key) {
    char note[100];
    for (size_t i = 0; i < COUNT(untried); i++)
        if (strcmp(untried[i], key->key) == 0) return;
    const struct seen whole = see_whole(key->with);
    snprintf(note, sizeof note, "%s: ", key->key);
    const int status = resume(key->with, key);
    if (status != 0) {
        cr_expect(strstr(error_text, key->key) || strstr(error_text, "in the checkpoint, now"),
                  "%s: refused with %s", key->key, error_text);
        return;
    }
    if (strstr(error_text, note)) return;
    const struct seen seen = see("run");
    cr_expect_eq(whole.of[WEIGHTS], seen.of[WEIGHTS], "%s=%s with %s: other weights, but only: %s",
                 key->key, key->value, key->with, error_text);
    cr_expect(whole.of[LOSSES] == seen.of[LOSSES] || strcmp(key->key, "log.metrics") == 0,
              "%s=%s with %s: other losses, but only: %s", key->key, key->value, key->with,
              error_text);
}

enum { PARTS = 4 };

static void try_part(int part) {
    const int count = COUNT(key_cases);
    for (int i = count * part / PARTS; i < count * (part + 1) / PARTS; i++)
        expect_declared(&key_cases[i]);
}

Test(every_key_resume, is_refused_noted_or_without_effect_0) {
    try_part(0);
}
Test(every_key_resume, is_refused_noted_or_without_effect_1) {
    try_part(1);
}
Test(every_key_resume, is_refused_noted_or_without_effect_2) {
    try_part(2);
}
Test(every_key_resume, is_refused_noted_or_without_effect_3) {
    try_part(3);
}
