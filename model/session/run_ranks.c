#include "model/session/run_ranks.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/util/min_max.h"
#include "data/util/program.h"
#include "data/util/sha256.h"
#include "kernels/open/backend_open.h"
#include "model/config/config_print.h"

enum { VALUE_MAX = CONFIG_VALUE_MAX };

/* Copies rank 0's text to theirs. Returns true if this rank's text differs from it. */
static bool differs(const struct ranks *ranks, char theirs[VALUE_MAX], const char *ours) {
    memset(theirs, 0, VALUE_MAX);
    snprintf(theirs, VALUE_MAX, "%s", ours);
    ranks_broadcast(ranks, theirs, VALUE_MAX);
    return strcmp(ours, theirs) != 0;
}

static int compare_program(const struct ranks *ranks, struct error *error) {
    char theirs[VALUE_MAX];
    if (!differs(ranks, theirs, MANTISSA_VERSION)) return 0;
    return fail(error, "this is mantissa %s, but rank 0 is %.31s\ninstall the same on all machines",
                MANTISSA_VERSION, theirs);
}

int run_ranks_compare_config(const struct ranks *ranks, const struct config *config,
                             struct error *error) {
    int status = 0;
    if (ranks->size == 1) return 0;
    if (ranks_agree(ranks, compare_program(ranks, error), error)) return -1;
    for (int i = 0; i < config_option_count; i++) {
        const char *key = config_options[i].key;
        char ours[VALUE_MAX], theirs[VALUE_MAX];
        config_value_text(ours, config, &config_options[i]);
        if (differs(ranks, theirs, ours) && status == 0 && strcmp(key, "threads") != 0)
            status = fail(error,
                          "%s is %.200s here, but %.200s on rank 0\ngive all ranks the same config "
                          "and flags",
                          key, ours, theirs);
    }
    return ranks_agree(ranks, status, error);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

enum { PIECES = 64, PIECE = 4096 /* tokens, or bytes of a mask */ };

/* Returns the offset of piece i of a sample of `count` elements. Up to PIECES * PIECE elements are
 * sampled in full. */
static uint64_t piece_offset(uint64_t count, uint64_t i) {
    return count <= (uint64_t)PIECES * PIECE ? i * PIECE : (count - PIECE) / (PIECES - 1) * i;
}

static int add_tokens(struct sha256 *hash, const struct token_shard *shard, struct error *error) {
    int32_t tokens[PIECE];
    uint64_t at;
    for (uint64_t i = 0; i < PIECES && (at = piece_offset(shard->count, i)) < shard->count; i++) {
        uint64_t left = shard->count - at, count = MIN(left, PIECE);
        if (token_shard_read(shard, tokens, at, count, error)) return -1;
        sha256_add(hash, tokens, count * sizeof *tokens);
    }
    return 0;
}

/* bits: one for each of `count` tokens, or NULL. */
static void add_bits(struct sha256 *hash, const uint8_t *bits, uint64_t count) {
    uint64_t at, bytes = bits ? (count + 7) / 8 : 0;
    for (uint64_t i = 0; i < PIECES && (at = piece_offset(bytes, i)) < bytes; i++)
        sha256_add(hash, bits + at, bytes - at < PIECE ? bytes - at : PIECE);
}

static int hash_source(char hex[SHA256_HEX_MAX], const struct source *source, struct error *error) {
    struct sha256 hash;
    ptrdiff_t count = source->open ? arrlen(source->tokens.shards) : 0;
    int status = 0;
    sha256_begin(&hash);
    if (source->open) sha256_add(&hash, &source->tokens.counted, sizeof source->tokens.counted);
    for (ptrdiff_t i = 0; status == 0 && i < count; i++) {
        const struct token_shard *shard = &source->tokens.shards[i];
        const char *name = base_name(shard->name);
        sha256_add(&hash, name, strlen(name) + 1);
        sha256_add(&hash, &shard->count, sizeof shard->count);
        status = add_tokens(&hash, shard, error);
        add_bits(&hash, shard->mask.bits, shard->count);
        add_bits(&hash, shard->mask.starts, shard->count);
        add_bits(&hash, shard->mask.rejected, shard->count);
        add_bits(&hash, shard->mask.labels, shard->count);
    }
    sha256_end(hex, &hash);
    return status;
}

static int compare_source(const struct ranks *ranks, struct source *source, const char *key,
                          const char *name, struct error *error) {
    char *ours = source->hash, theirs[VALUE_MAX];
    int status = 0;
    if (ranks_agree(ranks, hash_source(ours, source, error), error)) return -1;
    if (differs(ranks, theirs, ours))
        status = fail(error,
                      "%s, %.300s: the shards are not those of rank 0 (SHA-256 of a sample %.12s, "
                      "there %.12s)\ncopy the same files to all machines",
                      key, name, ours, theirs);
    return ranks_agree(ranks, status, error);
}

int run_ranks_compare_data(const struct ranks *ranks, const struct config *config,
                           struct source *train, struct source *val, struct error *error) {
    if (compare_source(ranks, train, "data.train", config->data.train, error)) return -1;
    return compare_source(ranks, val, "data.val", config->data.val, error);
}

/* Fails unless `text` equals rank 0's copy. what: name of the text in the message. */
static int compare_text(const struct ranks *ranks, const char *what, const char *text,
                        struct error *error) {
    char theirs[VALUE_MAX];
    int status = 0;
    if (differs(ranks, theirs, text))
        status = fail(error, "%s: %.400s here, but %.400s on rank 0\nall ranks must have the same",
                      what, text, theirs);
    return ranks_agree(ranks, status, error);
}

/* Without a sharded optimizer every rank computes the same update and must get the same bits, so
 * the devices must match too. */
int run_ranks_compare_plan(const struct ranks *ranks, const struct trainer *trainer,
                           struct error *error) {
    const struct exchange *exchange = &trainer->optimizer.exchange;
    const struct precision *precision = &trainer->model.precision;
    const struct backend_description *device = &trainer->be->device;
    char text[768];
    bool alike = !exchange->shards.divided;
    if (ranks->size == 1) return 0;
    snprintf(
        text, sizeof text,
        "%s with masters of form %d, gradients in %s, %" PRId64 " sums of squares%s%s%s%s %.*s",
        precision_name(precision), (int)precision->masters, dtype_name(precision->gradients),
        exchange->squares_count, alike ? ", " : "", alike ? device->description : "",
        alike ? " " : "", alike ? device->library : "", alike ? (int)strcspn(device->use, ",") : 0,
        device->use); /* ISA level only, no threads */
    return compare_text(ranks, "how this rank trains", text, error);
}

static void add_masters(struct sha256 *hash, const struct model *model) {
    enum { COUNT = 1024 };
    float values[COUNT];
    int64_t step = model->count / PIECES > COUNT ? model->count / PIECES : COUNT;
    for (int64_t first = 0; first < model->count; first += step) {
        int64_t left = model->count - first, count = MIN(left, COUNT);
        masters_download(&model->masters, model->be, values, first, count);
        sha256_add(hash, values, (size_t)count * sizeof *values);
    }
}

int run_ranks_compare_start(const struct ranks *ranks, const struct trainer *trainer,
                            struct error *error) {
    struct sha256 hash;
    char hex[SHA256_HEX_MAX], text[256];
    if (ranks->size == 1) return 0;
    sha256_begin(&hash);
    add_masters(&hash, &trainer->model);
    sha256_end(hex, &hash);
    snprintf(text, sizeof text,
             "step %" PRId64 ", sample %" PRId64
             ", loss scale %g, weights whose sample has SHA-256 %.16s",
             trainer->state.step, trainer->state.next_sample,
             (double)trainer->state.scaler.loss_scale, hex);
    return compare_text(ranks, "where training begins", text, error);
}

int run_ranks_check_visible(const struct ranks *ranks, const char *path, struct error *error) {
    int status = 0;
    /* Network file systems may show it a little later. */
    for (int i = 0; i < 50 && !file_exists(path); i++) usleep(100000);
    if (!file_exists(path))
        status = fail(error,
                      "%.400s was written by rank 0 and is not there\nrun_dir must be on a file "
                      "system that all ranks share",
                      path);
    return ranks_agree(ranks, status, error);
}
