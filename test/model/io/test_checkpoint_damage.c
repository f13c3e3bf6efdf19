#include "data/util/files.h"
#include "model/io/checkpoint_directory.h"
#include "test/model/io/checkpoint_fixture.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[FILE_PATH_MAX];
static const char *const files[] = {
    "model.safetensors", "config.json",           "generation_config.json", "vocab.json",
    "merges.txt",        "tokenizer_config.json", "optimizer.safetensors",  "trainer.json"};

TestSuite(checkpoint_damage, .init = make_folder, .fini = remove_folder);

static const char *file_of(const char *name) {
    static char file[FILE_PATH_MAX + 64];
    snprintf(file, sizeof file, "%s/%s", path, name);
    return file;
}

static void put_bytes(const char *file, const void *bytes, size_t size) {
    FILE *out = fopen(file, "wb");
    cr_assert_not_null(out);
    cr_assert_eq(fwrite(bytes, 1, size, out), size);
    cr_assert_eq(fclose(out), 0);
}

static void expect_damaged(const char *name, const char *reason) {
    error.text[0] = '\0';
    cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), -1, "%s: damage unseen", name);
    expect_text(error.text, name);
    expect_text(error.text, reason);
}

/* Inverts one bit; a second call restores it. */
static void flip(int file, off_t at) {
    uint8_t byte;
    cr_assert_eq(pread(file, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << at % 8);
    cr_assert_eq(pwrite(file, &byte, 1, at), 1);
}

static void expect_damage_shows(const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        int file = open(file_of(names[i]), O_RDWR);
        cr_assert_geq(file, 0);
        off_t size = lseek(file, 0, SEEK_END);
        /* All of trainer.json, whose hash no other file holds. */
        off_t stride = strcmp(names[i], "trainer.json") == 0 || size < 7 ? 1 : size / 7;
        for (off_t at = 0; at < size; at += stride) {
            flip(file, at);
            expect_damaged(names[i], "");
            flip(file, at);
        }
        close(file);
        SUCCEEDS(checkpoint_verify(path, CHECKPOINT_WHOLE, &error));
    }
}

Test(checkpoint_damage, any_changed_byte_is_detected) {
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP16);
    subject.trainer.tokenizer = toy_tokenizer();
    save_step(&subject, folder, 5, path);
    expect_damage_shows(files, COUNT(files));
    subject_close(&subject);
}

/* Loading weights alone does not need the optimizer's files. */
Test(checkpoint_damage, of_the_optimizer_does_not_keep_weights_from_being_read) {
    struct subject subject;
    char found[FILE_PATH_MAX];
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 5, path);
    cr_assert_eq(truncate(file_of("optimizer.safetensors"), 9), 0);
    expect_damaged("optimizer.safetensors", "it has 9 bytes");
    cr_expect_eq(
        checkpoint_locate(found, folder, CHECKPOINT_WHOLE, CHECKPOINT_KEPT, stderr, &error), -1);
    cr_expect_eq(checkpoint_locate(found, path, CHECKPOINT_WHOLE, CHECKPOINT_KEPT, stderr, &error),
                 -1);
    cr_assert_eq(unlink(file_of("optimizer.safetensors")), 0);
    const char *const places[] = {folder, path};
    for (int i = 0; i < 2; i++) {
        cr_expect_eq(checkpoint_locate(found, places[i], CHECKPOINT_WEIGHTS, CHECKPOINT_KEPT,
                                       stderr, &error),
                     0, "%s", error.text);
        cr_expect_str_eq(found, path);
    }
    cr_expect_eq(checkpoint_load_weights(&subject.trainer.model, &subject.config, found, &error), 0,
                 "%s", error.text);
    int file = open(file_of("model.safetensors"), O_RDWR);
    cr_assert_geq(file, 0);
    flip(file, lseek(file, 0, SEEK_END) - 1);
    close(file);
    for (int i = 0; i < 2; i++)
        cr_expect_eq(checkpoint_locate(found, places[i], CHECKPOINT_WEIGHTS, CHECKPOINT_KEPT,
                                       stderr, &error),
                     -1);
    strcpy(subject.config.model.init_from, path);
    cr_expect_eq(checkpoint_load_initial(&subject.trainer.model, &subject.config, NULL, &error),
                 -1);
    expect_text(error.text, "model.safetensors: it is damaged");
    subject_close(&subject);
}

