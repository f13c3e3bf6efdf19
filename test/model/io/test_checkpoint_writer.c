/* Checkpoints written while training continues equal those that training waits for. */
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/io/checkpoint_writer.h"
#include "test/model/io/checkpoint_fixture.h"

static char path[FILE_PATH_MAX];

TestSuite(checkpoint_writer, .init = make_folder, .fini = remove_folder);

static const char *run_of(const char *name) {
    static char paths[2][256];
    static int turn;
    char *run = paths[turn++ % 2];
    snprintf(run, sizeof *paths, "%s/%s", folder, name);
    return run;
}

static void open_writer(struct checkpoint_writer *writer, struct subject *subject,
                        const char *run) {
    checkpoint_writer_open(writer, &subject->trainer, run);
    SUCCEEDS(checkpoint_writer_open_snapshot(writer, &error));
}

static void expect_same_file(const char *left, const char *right, const char *name) {
    size_t sizes[2];
    char *texts[2] = {read_text(left, name, &sizes[0]), read_text(right, name, &sizes[1])};
    cr_assert_eq(sizes[0], sizes[1], "%s", name);
    cr_expect_eq(memcmp(texts[0], texts[1], sizes[0]), 0, "%s differs", name);
    free(texts[0]);
    free(texts[1]);
}

Test(checkpoint_writer, writes_the_same_files) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors",
                                        "config.json",       "generation_config.json",
                                        "vocab.json",        "trainer.json"};
    static const enum config_precision precisions[] = {CONFIG_PRECISION_FP32, CONFIG_PRECISION_BF16,
                                                       CONFIG_PRECISION_FP16};
    for (size_t i = 0; i < COUNT(precisions); i++) {
        char waited[FILE_PATH_MAX];
        struct subject subject = {0};
        struct checkpoint_writer writer;
        subject_open_tiny(&subject, precisions[i]);
        subject.trainer.tokenizer = toy_tokenizer();
        open_writer(&writer, &subject, run_of("background"));
        for (int64_t step = 5; step < 8; step++) {
            save_step(&subject, run_of("waited"), step, waited);
            SUCCEEDS(checkpoint_writer_begin(&writer, &error));
            cr_expect_eq(writer.phase, CHECKPOINT_WRITING);
            subject_fill(&subject, 99);
            SUCCEEDS(checkpoint_writer_end(&writer, path, &error));
            cr_expect_eq(checkpoint_writer_end(&writer, path, &error), RESULT_NONE, "told twice");
            for (size_t k = 0; k < COUNT(names); k++) expect_same_file(path, waited, names[k]);
        }
        cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), 0, "%s", error.text);
        checkpoint_writer_close(&writer);
        subject_close(&subject);
    }
}

/* Writing finishes even if no caller waits for it. */
Test(checkpoint_writer, finishes_the_last_file) {
    struct subject subject = {0};
    struct checkpoint_writer writer;
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    open_writer(&writer, &subject, folder);
    cr_expect_eq(checkpoint_writer_end(&writer, path, &error), RESULT_NONE, "there is none");
    subject_fill(&subject, 3);
    SUCCEEDS(checkpoint_writer_begin(&writer, &error));
    for (int tries = 0; checkpoint_writer_busy(&writer) && tries < 6000; tries++) usleep(10000);
    cr_expect_not(checkpoint_writer_busy(&writer));
    cr_expect_eq(checkpoint_writer_end(&writer, path, &error), 0, "%s", error.text);
    cr_expect_str_eq(path, in_checkpoints(folder, "step-00000003"));
    checkpoint_writer_close(&writer);
    subject_close(&subject);
}

/* Closing during a write waits for it: the checkpoint is complete. */
Test(checkpoint_writer, closing_waits) {
    struct subject subject = {0};
    struct checkpoint_writer writer;
    subject_open_tiny(&subject, CONFIG_PRECISION_BF16);
    open_writer(&writer, &subject, folder);
    subject_fill(&subject, 4);
    SUCCEEDS(checkpoint_writer_begin(&writer, &error));
    checkpoint_writer_close(&writer);
    expect_newest(folder, 4);
    subject_close(&subject);
}

Test(checkpoint_writer, a_full_disk_is_reported_and_the_next_one_is_written) {
    struct subject subject = {0};
    struct checkpoint_writer writer;
    struct rlimit limit, before;
    signal(SIGXFSZ, SIG_IGN);
    subject_open_tiny(&subject, CONFIG_PRECISION_FP32);
    open_writer(&writer, &subject, folder);
    save_step(&subject, folder, 1, path);
    getrlimit(RLIMIT_FSIZE, &before);
    for (int64_t step = 2; step < 4; step++) {
        limit = (struct rlimit){step == 2 ? 20000 : before.rlim_cur, before.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        subject_fill(&subject, step);
        SUCCEEDS(checkpoint_writer_begin(&writer, &error));
        int status = checkpoint_writer_end(&writer, path, &error);
        cr_expect_eq(status, step == 2 ? RESULT_FAILED : 0, "%s", error.text);
        if (step == 2) expect_text(error.text, "disk full");
        expect_newest(folder, step == 2 ? 1 : 3);
    }
    checkpoint_writer_close(&writer);
    subject_close(&subject);
}
