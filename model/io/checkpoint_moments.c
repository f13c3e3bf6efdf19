#include "model/io/checkpoint_moments.h"

#include <stdlib.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "kernels/collectives.h"

enum { PIECE = 1 << 16 /* elements of a tensor that a rank writes at a time, whole blocks */ };

/* Position in a file: element `first` of an entry. */
struct moment_cursor {
    int entry, end;
    int64_t first;
};

/* The next elements of a tensor in a file. */
struct piece {
    int moment;
    enum moment_array array;
    int64_t first, count; /* in the order of the flat arrays */
    ptrdiff_t bucket;     /* the bucket that contains all of them */
};

static int file_count(const struct moment_files *files) {
    return (int)arrlen(files->division.ends);
}

static int first_entry(const struct moment_files *files, int file) {
    return file > 0 ? files->division.ends[file - 1] : 0;
}

static int allocate(struct moment_files *files, struct error *error) {
    size_t size = (size_t)files->ranks->size;
    files->cursors = calloc(size, sizeof *files->cursors);
    files->out = calloc(size, sizeof *files->out);
    files->in = calloc(size, sizeof *files->in);
    files->gathered = calloc(size, sizeof *files->gathered);
    files->sent = malloc(size * PIECE * files->element_bytes);
    files->piece = malloc(PIECE * files->element_bytes);
    if (files->cursors && files->out && files->in && files->gathered && files->sent && files->piece)
        return 0;
    return fail_memory(error, "the moments of other ranks");
}

int moment_files_open(struct moment_files *files, const struct optimizer *optimizer, uint64_t limit,
                      struct error *error) {
    const struct model *model = optimizer->model;
    *files = (struct moment_files){.optimizer = optimizer,
                                   .moments = saved_moments(optimizer),
                                   .ranks = model->be->collectives->ranks,
                                   .element_bytes = dtype_bytes(model->precision.moments)};
    files->entries = saved_entries(files->moments, model->precision.moments);
    if (tensor_division_open(&files->division, checkpoint_optimizer_stem, files->entries,
                             (int)arrlen(files->entries), limit, files->ranks->size, error))
        return -1;
    return allocate(files, error);
}

void moment_files_close(struct moment_files *files) {
    free(files->cursors);
    free(files->out);
    free(files->in);
    free(files->gathered);
    free(files->sent);
    free(files->piece);
    arrfree(files->written);
    arrfree(files->moments);
    arrfree(files->entries);
    tensor_division_close(&files->division);
    *files = (struct moment_files){0};
}

size_t moment_files_bytes(const struct moment_files *files) {
    size_t bytes = 0;
    for (int file = files->ranks->rank; file < file_count(files); file += files->ranks->size)
        for (int i = first_entry(files, file); i < files->division.ends[file]; i++)
            bytes += optimizer_moment_bytes(files->optimizer, files->moments[i].array,
                                            parameter_count(files->moments[i].parameter));
    return bytes;
}

/* ---- pieces */

/* Begins a round, in which ranks write files first .. first + ranks - 1, one each. */
static void begin_round(struct moment_files *files, int first) {
    for (int rank = 0; rank < files->ranks->size; rank++) {
        int file = first + rank;
        files->cursors[rank] = (struct moment_cursor){0};
        if (file < file_count(files))
            files->cursors[rank] =
                (struct moment_cursor){first_entry(files, file), files->division.ends[file], 0};
    }
}

/* Stores the next piece of a file. Returns false at the end of the file. */
static bool next_piece(struct piece *piece, struct moment_cursor *cursor,
                       const struct moment_files *files) {
    const struct bucket *buckets = files->optimizer->exchange.shards.buckets;
    if (cursor->entry >= cursor->end) return false;
    const struct parameter *p = files->moments[cursor->entry].parameter;
    int64_t left = parameter_count(p) - cursor->first;
    *piece = (struct piece){.moment = files->moments[cursor->entry].moment,
                            .array = files->moments[cursor->entry].array,
                            .first = p->offset + cursor->first,
                            .count = MIN(left, PIECE)};
    while (piece->first >= buckets[piece->bucket].first + buckets[piece->bucket].count)
        piece->bucket++;
    cursor->first += piece->count;
    if (piece->count == left) *cursor = (struct moment_cursor){cursor->entry + 1, cursor->end, 0};
    return true;
}

/* Returns the part of a piece that a rank contributes. If all ranks have all moments, a rank
 * contributes all of the pieces that it writes, and nothing to others. */
static struct rank_part part_of(const struct moment_files *files, const struct piece *piece,
                                int rank, int writer) {
    const struct shards *shards = &files->optimizer->exchange.shards;
    if (!shards->divided && rank != writer) return (struct rank_part){piece->first, 0};
    return shards_overlap(shards, piece->bucket, files->ranks, rank, piece->first, piece->count);
}

