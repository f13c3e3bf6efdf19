/* An untrusted run directory: nothing outside it changes, and no pipe blocks the program. */
#include "model/config/config_keys.h"
#include "model/cli/rank_output.h"
#include "test/model/lab/compare/run_fixture.h"
#include "test/model/cli/program_fixture.h"

TestSuite(hostile_folder, .init = set_up, .fini = remove_folder);

static void expect_kept(const char *name) {
    size_t size;
    char *text = read_whole(name, &size);
    cr_expect_str_eq(text, "kept", "%s was written to", name);
    free(text);
}

static void expect_no_controls(const char *text) {
    for (const char *at = text; *at; at++)
        cr_expect((uint8_t)*at >= ' ' || *at == '\n', "byte %#x", (uint8_t)*at);
    cr_expect_null(strstr(text, "\xe2\x80\xae"));
    cr_expect_null(strstr(text, "\xc2\x9b"));
}

Test(hostile_folder, links_are_refused) {
    static const char *const names[] = {"metrics.jsonl", "config.json.tmp"};
    static int (*const links[])(const char *, const char *) = {link, symlink};
    char victim[FILE_PATH_MAX], name[100];
    snprintf(victim, sizeof victim, "%s", in_folder("victim"));
    write_file("victim", "kept");
    cr_assert_eq(directory_create(in_folder("a/run"), &error), 0);
    for (int i = 0; i < 4; i++) {
        snprintf(name, sizeof name, "a/run/%s", names[i / 2]);
        cr_assert_eq(links[i % 2](victim, in_folder("%s", name)), 0);
        expect_error("--config|tiny.json|--set|train.steps=1", 1, i % 2 ? "symbolic" : "hard link");
        expect_error("--config|tiny.json|--set|train.steps=1", 1, names[i / 2]);
        expect_kept("victim");
        cr_assert_eq(unlink(in_folder("%s", name)), 0);
    }
}

Test(hostile_folder, linked_checkpoints_are_neither_removed_nor_added_to) {
    cr_assert_eq(directory_create(in_folder("a/run"), &error), 0);
    cr_assert_eq(directory_create(in_folder("victim/.step-00000001.tmp"), &error), 0);
    write_file("victim/.step-00000001.tmp/x", "kept");
    cr_assert_eq(symlink("../../victim", in_folder("a/run/checkpoints")), 0);
    expect_error("--config|tiny.json|--set|train.steps=1", 1,
                 "a/run/checkpoints: it is a symbolic");
    expect_kept("victim/.step-00000001.tmp/x");
}

/* Links above the run directory are the user's own and are followed. */
Test(hostile_folder, the_run_folder_itself_may_be_a_link) {
    cr_assert_eq(directory_create(in_folder("scratch/run"), &error), 0);
    cr_assert_eq(directory_create(in_folder("a"), &error), 0);
    cr_assert_eq(symlink("../scratch/run", in_folder("a/run")), 0);
    expect_exit("--config|tiny.json|--set|train.steps=1", 0);
    cr_expect(exists("scratch/run/checkpoints/step-00000001"));
}

Test(hostile_folder, pipes_are_not_waited_for) {
    cr_assert_eq(directory_create(in_folder("a/run"), &error), 0);
    cr_assert_eq(mkfifo(in_folder("a/run/products.txt"), 0600), 0);
    expect_error("--config|tiny.json|--set|train.steps=1|--set|autotune=true", 1,
                 "products.txt: it is not a regular file");
    cr_assert_eq(directory_create(in_folder("m"), &error), 0);
    cr_assert_eq(mkfifo(in_folder("m/config.json"), 0600), 0);
    expect_error("--config|tiny.json|--set|model.init_from=m", 2,
                 "m/config.json: it is not a regular file");
}

Test(hostile_folder, control_characters_in_names_are_masked) {
    write_file("names.json", "{\"data\": {\"train\": \"\\u001b[2Jrun\\u202e\"}}");
    expect_error("--config|names.json", 2, "data.train holds a control character");
    cr_expect_null(strpbrk(error_text, "\033\xe2"), "%s", error_text);
}

/* A resume names the settings of the checkpoint that are others now, or wrong. */
Test(hostile_folder, settings_of_a_checkpoint_reach_no_terminal) {
    char hex[SHA256_HEX_MAX];
    size_t size;
    expect_exit("--config|tiny.json|--set|train.steps=2", 0);
    const char *manifest = "a/run/checkpoints/step-00000002/trainer.json";
    char *whole = read_whole(manifest, &size), *text = strdup(whole);
    free(whole);
    char *data = strstr(text, "tiny_train_*.bin");
    cr_assert_not_null(data);
    memcpy(data,
           "\xc2\x9b"
           "2J\xe2\x80\xae",
           7);
    char *end = strstr(text, ",\n  \"sha256\"");
    cr_assert_not_null(end);
    sha256_of(hex, text, (size_t)(end - text));
    char *place = strstr(end, ": \"") + 3;
    memcpy(place, hex, strlen(hex));
    write_file(manifest, text);
    free(text);
    expect_error("--config|tiny.json|--set|train.steps=3|--resume", 1,
                 "data.train holds a control character, shown as ? here: ?2J?");
    expect_no_controls(error_text);
    expect_no_controls(out_text);
}

