#include "model/session/reference_file.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/progress.h"
#include "data/util/sha256.h"
#include "model/config/config_print.h"
#include "model/core/reference.h"
#include "model/io/checkpoint_tensors.h"
#include "model/io/tensor_files.h"

struct header {
    char magic[4];
    uint32_t version;
    uint64_t pairs;
    char tokens[SHA256_HEX_MAX - 1], model[SHA256_HEX_MAX - 1], values[SHA256_HEX_MAX - 1];
};
_Static_assert(sizeof(struct header) == 208, "the header is written as it is");

/* Hashes the tokens that the pairs of a text use. */
static int hash_tokens(char hex[SHA256_HEX_MAX], const struct loader *loader, struct error *error) {
    struct sha256 hash;
    int32_t *tokens = NULL; /* stb_ds array */
    int status = 0;
    sha256_begin(&hash);
    for (size_t i = 0; status == 0 && i < arrlenu(loader->pairs.list); i++) {
        const struct pair *pair = &loader->pairs.list[i];
        sha256_add(&hash, pair->rows, sizeof pair->rows);
        sha256_add(&hash, pair->answer, sizeof pair->answer);
        for (int side = 0; status == 0 && side < PAIR_SIDES; side++) {
            const size_t count = pair->rows[side] + (size_t)1;
            arrsetlen(tokens, count);
            status = token_shard_read(&loader->tokens->shards[pair->shard], tokens,
                                      pair->begin[side], count, error);
            sha256_add(&hash, tokens, count * sizeof *tokens);
        }
    }
    sha256_end(hex, &hash);
    arrfree(tokens);
    return status;
}

/* Hashes the reference model: its files and the config, of which several keys change its values. */
static int hash_model(char hex[SHA256_HEX_MAX], const struct session *session,
                      struct error *error) {
    const struct config *config = &session->config;
    char fingerprint[SHA256_HEX_MAX] = "";
    struct tensor_files files;
    struct sha256 hash;
    size_t size;
    if (config->model.init_from[0]) {
        if (tensor_files_open_directory(&files, config->model.init_from, checkpoint_model_stem,
                                        error))
            return -1;
        const int status = tensor_files_fingerprint(fingerprint, &files, error);
        tensor_files_close(&files);
        if (status) return -1;
    }
    char *text = config_json_text(config, &size);
    if (!text) return fail(error, "out of memory");
    sha256_begin(&hash);
    sha256_add(&hash, fingerprint, sizeof fingerprint);
    sha256_add(&hash, text, size);
    sha256_end(hex, &hash);
    free(text);
    return 0;
}

/* Reads the values if the file is intact and has those of the header; otherwise returns
 * RESULT_NONE. The file of a run that has begun may be of any model. */
static int read_values(struct loader *loader, const char *path, const struct header *wanted,
                       bool begun, struct error *error) {
    struct error ignored;
    char *bytes;
    size_t size;
    const size_t values = PAIR_SIDES * (size_t)wanted->pairs * sizeof(float);
    if (!file_exists(path)) return RESULT_NONE;
    if (file_read_all(&bytes, &size, path, sizeof *wanted + values, &ignored)) return RESULT_NONE;
    const struct header *found = (const struct header *)bytes;
    const size_t compared = offsetof(struct header, model) + (begun ? 0 : sizeof wanted->model);
    char hex[SHA256_HEX_MAX];
    int status = RESULT_NONE;
    bool same = size == sizeof *wanted + values && memcmp(found, wanted, compared) == 0;
    if (same) sha256_of(hex, bytes + sizeof *wanted, values);
    if (same && memcmp(hex, found->values, sizeof found->values) == 0) {
        loader->pairs.reference = malloc(values);
        status = loader->pairs.reference ? 0 : fail(error, "out of memory");
        if (status == 0) memcpy(loader->pairs.reference, bytes + sizeof *wanted, values);
    }
    free(bytes);
    return status;
}