/* Copies a part of this rank's moments, immediately or, with a snapshot, in snapshot_take. */
static void copy_part(const struct moment_files *files, const struct piece *piece,
                      struct rank_part part, char *to, struct snapshot *snapshot) {
    const struct optimizer *optimizer = files->optimizer;
    const struct bucket *bucket = &optimizer->exchange.shards.buckets[piece->bucket];
    const char *from =
        optimizer_moment_at(optimizer, bucket, piece->moment, piece->array, part.first);
    const size_t bytes = optimizer_moment_bytes(optimizer, piece->array, part.count);
    if (snapshot) snapshot_add(snapshot, to, from, bytes);
    else backend_download(optimizer->model->be, to, from, bytes);
}

/* Sends the next piece of each file of the round to the rank that writes it. This rank receives
 * *bytes bytes at `to`. With a snapshot, snapshot_take copies the rank's own part. Returns false
 * at the end of all files. */
static bool move_pieces(struct moment_files *files, char *to, size_t *bytes,
                        struct snapshot *snapshot) {
    const struct optimizer *optimizer = files->optimizer;
    int size = files->ranks->size, rank = files->ranks->rank, outs = 0, ins = 0;
    bool any = false;
    struct piece piece;
    *bytes = 0;
    for (int writer = 0; writer < size; writer++) {
        if (!next_piece(&piece, &files->cursors[writer], files)) continue;
        bool own = writer == rank;
        char *begin = own ? to : files->sent + (size_t)writer * PIECE * files->element_bytes;
        any = true;
        if (own) *bytes = optimizer_moment_bytes(optimizer, piece.array, piece.count);
        /* This rank receives all parts of its own piece, and sends its part of other pieces. */
        for (int from = own ? 0 : rank; from < (own ? size : rank + 1); from++) {
            struct rank_part part = part_of(files, &piece, from, writer);
            if (part.count == 0) continue;
            const size_t before =
                optimizer_moment_bytes(optimizer, piece.array, part.first - piece.first);
            struct rank_message message = {
                own ? from : writer, begin + before,
                optimizer_moment_bytes(optimizer, piece.array, part.count)};
            if (from == rank) copy_part(files, &piece, part, message.data, own ? snapshot : NULL);
            if (from != rank) files->in[ins++] = message;
            else if (!own) files->out[outs++] = message;
        }
    }
    ranks_swap(files->ranks, files->out, outs, files->in, ins);
    return any;
}

/* ---- files */

void moment_files_copy(struct moment_files *files, struct snapshot *snapshot) {
    char *to = snapshot->moments;
    for (int first = 0; first < file_count(files); first += files->ranks->size) {
        begin_round(files, first);
        for (size_t bytes; move_pieces(files, to, &bytes, snapshot);) to += bytes;
    }
}

/* Writes the data of this rank's file: the next part of the copy, or pieces as they arrive. Parts
 * for other ranks are sent even after a failure. */
static int write_data(struct moment_files *files, struct safetensors_writer *writer,
                      const char **copy, int status, struct error *error) {
    if (*copy) {
        if (status == 0) status = safetensors_write_data(writer, *copy, writer->announced, error);
        if (status == 0) *copy += writer->announced;
        return status;
    }
    for (size_t bytes; move_pieces(files, files->piece, &bytes, NULL);)
        if (status == 0 && bytes > 0)
            status = safetensors_write_data(writer, files->piece, bytes, error);
    return status;
}

int moment_files_write(struct moment_files *files, const struct snapshot *snapshot,
                       const char *directory, int status, struct error *error) {
    const struct tensor_division *division = &files->division;
    const char *copy = snapshot ? snapshot->moments : NULL;
    bool sends = !snapshot && files->ranks->size > 1;
    for (int first = 0; first < file_count(files) && (status == 0 || sends);
         first += files->ranks->size) {
        int file = first + files->ranks->rank;
        struct safetensors_writer writer;
        struct stored_file stored;
        begin_round(files, first);
        bool writes = file < file_count(files);
        if (writes && status == 0)
            status = tensor_division_begin_file(&writer, division, file, directory, error);
        if (writes || sends) status = write_data(files, &writer, &copy, status, error);
        if (!writes || status) continue;
        status = tensor_division_end_file(&stored, &writer, division, file, error);
        if (status == 0) arrput(files->written, stored);
    }
    return status;
}

void moment_files_list(const struct moment_files *files, struct stored_file **list) {
    for (int round = 0; round * files->ranks->size < file_count(files); round++) {
        struct stored_file own = {0};
        if (round < (int)arrlen(files->written)) own = files->written[round];
        ranks_gather(files->ranks, files->gathered, &own, sizeof own);
        for (int rank = 0; rank < files->ranks->size; rank++)
            if (files->gathered[rank].name[0]) arrput(*list, files->gathered[rank]);
    }
}
