/* Writes the logits of a model, for test/external/check_huggingface.py.
 *
 *   build/fast/logits DIRECTORY SHARDS LENGTH OUT
 *
 * Cuts SHARDS into sequences of LENGTH tokens, as ./train --eval does, and writes to OUT the
 * logits of the model in DIRECTORY, computed in fp32: [sequences, LENGTH, vocabulary] little-endian
 * fp32, nothing else. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "data/util/error.h"
#include "model/io/checkpoint.h"
#include "model/pass/forward.h"
#include "model/session/setup.h"

struct rig {
    struct config config;
    struct source text;
    struct backend be;
    struct model model;
    struct batch batch;
    float *logits; /* [vocabulary] */
    FILE *out;
    struct error error;
};

/* A pass over one sequence. */
static struct pass pass_of(struct rig *rig) {
    struct pass pass = {.model = &rig->model,
                        .kind = PASS_EVALUATE,
                        .batch = rig->batch.sent,
                        .rows = rig->config.data.seq_len};
    pass.batch.batch = 1;
    pass.batch.length = pass.rows;
    return pass;
}

static int open_model(struct rig *rig, const char *directory) {
    struct precision precision;
    struct error *error = &rig->error;
    rig->config.precision = CONFIG_PRECISION_FP32;
    rig->config.train.micro_batch_size = 1;
    if (setup_backend(&rig->be, &rig->config, NULL, NULL, error) ||
        precision_resolve(&precision, NULL, &rig->config, &rig->be, error) ||
        model_open(&rig->model, &rig->config, &precision, &rig->be, PURPOSE_EVALUATION, error))
        return -1;
    const struct pass planned = pass_of(rig);
    backend_plan_begin(&rig->be);
    model_forward(&planned);
    model_logits(&rig->model, 0, 1);
    if (backend_plan_end(&rig->be, error) || model_allocate(&rig->model, error)) return -1;
    return checkpoint_load_weights(&rig->model, &rig->config, directory, error);
}

static int write_sequence(struct rig *rig, int64_t sequence) {
    int64_t length = rig->config.data.seq_len;
    size_t vocabulary = (size_t)rig->model.shape.vocab_size;
    struct backend *be = &rig->be;
    const struct tensor *logits = &rig->model.activations.logits;
    const struct pass pass = pass_of(rig);
    struct loader_arrays arrays = {.tokens = rig->batch.host.tokens,
                                   .targets = rig->batch.host.targets};
    if (loader_batch(&rig->text.loader, &arrays, (uint64_t)sequence, 1, &rig->error)) return -1;
    batch_upload(&rig->batch);
    model_forward(&pass);
    for (int64_t row = 0; row < length; row++) {
        model_logits(&rig->model, row, 1);
        backend_download(be, rig->logits, logits->data, vocabulary * sizeof(float));
        if (fwrite(rig->logits, sizeof(float), vocabulary, rig->out) != vocabulary)
            return fail(&rig->error, "the logits cannot be written");
    }
    return be->failure.text[0] ? fail(&rig->error, "%s", be->failure.text) : 0;
}

static int run(struct rig *rig, char **arguments) {
    if (checkpoint_config(&rig->config, arguments[0], &rig->error)) return -1;
    rig->config.data.seq_len = atoi(arguments[2]);
    if (rig->config.data.seq_len > rig->config.model.n_positions)
        return fail(&rig->error, "%s: its context has %" PRId64 " tokens", arguments[0],
                    rig->config.model.n_positions);
    if (source_open(&rig->text, &rig->config, arguments[1], SOURCE_EVALUATION, &rig->error) ||
        open_model(rig, arguments[0]))
        return -1;
    const struct batch_format format = {
        .batch = 1, .length = rig->config.data.seq_len, .arrays = BATCH_TARGETS};
    if (batch_open(&rig->batch, &rig->be, &format, &rig->error)) return -1;
    rig->logits = malloc((size_t)rig->model.shape.vocab_size * sizeof *rig->logits);
    rig->out = fopen(arguments[3], "wb");
    if (!rig->logits || !rig->out) return fail(&rig->error, "no memory or file");
    for (uint64_t i = 0; i < rig->text.loader.sequence_count; i++)
        if (write_sequence(rig, (int64_t)i)) return -1;
    return fclose(rig->out) ? fail(&rig->error, "the logits cannot be written") : 0;
}

int main(int argc, char **argv) {
    static struct rig rig;
    if (argc != 5 || atoi(argv[3]) < 1) {
        fprintf(stderr, "logits DIRECTORY SHARDS LENGTH OUT\n");
        return 2;
    }
    if (run(&rig, argv + 1) == 0) return 0;
    fprintf(stderr, "logits: %s\n", rig.error.text);
    return 1;
}