static int write_values(const struct loader *loader, const char *path, struct header *header,
                        struct error *error) {
    struct file_writer writer;
    const size_t values = PAIR_SIDES * (size_t)header->pairs * sizeof(float);
    char hex[SHA256_HEX_MAX];
    sha256_of(hex, loader->pairs.reference, values);
    memcpy(header->values, hex, sizeof header->values);
    return file_writer_open(&writer, path, error) ||
                   file_writer_put(&writer, header, sizeof *header, error) ||
                   file_writer_put(&writer, loader->pairs.reference, values, error) ||
                   file_writer_commit(&writer, error)
               ? -1
               : 0;
}

/* Rank 0 reads the file, and all ranks get its values. Returns RESULT_NONE if it has none. */
static int read_for_all(struct session *session, struct loader *loader, const char *path,
                        struct header *header, struct error *error) {
    const struct ranks *ranks = session->ranks;
    const size_t bytes = PAIR_SIDES * arrlenu(loader->pairs.list) * sizeof(float);
    char tokens[SHA256_HEX_MAX] = "", model[SHA256_HEX_MAX] = "";
    const bool begun = session->trainer.state.step > 0;
    int status = 0;
    if (ranks->rank == 0) {
        *header = (struct header){"MREF", 1, arrlenu(loader->pairs.list), {0}, {0}, {0}};
        status = hash_tokens(tokens, loader, error) || (!begun && hash_model(model, session, error))
                     ? -1
                     : 0;
        memcpy(header->tokens, tokens, sizeof header->tokens);
        memcpy(header->model, model, sizeof header->model);
        if (status == 0) status = read_values(loader, path, header, begun, error);
    }
    ranks_broadcast(ranks, &status, sizeof status);
    if (status == RESULT_NONE) return RESULT_NONE;
    if (status == 0 && ranks->rank > 0) {
        loader->pairs.reference = malloc(bytes);
        status = loader->pairs.reference ? 0 : fail(error, "out of memory");
    }
    if (ranks_agree(ranks, status, error)) return -1;
    ranks_broadcast(ranks, loader->pairs.reference, bytes);
    return 0;
}

/* Redraws a line on a terminal. */
static void show_progress(void *began, int64_t done, int64_t count) {
    char left[32];
    const double seconds = progress_clock() - *(const double *)began;
    if (done == 0 || !progress_terminal(stderr)) return;
    progress_duration(left, seconds / (double)done * (double)(count - done));
    fprintf(stderr, "\rreference: %" PRId64 " of %" PRId64 " sequences, %s left\033[K", done, count,
            left);
}

static int open_values(struct session *session, struct loader *loader, const char *directory,
                       const char *name, struct error *error) {
    char path[FILE_PATH_MAX];
    struct header header;
    struct trainer *trainer = &session->trainer;
    const bool first = session->ranks->rank == 0;
    if (file_path_join(path, directory, name, error)) return -1;
    int status = read_for_all(session, loader, path, &header, error);
    if (status != RESULT_NONE) return status;
    if (trainer->state.step > 0 && !shape_has_adapters(&trainer->gpt.shape))
        return fail(error,
                    "%.600s is missing or damaged, or belongs to other data: it has the "
                    "log-probabilities before step 0, which the loss reads\ncopy it from the run's "
                    "directory, or begin the run again",
                    path);
    if (first)
        fprintf(stderr, "reference: %zu %s in the %s data\n", arrlenu(loader->pairs.list),
                pairs_noun(&loader->pairs),
                loader == &session->train.loader ? "training" : "validation");
    double began = progress_clock();
    struct evaluator evaluator = trainer_evaluator(trainer);
    if (first) evaluator.progress = show_progress, evaluator.context = &began;
    status = reference_compute(&evaluator, loader, 0, (int64_t)loader->sequence_count, error);
    if (first && progress_terminal(stderr)) fputs("\r\033[K", stderr);
    if (status) return status;
    status = first && trainer->state.step == 0 ? write_values(loader, path, &header, error) : 0;
    return ranks_agree(session->ranks, status, error);
}

int session_open_reference(struct session *session, const char *directory, struct error *error) {
    if (!reference_is_read(&session->trainer.gpt)) return 0;
    const int status =
        open_values(session, &session->train.loader, directory, "reference_train.bin", error);
    if (status || !session->val.open) return status;
    return open_values(session, &session->val.loader, directory, "reference_val.bin", error);
}
