#include "model/files/checkpoint_together.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "kernels/ranks/collectives.h"
#include "model/files/checkpoint_manifest.h"

enum { PIECE = 1 << 16 /* elements of a tensor that a rank writes at a time */ };

/* Where the writer of a file is: before element `first` of an entry. */
struct cursor {
    int entry, end;
    int64_t first;
};

struct together {
    const struct optimizer *optimizer;
    const struct gpt *gpt;
    const struct ranks *ranks;
    const struct checkpoint_target *target; /* NULL: pieces are gathered */
    const struct tensor_division *division;
    size_t element_bytes;
    struct cursor *cursors;           /* [ranks]: of the files that are being written */
    struct rank_message *out;         /* [ranks] */
    struct rank_message *in;          /* [ranks] */
    char *sent;                       /* [ranks, PIECE] elements */
    char *piece;                      /* [PIECE] elements */
    struct stored_file *written;      /* [ranks]: one file of each */
    struct safetensors_writer writer; /* of this rank's file */
    char *gathered;                   /* where the next piece goes, if pieces are gathered */
};

/* The elements of a tensor that come next in a file. */
struct piece {
    int moment;
    int64_t first, count; /* in the order of the flat arrays */
    ptrdiff_t bucket;     /* that they lie in */
};

static ptrdiff_t bucket_of(const struct shards *shards, int64_t element) {
    ptrdiff_t i = 0;
    while (element >= shards->buckets[i].first + shards->buckets[i].count) i++;
    return i;
}

/* The next piece of a file; false at its end. */
static bool next_piece(struct piece *piece, struct cursor *cursor, const struct together *t) {
    const struct parameter *list = t->gpt->list;
    int parameters = (int)arrlen(list);
    if (cursor->entry >= cursor->end) return false;
    const struct parameter *p = &list[cursor->entry % parameters];
    int64_t left = parameter_count(p) - cursor->first;
    piece->moment = cursor->entry / parameters;
    piece->first = p->offset + cursor->first;
    piece->count = left < PIECE ? left : PIECE;
    piece->bucket = bucket_of(&t->optimizer->exchange.shards, piece->first);
    cursor->first += piece->count;
    if (cursor->first == parameter_count(p))
        *cursor = (struct cursor){cursor->entry + 1, cursor->end, 0};
    return true;
}

/* What of a piece a rank has. Where all have everything, only the writer's own counts. */
static struct rank_part part_of(const struct together *t, const struct piece *piece, int rank,
                                int writer) {
    const struct shards *shards = &t->optimizer->exchange.shards;
    if (!shards->divided && rank != writer) return (struct rank_part){piece->first, 0};
    return shards_overlap(shards, piece->bucket, t->ranks, rank, piece->first, piece->count);
}

/* What this rank has of the piece that another writes. */
static void add_out(struct together *t, int *outs, const struct piece *piece, int writer) {
    struct rank_part own = part_of(t, piece, t->ranks->rank, writer);
    if (own.count == 0) return;
    char *data = t->sent + (size_t)writer * PIECE * t->element_bytes;
    optimizer_download(t->optimizer, piece->moment, data, own.first, own.count);
    t->out[(*outs)++] = (struct rank_message){writer, data, (size_t)own.count * t->element_bytes};
}

/* What this rank writes: its own part, and where those of others go. */
static void add_in(struct together *t, int *ins, const struct piece *piece) {
    optimizer_download(t->optimizer, piece->moment, t->piece, piece->first, piece->count);
    for (int rank = 0; rank < t->ranks->size; rank++) {
        struct rank_part part = part_of(t, piece, rank, t->ranks->rank);
        if (rank == t->ranks->rank || part.count == 0) continue;
        char *data = t->piece + (size_t)(part.first - piece->first) * t->element_bytes;
        t->in[(*ins)++] = (struct rank_message){rank, data, (size_t)part.count * t->element_bytes};
    }
}

/* One piece of each file that is being written. Returns the elements of this rank's piece, or -1
 * when all files are at their end. */
static int64_t swap_pieces(struct together *t) {
    int outs = 0, ins = 0;
    int64_t count = -1;
    for (int writer = 0; writer < t->ranks->size; writer++) {
        struct piece piece;
        if (!next_piece(&piece, &t->cursors[writer], t)) continue;
        if (count < 0) count = 0;
        if (writer == t->ranks->rank) {
            add_in(t, &ins, &piece);
            count = piece.count;
        } else add_out(t, &outs, &piece, writer);
    }
    ranks_swap(t->ranks, t->out, outs, t->in, ins);
    return count;
}

