#include "model/io/checkpoint_writer.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include <stb/stb_ds.h>

#include "data/util/note.h"
#include "data/util/progress.h"
#include "data/util/signals.h"
#include "kernels/collectives.h"
#include "model/io/adapter_config.h"
#include "model/io/amax_history.h"
#include "model/io/base_files.h"
#include "model/io/checkpoint_directory.h"
#include "model/io/checkpoint_manifest.h"
#include "model/io/huggingface_larger.h"

/* ---- the small files, by rank 0 */

/* Writes the files of the base: of a trainer without one, those that follow from its config. */
static int write_base(struct checkpoint_writer *writer, struct error *error) {
    const struct trainer *trainer = writer->trainer;
    const struct config *config = trainer->config;
    struct base_files none;
    if (!trainer->base && base_files_open(&none, config, trainer->tokenizer, NULL, NULL, error))
        return -1;
    const struct base_target target = {trainer->base ? trainer->base : &none, config,
                                       trainer->tokenizer, DTYPE_F32, writer->path};
    return base_files_write(&target, true, &writer->files, error);
}

/* Writes the amax history, which is the same on all ranks. */
static int write_history(struct checkpoint_writer *writer, struct error *error) {
    const struct quantization *q = &writer->trainer->model.quantization;
    int64_t count = quantization_count(q);
    size_t size = (size_t)(q->history_length * count) * sizeof(float);
    if (size == 0) return 0;
    float *live = writer->source ? NULL : malloc(size);
    if (live) backend_download(q->be, live, q->history, size);
    else if (!writer->source) return fail_memory(error, "the history of fp8");
    int status = amax_history_write(live ? live : writer->source->history, q->history_length, count,
                                    writer->path, &writer->files, error);
    free(live);
    return status;
}

/* ---- all files of a rank */

static uint64_t file_limit(const struct trainer *trainer) {
    return (uint64_t)(trainer->config->checkpoint.shard_gb * 1e9);
}

static int write_model(struct checkpoint_writer *writer, struct error *error) {
    const struct trainer *trainer = writer->trainer;
    const struct masters *copy = writer->source ? &writer->source->masters : NULL;
    if (checkpoint_write_weights(&trainer->model, copy,
                                 larger_model_module(trainer->config->model.init_from),
                                 writer->path, file_limit(trainer), &writer->files, error))
        return -1;
    if (write_history(writer, error)) return -1;
    if (shape_has_adapters(&trainer->model.shape) &&
        stored_file_print(&writer->files, writer->path, adapter_config_name, adapter_print_config,
                          trainer->config, error))
        return -1;
    return write_base(writer, error);
}

/* Writes trainer.json, which lists all other files, last. */
static int write_manifest(struct checkpoint_writer *writer, struct error *error) {
    char path[FILE_PATH_MAX];
    if (file_path_join(path, writer->path, checkpoint_manifest_name, error)) return -1;
    if (checkpoint_directory_check(writer->path, writer->files, error)) return -1;
    return checkpoint_write_manifest(writer->trainer, &writer->state, writer->files, path, error);
}

/* Completes the checkpoint, once all ranks have written their files. */
static int publish(struct checkpoint_writer *writer) {
    const struct ranks *ranks = writer->ranks;
    const struct config *config = writer->trainer->config;
    struct error *error = &writer->error, ignored;
    int64_t step = writer->state.step, keep = config->checkpoint.keep;
    int64_t best = config->checkpoint.keep_best ? writer->state.best.step : 0;
    int status = writer->status;
    moment_files_list(&writer->moments, &writer->files);
    if (status == 0 && ranks->rank == 0)
        status = tensor_division_write_index(&writer->moments.division, writer->path,
                                             &writer->files, error) ||
                         write_manifest(writer, error)
                     ? -1
                     : 0;
    status = ranks_agree(ranks, status, error);
    if (ranks->rank == 0 && status)
        directory_remove(writer->path, &ignored); /* frees space on a full disk */
    if (status) return -1;
    if (ranks->rank == 0) {
        status = checkpoint_directory_publish(writer->path, writer->run_directory, step, error);
        writer->warned = status == 0 &&
                         checkpoint_directory_prune(writer->run_directory, step, keep, best, error);
    }
    if (ranks_agree(ranks, status, error)) return -1;
    ranks_broadcast(ranks, writer->path, FILE_PATH_MAX);
    return 0;
}

/* ---- the copy, and the thread */

static const char *size_text(char text[32], double bytes) {
    snprintf(text, 32, bytes < 1e9 ? "%.1f MB" : "%.1f GB", bytes / (bytes < 1e9 ? 1e6 : 1e9));
    return text;
}

int checkpoint_check_disk_space(const struct trainer *trainer, const char *run_directory,
                                int64_t count, struct error *error) {
    const struct model *model = &trainer->model;
    double moments =
        (double)shards_moment_bytes(&trainer->optimizer.exchange.shards, model->precision.moments);
    double wanted = (double)count * ((double)model->trained_count * sizeof(float) + moments);
    struct statvfs disk;
    char path[FILE_PATH_MAX], needed[32], available[32];
    if (file_path_join(path, run_directory, "checkpoints", error)) return -1;
    if (statvfs(path, &disk) && statvfs(run_directory, &disk))
        return 0; /* writing will report the error */
    double available_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    if (disk.f_blocks == 0 || available_bytes >= wanted) return 0;
    return fail(error,
                "%.400s: %s of disk space are free, but %" PRId64 " checkpoint%s more take%s %s\n"
                "free space, lower checkpoint.keep, or choose another run_dir",
                run_directory, size_text(available, available_bytes), count, count > 1 ? "s" : "",
                count > 1 ? "" : "s", size_text(needed, wanted));
}