Test(checkpoint_damage, any_changed_byte_of_several_files_is_detected) {
    static const char *const shards[] = {
        "model-00001-of-00002.safetensors",     "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",         "optimizer-00001-of-00003.safetensors",
        "optimizer-00002-of-00003.safetensors", "optimizer-00003-of-00003.safetensors",
        "optimizer.safetensors.index.json",     "trainer.json"};
    struct subject subject;
    subject_config(&subject.config, CONFIG_PRECISION_FP32);
    subject.config.checkpoint.shard_gb = 6e-5;
    subject_open(&subject);
    save_step(&subject, folder, 5, path);
    expect_damage_shows(shards, COUNT(shards));
    for (size_t i = 0; i < COUNT(shards); i++) {
        const char *away = in_folder("away");
        cr_assert_eq(rename(file_of(shards[i]), away), 0);
        expect_damaged(shards[i], "");
        cr_assert_eq(rename(away, file_of(shards[i])), 0);
    }
    subject_close(&subject);
}

Test(checkpoint_damage, the_newest_valid_one_is_found_and_the_others_named) {
    struct subject subject;
    char *warnings, victims[3][FILE_PATH_MAX];
    subject_config(&subject.config, CONFIG_PRECISION_FP32);
    subject.config.checkpoint.keep = 9;
    subject_open(&subject);
    save_step(&subject, folder, 10, path);
    save_step(&subject, folder, 20, path);
    for (int i = 0; i < 3; i++) save_step(&subject, folder, 30 + 10 * i, victims[i]);
    strcpy(path, victims[0]);
    cr_assert_eq(truncate(file_of("optimizer.safetensors"), 1000), 0);
    strcpy(path, victims[1]);
    cr_assert_eq(unlink(file_of("model.safetensors")), 0);
    strcpy(path, victims[2]);
    cr_assert_eq(truncate(file_of("trainer.json"), 0), 0);
    mkdir(in_checkpoints(folder, "step-00000060"), 0755);
    put_bytes(in_checkpoints(folder, "step-00000070"), "", 0);
    mkdir(in_checkpoints(folder, ".step-00000080.tmp"), 0755);
    mkdir(in_checkpoints(folder, ".step-00000015.tmp"), 0755);

    cr_expect_eq(newest_step(folder, &warnings), 20);
    expect_text(warnings, "step-00000030/optimizer.safetensors: it has 1000 bytes, but had ");
    expect_text(warnings, "step-00000040/model.safetensors: it is missing\n");
    expect_text(warnings, "step-00000050/trainer.json");
    expect_text(warnings, "step-00000060/trainer.json");
    expect_text(warnings, "step-00000070/trainer.json");
    expect_text(warnings, ".step-00000080.tmp: its saving was interrupted\n");
    int lines = 0;
    for (const char *c = warnings; *c; c++) lines += *c == '\n';
    cr_expect_eq(lines, 6, "%s", warnings);
    free(warnings);
    subject_close(&subject);
}

Test(checkpoint_damage, leftovers_of_killed_writers_never_count_and_go) {
    struct subject subject;
    char *warnings;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 20, path);
    /* All files are complete, but the directory was not renamed, so the save had not finished. */
    cr_assert_eq(rename(path, in_checkpoints(folder, ".step-00000020.tmp")), 0);
    save_step(&subject, folder, 10, path);
    cr_expect_not(file_exists(in_checkpoints(folder, ".step-00000020.tmp")));
    mkdir(in_checkpoints(folder, ".step-00000030.tmp"), 0755);
    put_bytes(in_checkpoints(folder, ".step-00000030.tmp/model.safetensors.tmp"), "x", 1);
    mkdir(in_checkpoints(folder, ".step-00000005.old"), 0755);
    cr_expect_eq(newest_step(folder, &warnings), 10);
    free(warnings);
    save_step(&subject, folder, 30, path);
    expect_newest(folder, 30);
    cr_expect_not(file_exists(in_checkpoints(folder, "step-00000030/model.safetensors.tmp")));
    cr_expect_not(file_exists(in_checkpoints(folder, ".step-00000005.old")));
    subject_close(&subject);
}