/* Cursors for files first .. first + ranks - 1, one of each rank. Returns whether this rank has
 * one. */
static bool begin_row(struct together *t, int first) {
    int files = (int)arrlen(t->division->ends);
    for (int rank = 0; rank < t->ranks->size; rank++) {
        int file = first + rank;
        int begin = file < files && file > 0 ? t->division->ends[file - 1] : 0;
        t->cursors[rank] = (struct cursor){begin, file < files ? t->division->ends[file] : 0, 0};
    }
    return first + t->ranks->rank < files;
}

/* A rank that fails goes on sending. */
static int write_row(struct together *t, int first, struct error *error) {
    int own = first + t->ranks->rank, status = 0;
    bool writes = begin_row(t, first);
    memset(t->written, 0, (size_t)t->ranks->size * sizeof *t->written);
    struct stored_file stored = {0};
    if (writes)
        status =
            tensor_division_begin_file(&t->writer, t->division, own, t->target->directory, error);
    for (int64_t count; (count = swap_pieces(t)) >= 0;)
        if (writes && status == 0 && count > 0)
            status = safetensors_write_data(&t->writer, t->piece, (size_t)count * t->element_bytes,
                                            error);
    if (writes && status == 0)
        status = tensor_division_end_file(&stored, &t->writer, t->division, own, error);
    ranks_gather(t->ranks, t->written, &stored, sizeof stored);
    return status;
}

static void gather_row(struct together *t, int first) {
    begin_row(t, first);
    for (int64_t count; (count = swap_pieces(t)) >= 0;) {
        if (count == 0) continue;
        memcpy(t->gathered, t->piece, (size_t)count * t->element_bytes);
        t->gathered += (size_t)count * t->element_bytes;
    }
}

static int write_rows(struct together *t, struct error *error) {
    struct error first_error = {0};
    int files = (int)arrlen(t->division->ends), status = 0;
    for (int first = 0; first < files; first += t->ranks->size) {
        int now = write_row(t, first, status ? &first_error : error);
        if (now) status = now;
        for (int rank = 0; t->ranks->rank == 0 && rank < t->ranks->size; rank++)
            if (t->written[rank].name[0]) arrput(*t->target->files, t->written[rank]);
    }
    const struct backend *be = t->gpt->be;
    if (status == 0 && be->failure.text[0]) status = fail(error, "%s", be->failure.text);
    if (ranks_agree(t->ranks, status, error)) return -1;
    if (t->ranks->rank == 0 && files > 1)
        status =
            tensor_division_write_index(t->division, t->target->directory, t->target->files, error);
    return ranks_agree(t->ranks, status, error);
}

static int allocate(struct together *t, struct error *error) {
    size_t size = (size_t)t->ranks->size;
    t->cursors = calloc(size, sizeof *t->cursors);
    t->out = calloc(size, sizeof *t->out);
    t->in = calloc(size, sizeof *t->in);
    t->written = calloc(size, sizeof *t->written);
    t->sent = malloc(size * PIECE * t->element_bytes);
    t->piece = malloc(PIECE * t->element_bytes);
    if (t->cursors && t->out && t->in && t->written && t->sent && t->piece) return 0;
    return fail(error, "out of memory for the moments of other ranks");
}

static void release(struct together *t) {
    free(t->cursors);
    free(t->out);
    free(t->in);
    free(t->written);
    free(t->sent);
    free(t->piece);
}

static void list_entries(struct safetensors_entry **entries, const struct optimizer *optimizer) {
    const struct gpt *gpt = optimizer->gpt;
    char prefix[CHECKPOINT_PREFIX_MAX];
    for (int moment = 0; moment < 2; moment++)
        checkpoint_list_entries(entries, gpt->list,
                                checkpoint_moment_prefix(prefix, gpt->list, moment),
                                gpt->precision.moments);
}

static struct together together_of(const struct optimizer *optimizer,
                                   const struct tensor_division *division) {
    const struct gpt *gpt = optimizer->gpt;
    return (struct together){.optimizer = optimizer,
                             .gpt = gpt,
                             .ranks = gpt->be->collectives->ranks,
                             .division = division,
                             .element_bytes = dtype_bytes(gpt->precision.moments)};
}