Test(hostile_folder, names_of_a_resumed_folder_reach_no_terminal) {
    expect_exit("--config|tiny.json|--set|train.steps=2", 0);
    cr_assert_eq(rename(in_folder("a"), in_folder("a\033[2J")), 0);
    expect_error("--resume|a\033[2J/run", 2, "the path holds a control character");
    expect_no_controls(error_text);
    cr_assert_eq(rename(in_folder("a\033[2J"), in_folder("a")), 0);
    cr_assert_eq(rename(in_folder("a/run"), in_folder("a/\xe2\x80\xae")), 0);
    expect_error("--resume|a/\xe2\x80\xae", 2, "the run's name holds a control character");
    expect_no_controls(error_text);
}

Test(hostile_folder, logs_of_ranks_are_no_links) {
    struct config config;
    const struct ranks ranks = {.rank = 1, .size = 2};
    config_defaults(&config);
    snprintf(config.run_dir, sizeof config.run_dir, "%s", in_folder("a"));
    snprintf(config.name, sizeof config.name, "run");
    cr_assert_eq(directory_create(in_folder("a/run"), &error), 0);
    cr_assert_eq(directory_create(in_folder("victim"), &error), 0);
    write_file("victim/rank-00001.txt", "kept");
    cr_assert_eq(symlink("../../victim", in_folder("a/run/ranks")), 0);
    cr_expect_eq(rank_output_log(&ranks, &config, &error), -1);
    cr_assert_eq(unlink(in_folder("a/run/ranks")), 0);
    cr_assert_eq(directory_create(in_folder("a/run/ranks"), &error), 0);
    cr_assert_eq(symlink("../../../victim/rank-00001.txt", in_folder("a/run/ranks/rank-00001.txt")),
                 0);
    cr_expect_eq(rank_output_log(&ranks, &config, &error), -1);
    expect_kept("victim/rank-00001.txt");
}

/* The config of a run that somebody supplies names another folder: nothing is written there. */
Test(hostile_folder, a_resumed_run_writes_only_into_the_given_folder) {
    static const char *const paths[] = {"a/run", "a/run/", "a/run/checkpoints/step-00000003",
                                        "a/run/checkpoints/.."};
    char config[sizeof tiny_config + 100], arguments[200];
    snprintf(config, sizeof config, "%.*s, \"name\": \"victim\", \"run_dir\": \"b\"}",
             (int)(strrchr(tiny_config, '}') - tiny_config), tiny_config);
    char *end = strstr(config, "\"name\": \"run\", "), *dir = strstr(config, "\"run_dir\": \"a\"");
    memset(end, ' ', strlen("\"name\": \"run\", "));
    memset(dir - 2, ' ', strlen(", \"run_dir\": \"a\""));
    for (int i = 0; i < 4; i++) {
        expect_exit("--config|tiny.json|--set|train.steps=3", 0);
        write_file("a/run/config.json", config);
        cr_assert_eq(directory_create(in_folder("b/victim"), &error), 0);
        write_file("b/victim/config.json", "kept");
        snprintf(arguments, sizeof arguments, "--resume|%s|--set|train.steps=5", paths[i]);
        expect_exit(arguments, 0);
        expect_kept("b/victim/config.json");
        cr_expect_str_eq(names_in("b/victim", ""), "config.json");
        cr_expect(exists("a/run/checkpoints/step-00000005"), "%s", paths[i]);
        cr_assert_eq(directory_remove(in_folder("a"), &error), 0);
    }
}

/* A config.json two levels above a checkpoint is only that of its run in RUN/checkpoints. */
Test(hostile_folder, a_checkpoint_alone_takes_no_config_around_it) {
    expect_exit("--config|tiny.json|--set|train.steps=3", 0);
    cr_assert_eq(directory_create(in_folder("shared/x"), &error), 0);
    cr_assert_eq(
        rename(in_folder("a/run/checkpoints/step-00000003"), in_folder("shared/x/step-00000003")),
        0);
    write_file("shared/config.json", tiny_config);
    expect_error("--resume|shared/x/step-00000003", 2, "it is not in RUN/checkpoints");
    cr_expect_str_eq(names_in("shared", ""), "config.json x");
    expect_exit("--config|tiny.json|--resume|shared/x/step-00000003|--set|train.steps=4|--set|"
                "name=other",
                0);
    cr_expect(exists("a/other/checkpoints/step-00000004"));
}

static void use_compare(void) {
    const char *name = getenv("COMPARE") ? getenv("COMPARE") : "./compare";
    cr_assert_not_null(realpath(name, program), "no program %s: build it or set COMPARE", name);
}

Test(hostile_folder, names_and_keys_in_a_comparison_reach_no_terminal) {
    use_compare();
    make_run((struct run_recipe){.name = "x"});
    make_run((struct run_recipe){.name = "y", .more = ", \"\\u001b[2J\": \"\\u202e\\u009b\""});
    cr_assert_eq(rename(in_folder("y"), in_folder("y\033[31m")), 0);
    run("x|y\033[31m|--out|r");
    cr_expect_not_null(strstr(out_text, "[2J"), "%s", out_text);
    expect_no_controls(out_text);
    size_t size;
    char *text = read_whole("r/report.json", &size);
    for (char *at = text; (at = strchr(at, '\t'));) *at = ' '; /* between a key and its value */
    expect_no_controls(text);
    free(text);
}
