/* Every config key: where it is used it has an effect that can be seen, and where it is not,
 * setting it is a warning and changes nothing. */
#include "test/model/cli/every_key.h"

TestSuite(every_key, .init = set_up_every_key, .fini = remove_folder, .timeout = 300);

/* Returns what a run with these settings shows, and keeps it for the next key with the same. */
static struct seen see_base(const char *settings) {
    static const char *before;
    static struct seen seen;
    if (before && strcmp(before, settings) == 0) return seen;
    before = settings;
    forget("a/run");
    int status = train("run", "", settings, NULL);
    cr_assert_eq(status, 0, "%s: exit %d\n%s", settings, status, error_text);
    return seen = see("run");
}

static void expect_effect(const struct key_case *key) {
    char warning[100];
    const struct seen base = see_base(key->with);
    snprintf(warning, sizeof warning, "%s has no effect", key->key);
    if (key->sight == UNSEEN) {
        cr_expect_not_null(key->reason, "%s", key->key);
        return;
    }
    forget("a/run");
    int status = train("run", "", key->with, key);
    cr_expect_eq(status, 0, "%s: exit %d\n%s", key->key, status, error_text);
    const struct seen other = see("run");
    cr_expect_neq(base.of[key->sight], other.of[key->sight], "%s=%s with %s changes nothing",
                  key->key, key->value, key->with);
    cr_expect_null(strstr(error_text, warning), "%s", error_text);
}

/* The warning is true: the weights are those without the key. */
static void expect_no_effect(const struct key_case *key) {
    char warning[100];
    if (!key->unless) return;
    snprintf(warning, sizeof warning, "warning: %s has no effect: ", key->key);
    const struct seen base = see_base(key->unless);
    forget("a/run");
    int status = train("run", "", key->unless, key);
    cr_expect_eq(status, 0, "%s: exit %d\n%s", key->key, status, error_text);
    cr_expect_not_null(strstr(error_text, warning), "%s=%s with %s: %s", key->key, key->value,
                       key->unless, error_text);
    cr_expect_eq(base.of[WEIGHTS], see("run").of[WEIGHTS], "%s=%s with %s changes the weights",
                 key->key, key->value, key->unless);
}

/* Other keys than those of the initial model are errors of shapes, or noted by name. */
Test(every_key, differs_from_the_initial_model) {
    char settings[300], note[100], before[300] = "-";
    for (size_t i = 0; i < COUNT(key_cases); i++) {
        const struct key_case *key = &key_cases[i];
        if (strncmp(key->key, "model.", 6) != 0 ||
            config_option_of(key->key)->changes != CHANGES_MODEL)
            continue;
        if (strcmp(before, key->with) != 0) {
            forget("a/model");
            cr_assert_eq(train("model", "", key->with, NULL), 0, "%s", error_text);
            snprintf(before, sizeof before, "%s", key->with);
        }
        snprintf(settings, sizeof settings, "model.init_from=a/model%s%s", *key->with ? "|" : "",
                 key->with);
        forget("a/run");
        const int status = train("run", "", settings, key);
        snprintf(note, sizeof note, "%s: ", key->key);
        cr_expect(status ? strstr(error_text, "a/model") != NULL : strstr(error_text, note) != NULL,
                  "%s: exit %d\n%s", key->key, status, error_text);
        if (status) continue;
        forget("a/run");
        cr_expect_eq(train("run", "", settings, NULL), 0);
        cr_expect_null(strstr(error_text, "something else"), "%s: %s", settings, error_text);
    }
}

enum { PARTS = 4 };

/* Tries a part of all keys; parts run at the same time. */
static void try_part(int part, void (*expect)(const struct key_case *)) {
    const int count = COUNT(key_cases);
    for (int i = count * part / PARTS; i < count * (part + 1) / PARTS; i++) expect(&key_cases[i]);
}

Test(every_key, has_an_effect_where_it_is_used_0) {
    try_part(0, expect_effect);
}
Test(every_key, has_an_effect_where_it_is_used_1) {
    try_part(1, expect_effect);
}
Test(every_key, has_an_effect_where_it_is_used_2) {
    try_part(2, expect_effect);
}
Test(every_key, has_an_effect_where_it_is_used_3) {
    try_part(3, expect_effect);
}
Test(every_key, warns_where_it_is_not_used_0) {
    try_part(0, expect_no_effect);
}
Test(every_key, warns_where_it_is_not_used_1) {
    try_part(1, expect_no_effect);
}
Test(every_key, warns_where_it_is_not_used_2) {
    try_part(2, expect_no_effect);
}
Test(every_key, warns_where_it_is_not_used_3) {
    try_part(3, expect_no_effect);
}

/* Nothing that is compared depends on time: only then does a difference show an effect. */
Test(every_key, is_seen_the_same_twice) {
    const struct seen base = see_base(SAMPLED);
    for (int i = 0; i < 3; i++) {
        forget("a/run");
        cr_assert_eq(train("run", "", SAMPLED, NULL), 0, "%s", error_text);
        const struct seen again = see("run");
        cr_expect_arr_eq(base.of, again.of, sizeof base.of);
    }
}

/* A new key needs a case here. */
Test(every_key, is_listed, .init = NULL, .fini = NULL) {
    for (int i = 0; i < config_option_count; i++) {
        const struct config_option *option = &config_options[i];
        size_t k = 0;
        while (k < COUNT(key_cases) && strcmp(key_cases[k].key, option->key) != 0) k++;
        cr_assert_lt(k, COUNT(key_cases), "%s is not tried", option->key);
        cr_expect_eq(key_cases[k].unless == NULL, option->used_if == USED_IF_ALWAYS, "%s",
                     option->key);
    }
}