int checkpoint_write_moments_together(const struct optimizer *optimizer,
                                      const struct checkpoint_target *target, struct error *error) {
    struct tensor_division division;
    struct together t = together_of(optimizer, &division);
    struct safetensors_entry *entries = NULL;
    list_entries(&entries, optimizer);
    t.target = target;
    int status = tensor_division_open(&division, target->stem, entries, (int)arrlen(entries),
                                      target->limit, t.ranks->size, error);
    if (status == 0) status = allocate(&t, error);
    status = ranks_agree(t.ranks, status, error);
    if (status == 0) status = write_rows(&t, error);
    release(&t);
    tensor_division_close(&division);
    checkpoint_free_entries(entries);
    return status;
}

/* ---- in steps */

static size_t file_bytes(const struct gathered_moments *gathered, int file) {
    const struct tensor_division *division = &gathered->division;
    const struct gpt *gpt = gathered->optimizer->gpt;
    int64_t elements = 0, parameters = arrlen(gpt->list);
    for (int i = file > 0 ? division->ends[file - 1] : 0; i < division->ends[file]; i++)
        elements += parameter_count(&gpt->list[i % parameters]);
    return (size_t)elements * dtype_bytes(gpt->precision.moments);
}

int gathered_moments_open(struct gathered_moments *gathered, const struct optimizer *optimizer,
                          uint64_t limit, struct error *error) {
    const struct ranks *ranks = optimizer->gpt->be->collectives->ranks;
    *gathered = (struct gathered_moments){.optimizer = optimizer};
    list_entries(&gathered->entries, optimizer);
    if (tensor_division_open(&gathered->division, checkpoint_optimizer_stem, gathered->entries,
                             (int)arrlen(gathered->entries), limit, ranks->size, error))
        return -1;
    for (int i = ranks->rank; i < (int)arrlen(gathered->division.ends); i += ranks->size)
        gathered->bytes += file_bytes(gathered, i);
    gathered->data = malloc(gathered->bytes + 1);
    gathered->row = calloc((size_t)ranks->size, sizeof *gathered->row);
    return gathered->data && gathered->row
               ? 0
               : fail(error, "out of memory for the moments of other ranks");
}

void gathered_moments_close(struct gathered_moments *gathered) {
    free(gathered->data);
    free(gathered->row);
    arrfree(gathered->written);
    tensor_division_close(&gathered->division);
    checkpoint_free_entries(gathered->entries);
    *gathered = (struct gathered_moments){0};
}

int gathered_moments_fill(struct gathered_moments *gathered, struct error *error) {
    struct together t = together_of(gathered->optimizer, &gathered->division);
    t.gathered = gathered->data;
    int status = ranks_agree(t.ranks, allocate(&t, error), error);
    for (int first = 0; status == 0 && first < (int)arrlen(t.division->ends);
         first += t.ranks->size)
        gather_row(&t, first);
    assert(status || t.gathered == gathered->data + gathered->bytes);
    release(&t);
    const struct backend *be = t.gpt->be;
    if (status == 0 && be->failure.text[0]) status = fail(error, "%s", be->failure.text);
    return ranks_agree(t.ranks, status, error);
}

int gathered_moments_write(struct gathered_moments *gathered, const char *directory,
                           struct error *error) {
    const struct ranks *ranks = gathered->optimizer->gpt->be->collectives->ranks;
    const char *data = gathered->data;
    struct safetensors_writer writer;
    arrsetlen(gathered->written, 0);
    for (int i = ranks->rank; i < (int)arrlen(gathered->division.ends); i += ranks->size) {
        struct stored_file stored;
        size_t bytes = file_bytes(gathered, i);
        if (tensor_division_begin_file(&writer, &gathered->division, i, directory, error) ||
            safetensors_write_data(&writer, data, bytes, error) ||
            tensor_division_end_file(&stored, &writer, &gathered->division, i, error))
            return -1;
        arrput(gathered->written, stored);
        data += bytes;
    }
    return 0;
}

int gathered_moments_list(const struct gathered_moments *gathered, const char *directory,
                          struct stored_file **files, struct error *error) {
    const struct ranks *ranks = gathered->optimizer->gpt->be->collectives->ranks;
    int count = (int)arrlen(gathered->division.ends);
    for (int row = 0; row * ranks->size < count; row++) {
        struct stored_file own = {0};
        if (row < (int)arrlen(gathered->written)) own = gathered->written[row];
        ranks_gather(ranks, gathered->row, &own, sizeof own);
        for (int rank = 0; ranks->rank == 0 && rank < ranks->size; rank++)
            if (gathered->row[rank].name[0]) arrput(*files, gathered->row[rank]);
    }
    if (ranks->rank > 0 || count == 1) return 0;
    return tensor_division_write_index(&gathered->division, directory, files, error);
}