void checkpoint_writer_open(struct checkpoint_writer *writer, struct trainer *trainer,
                            const char *run_directory) {
    *writer = (struct checkpoint_writer){.trainer = trainer,
                                         .ranks = trainer->be->collectives->ranks,
                                         .run_directory = run_directory,
                                         .notes = stderr};
}

int checkpoint_writer_open_snapshot(struct checkpoint_writer *writer, struct error *error) {
    const struct trainer *trainer = writer->trainer;
    struct moment_files files;
    int status = moment_files_open(&files, &trainer->optimizer, file_limit(trainer), error);
    if (status == 0)
        status = snapshot_open(&writer->snapshot, trainer, moment_files_bytes(&files), error);
    moment_files_close(&files);
    if (ranks_agree(writer->ranks, status, error) == 0) return 0;
    snapshot_close(&writer->snapshot);
    return RESULT_NONE;
}

static void clear(struct checkpoint_writer *writer) {
    if (writer->threaded) pthread_join(writer->thread, NULL);
    writer->threaded = false;
    moment_files_close(&writer->moments);
    arrfree(writer->files);
    writer->phase = CHECKPOINT_NONE;
}

void checkpoint_writer_close(struct checkpoint_writer *writer) {
    clear(writer);
    snapshot_close(&writer->snapshot);
}

/* Rank 0 creates the directory and sends its path; all ranks write there. */
static int open_directory(struct checkpoint_writer *writer, struct error *error) {
    const struct trainer *trainer = writer->trainer;
    int status =
        moment_files_open(&writer->moments, &trainer->optimizer, file_limit(trainer), error);
    if (status == 0 && writer->ranks->rank == 0 &&
        (checkpoint_check_disk_space(trainer, writer->run_directory, 1, error) ||
         checkpoint_directory_begin(writer->path, writer->run_directory, writer->state.step,
                                    error)))
        status = -1;
    if (ranks_agree(writer->ranks, status, error)) return -1;
    ranks_broadcast(writer->ranks, writer->path, FILE_PATH_MAX);
    return 0;
}

static int check_backend(const struct checkpoint_writer *writer, struct error *error) {
    const struct error *failure = &writer->trainer->be->failure;
    return failure->text[0] ? fail(error, "%s", failure->text) : 0;
}

/* Writes this rank's files. With a single rank it also publishes the checkpoint. */
static void *write_files(void *argument) {
    struct checkpoint_writer *writer = argument;
    double began = progress_clock();
    if (writer->status == 0 && writer->ranks->rank == 0)
        writer->status = write_model(writer, &writer->error);
    writer->status = moment_files_write(&writer->moments, writer->source, writer->path,
                                        writer->status, &writer->error);
    if (writer->status == 0 && !writer->source)
        writer->status = check_backend(writer, &writer->error);
    if (writer->ranks->size == 1) writer->status = publish(writer);
    writer->seconds = progress_clock() - began;
    atomic_store(&writer->ended, true);
    return NULL;
}

/* Starts writing once the copy, if any, is complete. If no thread can be created, the calling
 * thread writes. */
static void start_writing(struct checkpoint_writer *writer, bool wait) {
    if (writer->phase != CHECKPOINT_COPYING) return;
    if (writer->source && !snapshot_ready(writer->source, wait)) return;
    writer->phase = CHECKPOINT_WRITING;
    writer->status = check_backend(writer, &writer->error);
    writer->threaded =
        writer->source && signals_start_thread(&writer->thread, write_files, writer) == 0;
    if (!writer->threaded) write_files(writer);
}

int checkpoint_writer_begin(struct checkpoint_writer *writer, struct error *error) {
    struct trainer *trainer = writer->trainer;
    assert(writer->phase == CHECKPOINT_NONE);
    writer->state = trainer->state;
    writer->source = writer->snapshot.be ? &writer->snapshot : NULL;
    writer->warned = false;
    if (open_directory(writer, error)) {
        clear(writer);
        return -1;
    }
    /* All ranks are here now: a transfer that waited for a rank that samples would seem to hang. */
    exchange_masters(&trainer->optimizer.exchange);
    if (writer->source) {
        snapshot_begin(&writer->snapshot, trainer);
        moment_files_copy(&writer->moments, &writer->snapshot);
        snapshot_take(&writer->snapshot);
    }
    atomic_store(&writer->ended, false);
    writer->phase = CHECKPOINT_COPYING;
    start_writing(writer, false);
    return 0;
}

bool checkpoint_writer_busy(struct checkpoint_writer *writer) {
    start_writing(writer, false);
    return writer->phase != CHECKPOINT_NONE && !atomic_load(&writer->ended);
}

int checkpoint_writer_end(struct checkpoint_writer *writer, char path[FILE_PATH_MAX],
                          struct error *error) {
    start_writing(writer, true);
    if (writer->phase == CHECKPOINT_NONE) return RESULT_NONE;
    if (writer->threaded) pthread_join(writer->thread, NULL);
    writer->threaded = false;
    if (writer->ranks->size > 1) writer->status = publish(writer);
    memcpy(path, writer->path, FILE_PATH_MAX);
    if (writer->status) *error = writer->error;
    else if (writer->warned) note_error(writer->notes, "warning", &writer->error);
    clear(writer);
    return writer->status;
}