Test(checkpoint_damage, the_step_in_the_name_must_be_that_inside) {
    struct subject subject;
    char *warnings;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 10, path);
    cr_assert_eq(rename(path, in_checkpoints(folder, "step-00000011")), 0);
    cr_expect_eq(newest_step(folder, &warnings), -1);
    expect_text(warnings, "step 11");
    expect_text(warnings, "step 10");
    free(warnings);
    cr_assert_eq(rename(in_checkpoints(folder, "step-00000011"), in_checkpoints(folder, "best")),
                 0);
    cr_expect_eq(checkpoint_verify(in_checkpoints(folder, "best"), CHECKPOINT_WHOLE, &error), 0,
                 "%s", error.text);
    subject_close(&subject);
}

Test(checkpoint_damage, odd_texts_are_refused) {
    static const struct {
        const char *text;
        size_t size;
        const char *reason;
    } odd[] = {
#define ODD(text, reason) {text, sizeof(text) - 1, reason}
        ODD("", ""),
        ODD("{", ""),
        ODD("[1]", "no JSON object"),
        ODD("{\"format\": \"\xff\"}", ""),
        ODD("{\"format\": 1}\0", ""),
        ODD("{\"format\": 1} {}", ""),
        ODD("[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", ""),
        ODD("{}", "\"format\""),
        ODD("{\"format\": 1.5}", "\"format\""),
        ODD("{\"format\": 1, \"format\": 1}", "\"format\""),
        ODD("{\"format\": 0}", "format is 0"),
        ODD("{\"format\": 6}", "format is 6"),
        ODD("{\"format\": 1e300}", "\"format\""),
        ODD("{\"format\": 1, \"step\": 5}", "changed after it was written"),
#undef ODD
    };
    struct subject subject;
    struct config config;
    subject_open_saved(&subject, CONFIG_PRECISION_FP32, 5, path);
    for (size_t i = 0; i < COUNT(odd); i++) {
        put_bytes(file_of("trainer.json"), odd[i].text, odd[i].size);
        expect_damaged("trainer.json", odd[i].reason);
        cr_expect_eq(checkpoint_load(&subject.trainer, path, stderr, &error), -1);
        cr_expect_eq(checkpoint_config(&config, path, &error), -1);
    }
    subject_close(&subject);
}

/* A save that cannot work must report it and leave existing checkpoints unchanged. */
Test(checkpoint_damage, a_full_disk_loses_only_the_new_one) {
    struct subject subject;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject.trainer.tokenizer = toy_tokenizer();
    save_step(&subject, folder, 10, path);
    signal(SIGXFSZ, SIG_IGN);
    for (rlim_t limit = 0; limit < 200000; limit += 29989) {
        struct rlimit few = {limit, RLIM_INFINITY}, any = {RLIM_INFINITY, RLIM_INFINITY};
        subject_fill(&subject, 20);
        error.text[0] = '\0';
        setrlimit(RLIMIT_FSIZE, &few);
        int status = checkpoint_save(&subject.trainer, folder, path, &error);
        setrlimit(RLIMIT_FSIZE, &any);
        cr_expect_eq(status, -1, "saved in %lu bytes a file", (unsigned long)limit);
        expect_text(error.text, "disk full");
        cr_expect_not(file_exists(in_checkpoints(folder, ".step-00000020.tmp")));
        expect_newest(folder, 10);
    }
    subject_close(&subject);
}

