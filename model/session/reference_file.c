#include "model/session/reference_file.h"

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/pairs.h"
#include "data/util/files.h"
#include "data/util/note.h"
#include "data/util/printed.h"
#include "data/util/progress.h"
#include "data/util/sha256.h"
#include "model/session/model_hash.h"
#include "model/task/reference.h"

struct header {
    char magic[4];
    uint32_t version;
    uint64_t pairs;
    char data[SHA256_HEX_MAX - 1], model[SHA256_HEX_MAX - 1], values[SHA256_HEX_MAX - 1];
};
_Static_assert(sizeof(struct header) == 208, "the header is written as it is");

/* Hashes what the values depend on besides the model's weights: the tokens that the pairs of a text
 * use, the mask of their targets, and if the reference has adapters. */
static int hash_data(char hex[SHA256_HEX_MAX], const struct loader *loader, bool base,
                     struct error *error) {
    struct sha256 hash;
    int32_t *tokens = NULL; /* stb_ds array */
    int status = 0;
    sha256_begin(&hash);
    sha256_add(&hash, &base, sizeof base);
    for (size_t i = 0; status == 0 && i < arrlenu(loader->packing.pieces); i++) {
        const struct span span = loader_span_of(loader, i);
        arrsetlen(tokens, span.length + 1);
        status = token_shard_read(span.shard, tokens, span.start, span.length + 1, error);
        for (size_t t = 1; t <= span.length; t++) /* tokens are not negative */
            if (!token_mask_in_loss(&span.shard->mask, span.start + t)) tokens[t] = ~tokens[t];
        sha256_add(&hash, &span.length, sizeof span.length);
        sha256_add(&hash, tokens, (span.length + 1) * sizeof *tokens);
    }
    sha256_end(hex, &hash);
    arrfree(tokens);
    return status;
}

/* Hashes the reference model. */
static int hash_reference(char hex[SHA256_HEX_MAX], const struct session *session,
                          struct error *error) {
    const struct config *config = &session->config;
    const bool base = reference_is_base(config);
    const char *directory = base ? ""
                            : config->adapter.type != CONFIG_ADAPTER_NONE
                                ? config->adapter.init_from
                                : config->model.init_from;
    return model_hash(hex, &session->trainer.model, config, directory, error);
}

/* Reads the values if the file is intact and has those of the header; otherwise returns
 * RESULT_NONE. The file of a run that has begun may be of any model. */
static int read_values(struct loader *loader, const char *path, const struct header *wanted,
                       bool begun, struct error *error) {
    struct error ignored;
    char *bytes;
    size_t size;
    const size_t values = PREFERENCE_SIDES * (size_t)wanted->pairs * sizeof(float);
    if (!file_exists(path)) return RESULT_NONE;
    if (file_read_all(&bytes, &size, path, sizeof *wanted + values, &ignored)) return RESULT_NONE;
    const struct header *found = (const struct header *)bytes;
    const size_t compared = offsetof(struct header, model) + (begun ? 0 : sizeof wanted->model);
    char hex[SHA256_HEX_MAX];
    int status = RESULT_NONE;
    bool same = size == sizeof *wanted + values && memcmp(found, wanted, compared) == 0;
    if (same) sha256_of(hex, bytes + sizeof *wanted, values);
    if (same && memcmp(hex, found->values, sizeof found->values) == 0) {
        loader->packing.reference = malloc(values);
        status =
            loader->packing.reference ? 0 : fail_memory(error, "the reference's log-probabilities");
        if (status == 0) memcpy(loader->packing.reference, bytes + sizeof *wanted, values);
    }
    free(bytes);
    return status;
}

static int write_values(const struct loader *loader, const char *path, struct header *header,
                        struct error *error) {
    struct file_writer writer;
    const size_t values = PREFERENCE_SIDES * (size_t)header->pairs * sizeof(float);
    char hex[SHA256_HEX_MAX];
    sha256_of(hex, loader->packing.reference, values);
    memcpy(header->values, hex, sizeof header->values);
    return file_writer_open(&writer, path, error) ||
                   file_writer_put(&writer, header, sizeof *header, error) ||
                   file_writer_put(&writer, loader->packing.reference, values, error) ||
                   file_writer_commit(&writer, error)
               ? -1
               : 0;
}

