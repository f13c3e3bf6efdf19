/* Saving without memory for a snapshot or disk space for a checkpoint, and losses that are not
 * finite. The rest of saving is tested through ./train (test_program_resume.c) and by
 * scripts/torture.sh. */
#include <math.h>

#include "model/cli/saving.h"
#include "test/model/io/checkpoint_fixture.h"

TestSuite(saving, .init = make_folder, .fini = remove_folder);

/* A model of 50 T parameters can be planned only: no machine has memory for its snapshot. */
static void open_giant(struct subject *subject) {
    subject_config(&subject->config, CONFIG_PRECISION_FP32);
    subject->config.model.n_layer = 1000;
    subject->config.model.n_head = 512;
    subject->config.model.n_embd = 65536;
    subject->config.checkpoint.shard_gb = 1e5;
    subject_open_with(subject, TRAINER_PLANNED);
}

/* A model that fits no memory fits no disk either. */
Test(saving, a_disk_without_room_is_refused_before_anything_is_written) {
    struct subject giant = {0};
    struct checkpoint_writer writer;
    open_giant(&giant);
    giant.config.train.steps = 1;
    cr_expect_eq(saving_check_disk_space(&giant.trainer, folder, &error), -1);
    cr_expect_not_null(strstr(error.text, "GB of disk space are free, but 1 checkpoint more takes"),
                       "%s", error.text);
    checkpoint_writer_open(&writer, &giant.trainer, folder);
    cr_expect_eq(checkpoint_writer_begin(&writer, &error), -1);
    expect_text(error.text, "of disk space are free");
    checkpoint_writer_close(&writer);
    cr_expect_not(file_exists(in_folder("checkpoints")));
    giant.config.train.steps = 0; /* it has nothing to save */
    cr_expect_eq(saving_check_disk_space(&giant.trainer, folder, &error), 0);
    subject_close(&giant);
}

Test(saving, saves_in_the_foreground_without_memory_for_a_copy) {
    struct subject giant = {0};
    struct saving saving = {0};
    char *said;
    size_t size;
    cr_assert_not_null(freopen(in_folder("said"), "w", stderr));
    open_giant(&giant);
    giant.config.checkpoint.every = 5;
    saving_open(&saving, &giant.trainer, NULL, folder);
    fflush(stderr);
    cr_expect_null(saving.writer.snapshot.be);
    cr_assert_eq(file_read_all(&said, &size, in_folder("said"), 4096, &error), 0);
    unfold(said);
    cr_expect_eq(strncmp(said, "note: training waits while checkpoints are written: ", 52), 0, "%s",
                 said);
    cr_expect_not_null(strstr(said, "no memory of the host for a copy of "), "%s", said);
    cr_expect_eq(strchr(said, '\n')[1], '\0', "said once: %s", said);
    saving_close(&saving);
    free(said);
    subject_close(&giant);
}

/* The loss of steps and validations decides whether checkpoints are saved. */
Test(saving, only_a_step_ends_what_is_not_finite) {
    struct saving saving = {.warned = true};
    saving_watch_step(&saving, 2, 1);
    cr_expect_eq(saving.not_finite_since, 0);
    saving_watch_step(&saving, 3, NAN);
    saving_watch_step(&saving, 4, (double)INFINITY);
    cr_expect_eq(saving.not_finite_since, 3);
    saving_watch_validation(&saving, 4, 1);
    cr_expect_eq(saving.validated, 4);
    cr_expect_eq(saving.not_finite_since, 3, "a finite validation says nothing of the steps");
    saving_watch_step(&saving, 5, 1);
    cr_expect_eq(saving.not_finite_since, 0);
    saving_watch_validation(&saving, 5, NAN);
    cr_expect_eq(saving.not_finite_since, 5);
    saving_watch_step(&saving, 6, 1);
    cr_expect_eq(saving.not_finite_since, 0);
}