Test(checkpoint_damage, paths_that_cannot_be_written_are_named) {
    struct subject subject;
    const char *place = in_folder("file");
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    subject_fill(&subject, 1);
    put_bytes(place, "", 0);
    cr_expect_eq(checkpoint_save(&subject.trainer, place, path, &error), -1);
    expect_text(error.text, place);
    cr_expect_eq(checkpoint_save(&subject.trainer, "/proc/mantissa", path, &error), -1);
    expect_text(error.text, "/proc/mantissa");
    char *deep = malloc(FILE_PATH_MAX);
    memset(deep, 'x', FILE_PATH_MAX - 1);
    deep[FILE_PATH_MAX - 1] = '\0';
    cr_expect_eq(checkpoint_save(&subject.trainer, deep, path, &error), -1);
    free(deep);
    cr_expect_eq(checkpoint_newest(path, place, CHECKPOINT_WHOLE, stderr, &error), -1);
    subject_close(&subject);
}

/* Saves forever, and reports each step that is safe. */
static void save_until_killed(struct subject *subject, int64_t step, int report) {
    char saved[FILE_PATH_MAX];
    struct error reason;
    for (;; step++) {
        subject_fill(subject, step);
        if (checkpoint_save(&subject->trainer, folder, saved, &reason)) _exit(1);
        if (write(report, &step, sizeof step) != sizeof step) _exit(1);
    }
}

static int64_t save_and_kill(struct subject *subject, int64_t first, useconds_t microseconds) {
    int ends[2], status;
    int64_t safe = -1, step;
    cr_assert_eq(pipe(ends), 0);
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) save_until_killed(subject, first, ends[1]);
    close(ends[1]);
    usleep(microseconds);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the child failed by itself");
    while (read(ends[0], &step, sizeof step) == sizeof step) safe = step;
    close(ends[0]);
    return safe;
}

/* After a kill, the newest checkpoint must be complete, of step `safe` or the next. Returns its
 * step, and whether a save was cut short. */
static int64_t check_after_kill(struct subject *expected, struct subject *loaded, int64_t safe,
                                bool *cut_short) {
    char *warnings, name[64];
    int64_t found = newest_step(folder, &warnings);
    cr_assert_geq(found, safe, "step %lld was safe, but %lld is found: %s", (long long)safe,
                  (long long)found, warnings);
    cr_assert_leq(found, safe + 1);
    cr_expect_null(strstr(warnings, "/step-"), "only .tmp may be incomplete: %s", warnings);
    *cut_short = warnings[0] != '\0';
    free(warnings);
    if (found < 0) return found;
    snprintf(name, sizeof name, "step-%08lld", (long long)found);
    SUCCEEDS(checkpoint_load(&loaded->trainer, in_checkpoints(folder, name), stderr, &error));
    subject_fill(expected, found);
    expect_same(expected, loaded);
    return found;
}

/* The duration of a save depends on the disk, so the time until the kill adapts to the results. */
static void expect_kills_do_no_harm(double shard_gb) {
    struct subject writer, loaded;
    int64_t newest = -1;
    int finished = 0, interrupted = 0;
    double window = 20000; /* microseconds */
    subject_config(&writer.config, CONFIG_PRECISION_FP32);
    writer.config.checkpoint.keep = 1; /* the old one stays until the new one is safe */
    writer.config.checkpoint.shard_gb = shard_gb;
    subject_open(&writer);
    subject_open_tiny(&loaded, CONFIG_PRECISION_FP32);
    for (uint64_t round = 0; round < 200 && (finished < 8 || interrupted < 12); round++) {
        bool cut_short;
        int64_t safe =
            save_and_kill(&writer, newest + 1, (useconds_t)(window * random_uniform(3, 0, round)));
        int64_t found =
            check_after_kill(&writer, &loaded, safe > newest ? safe : newest, &cut_short);
        window *= found > newest ? 0.8 : 1.3;
        finished += found > newest;
        interrupted += cut_short;
        newest = found;
    }
    cr_expect_geq(finished, 8, "few saves were ever complete: %d", finished);
    cr_expect_geq(interrupted, 12, "few saves were ever interrupted: %d", interrupted);
    subject_close(&writer);
    subject_close(&loaded);
}

Test(checkpoint_damage, a_kill_at_any_moment_leaves_the_newest_one_whole, .timeout = 120) {
    expect_kills_do_no_harm(5);
}

Test(checkpoint_damage, a_kill_between_the_files_leaves_the_newest_one_whole, .timeout = 120) {
    expect_kills_do_no_harm(2e-5);
}