/* Rank 0 reads the file, and all ranks get its values. Returns RESULT_NONE if it has none. */
static int read_for_all(struct session *session, struct loader *loader, const char *path,
                        struct header *header, struct error *error) {
    const struct ranks *ranks = session->ranks;
    const size_t bytes = arrlenu(loader->packing.pieces) * sizeof(float);
    char data[SHA256_HEX_MAX] = "", model[SHA256_HEX_MAX] = "";
    const bool begun = session->trainer.state.step > 0;
    int status = 0;
    if (ranks->rank == 0) {
        *header = (struct header){"MREF", 2, packing_units(&loader->packing), {0}, {0}, {0}};
        status = hash_data(data, loader, reference_is_base(&session->config), error) ||
                         (!begun && hash_reference(model, session, error))
                     ? -1
                     : 0;
        memcpy(header->data, data, sizeof header->data);
        memcpy(header->model, model, sizeof header->model);
        if (status == 0) status = read_values(loader, path, header, begun, error);
    }
    ranks_broadcast(ranks, &status, sizeof status);
    if (status == RESULT_NONE) return RESULT_NONE;
    if (status == 0 && ranks->rank > 0) {
        loader->packing.reference = malloc(bytes);
        status =
            loader->packing.reference ? 0 : fail_memory(error, "the reference's log-probabilities");
    }
    if (ranks_agree(ranks, status, error)) return -1;
    ranks_broadcast(ranks, loader->packing.reference, bytes);
    return 0;
}

/* Redraws a line on a terminal. */
static void show_progress(void *began, int64_t done, int64_t count) {
    char left[32];
    const double seconds = progress_clock() - *(const double *)began;
    if (done == 0 || !progress_terminal(stderr)) return;
    progress_duration(left, seconds / (double)done * (double)(count - done));
    fprintf(stderr, "\rreference: %" PRId64 " of %" PRId64 " sequence%s, %s left\033[K", done,
            count, PLURAL(count), left);
}

static int open_values(struct session *session, struct loader *loader, const char *directory,
                       const char *name, double deadline, struct error *error) {
    char path[FILE_PATH_MAX];
    struct header header;
    struct trainer *trainer = &session->trainer;
    const bool first = session->ranks->rank == 0, begun = trainer->state.step > 0;
    if (file_path_join(path, directory, name, error)) return -1;
    int status = read_for_all(session, loader, path, &header, error);
    bool complete = status == 0; /* unlike the file of a pass that was stopped */
    for (size_t i = 0; complete && !begun && i < arrlenu(loader->packing.pieces); i++)
        complete = !isnan(loader->packing.reference[i]);
    if (complete || status == RESULT_FAILED) return status;
    if (begun && !reference_is_base(&session->config))
        return fail(error,
                    "%.600s is missing or damaged, or belongs to other data or to another "
                    "objective.reference: it has the log-probabilities before step 0, which the "
                    "loss reads\ncopy it from the run's "
                    "directory, or begin the run again",
                    path);
    if (first)
        note(stderr, "reference", "%" PRIu32 " %s in the %s data", packing_units(&loader->packing),
             pairs_noun(&loader->packing),
             loader == &session->train.loader ? "training" : "validation");
    double began = progress_clock();
    struct evaluator evaluator = trainer_evaluator(trainer);
    evaluator.deadline = deadline;
    if (first) evaluator.progress = show_progress, evaluator.context = &began;
    status = reference_compute(&evaluator, loader, 0, (int64_t)loader->sequence_count,
                               reference_is_base(&session->config), error);
    if (first && progress_terminal(stderr)) fputs("\r\033[K", stderr);
    if (status == RESULT_FAILED) return status;
    const int written = first && !begun ? write_values(loader, path, &header, error) : 0;
    return ranks_agree(session->ranks, written, error) ? -1 : status;
}

int session_open_reference(struct session *session, const char *directory, double deadline,
                           struct error *error) {
    if (!config_has_reference(&session->config)) return 0;
    const int status = open_values(session, &session->train.loader, directory,
                                   "reference_train.bin", deadline, error);
    if (status || !session->val.open) return status;
    return open_values(session, &session->val.loader, directory, "reference_val.bin", deadline,
                       error);
}
