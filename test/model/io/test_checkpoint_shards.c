/* Checkpoints whose tensors are in several files. */
#include "data/util/files.h"
#include "test/model/io/checkpoint_fixture.h"

#include <unistd.h>

#include "model/io/checkpoint_manifest.h"
#include "test/model/families.h"

static char path[FILE_PATH_MAX];

TestSuite(checkpoint_shards, .init = make_folder, .fini = remove_folder);

/* Weights of some 80 KB and moments of twice that, in files of at most 30 KB, which holds the
 * largest tensor. */
static void open_sharded(struct subject *subject, int family) {
    subject_config(&subject->config, CONFIG_PRECISION_BF16);
    set_family(&subject->config, family);
    subject->config.checkpoint.shard_gb = 3e-5;
    subject_open(subject);
}

Test(checkpoint_shards, large_ones_are_in_several_files) {
    for (int family = 0; family < FAMILIES; family++) {
        struct subject saved, loaded;
        struct checkpoint_manifest manifest;
        size_t size;
        open_sharded(&saved, family);
        open_sharded(&loaded, family);
        save_step(&saved, folder, 1000 + family, path);
        cr_expect_not(file_exists_in(path, "model.safetensors"));
        cr_expect_not(file_exists_in(path, "optimizer.safetensors"));
        char *text = read_text(path, "trainer.json", &size);
        expect_text(text, "\"format\": 3,");
        expect_text(text, "\"model.safetensors.index.json\": {");
        expect_text(text, "\"optimizer.safetensors.index.json\": {");
        expect_text(text, "\"model-00002-of-000");
        expect_text(text, "\"optimizer-00002-of-000");
        free(text);
        char manifest_path[FILE_PATH_MAX];
        SUCCEEDS(file_path_join(manifest_path, path, "trainer.json", &error));
        SUCCEEDS(checkpoint_manifest_open(&manifest, manifest_path, &error));
        for (ptrdiff_t i = 0; i < arrlen(manifest.files); i++)
            cr_expect_lt(manifest.files[i].bytes, 33000, "%s", manifest.files[i].name);
        checkpoint_manifest_close(&manifest);
        SUCCEEDS(checkpoint_load(&loaded.trainer, path, stderr, &error));
        expect_same(&saved, &loaded);
        subject_close(&loaded);
        open_sharded(&loaded, family);
        SUCCEEDS(checkpoint_load_weights(&loaded.trainer.model, &loaded.config, path, &error));
        expect_same_masters(&saved.trainer.model, &loaded.trainer.model);
        subject_close(&saved);
        subject_close(&loaded);
    }
}

/* Otherwise it would be read instead of the files listed in trainer.json. */
Test(checkpoint_shards, one_file_beside_several_is_refused) {
    static const char *const names[] = {"model.safetensors", "optimizer.safetensors"};
    struct subject subject;
    open_sharded(&subject, 0);
    save_step(&subject, folder, 7, path);
    for (int i = 0; i < 2; i++) {
        char file[FILE_PATH_MAX];
        SUCCEEDS(file_path_join(file, path, names[i], &error));
        SUCCEEDS(file_write_whole(file, "x", 1, NULL, &error));
        cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), -1);
        expect_text(error.text, names[i]);
        expect_text(error.text, "is no part of this checkpoint");
        cr_assert_eq(unlink(file), 0);
        cr_expect_eq(checkpoint_verify(path, CHECKPOINT_WHOLE, &error), 0, "%s", error.text);
    }
    subject_close(&subject);
}
