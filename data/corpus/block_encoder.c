#include "data/corpus/block_encoder.h"

#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include <stb/stb_ds.h>

#include "data/tokenize/cuts.h"

/* Parts are small compared with a block, so that all threads finish at about the same time. */
enum { PART_BYTES = 128 << 10, LONG_PART_BYTES = 512 << 10, KEPT_BYTES_MAX = 2 << 20 };

struct block_part {
    struct block_text text;
    uint8_t *packed;      /* stb_ds array: the tokens in the shard's format */
    uint8_t *token_marks; /* stb_ds array: for the mask; empty if all are TOKEN_COUNTS */
    size_t count;
    int status; /* -1 if encoding failed, for the reason in error */
    struct error error;
};

int block_encoder_open(struct block_encoder *encoder, const struct tokenizer *tokenizer,
                       struct progress *progress, struct error *error) {
    *encoder = (struct block_encoder){.tokenizer = tokenizer, .progress = progress};
    const int threads = omp_get_max_threads();
    encoder->encoders = calloc((size_t)threads, sizeof *encoder->encoders);
    encoder->tokens = calloc((size_t)threads, sizeof *encoder->tokens);
    for (; encoder->encoders && encoder->tokens && encoder->thread_count < threads;
         encoder->thread_count++) {
        struct tokenizer_encoder *one = tokenizer_encoder_open(tokenizer);
        if (!one) break;
        encoder->encoders[encoder->thread_count] = one;
    }
    if (encoder->thread_count == threads) return 0;
    block_encoder_close(encoder);
    return fail(error,
                "out of memory: no room for the tokenizer's %d threads\n"
                "set OMP_NUM_THREADS to a smaller number",
                threads);
}

void block_encoder_close(struct block_encoder *encoder) {
    for (int i = 0; i < encoder->thread_count; i++) {
        tokenizer_encoder_close(encoder->encoders[i]);
        arrfree(encoder->tokens[i]);
    }
    free(encoder->encoders);
    free(encoder->tokens);
    for (size_t i = 0; i < arrlenu(encoder->parts); i++) {
        arrfree(encoder->parts[i].packed);
        arrfree(encoder->parts[i].token_marks);
    }
    arrfree(encoder->parts);
    *encoder = (struct block_encoder){0};
}

/* True if a text may be divided at a mark. The answers of a pair share the end of their prompt. */
static bool is_border(const struct block_text *text, const struct block_mark *mark) {
    return text->has_pairs ? mark->begins && !(mark->first_marks & TOKEN_REJECTED) : !mark->joins;
}

/* Returns the next position after `least` where a text may be divided: a border, or a cut between
 * two of them. */
static size_t part_end(const struct block_encoder *encoder, const struct block_text *text,
                       size_t least) {
    const struct block_mark *next = text->marks, *last = next + text->mark_count;
    if (least >= text->end) return text->end;
    if (encoder->tokenizer->kind == TOKENIZER_BYTES) return least;
    while (next < last && (next->at < least || !is_border(text, next))) next++;
    const size_t border = next < last ? next->at : text->end;
    const size_t cut =
        border > least && !text->has_pairs
            ? cut_first(text->block, text->end, least, border - 1, encoder->tokenizer->cuts_before)
            : CUT_NONE;
    return cut == CUT_NONE ? border : cut;
}

/* Divides a text into parts without tokens yet. Returns their number. */
static size_t divide(struct block_encoder *encoder, const struct block_text *text) {
    struct block_text rest = *text;
    size_t count = 0;
    while (rest.begin < rest.end || rest.mark_count > 0) {
        if (count == arrlenu(encoder->parts)) arrput(encoder->parts, (struct block_part){0});
        struct block_text *part = &encoder->parts[count++].text;
        *part = rest;
        part->end = rest.begin = part_end(encoder, &rest, rest.begin + PART_BYTES);
        part->mark_count = 0;
        for (; rest.mark_count > 0 && (rest.marks->at < part->end || part->end == text->end);
             rest.mark_count--, part->mark_count++)
            rest.before = *rest.marks++;
    }
    return count;
}

/* A text without any cut makes long parts. Encoding one takes far more memory, which the encoder
 * keeps, so the first encoder handles all of them. */
static bool is_long(const struct block_part *part) {
    return part->text.end - part->text.begin > LONG_PART_BYTES;
}

/* Text of a part that is joined, so encoded as one, and the tokens of its beginning. */
struct joined {
    const struct tokenizer *tokenizer;
    struct tokenizer_encoder *encoder;
    int32_t **tokens;              /* stb_ds array: tokens of the part */
    const char *text;              /* its beginning */
    const char *end;               /* end of the text that is encoded so far */
    size_t first;                  /* index of its first token */
    const struct block_mark *mark; /* the mark before the text that is added next */
    uint8_t begins;                /* marks of the next token if a document begins with it, or 0 */
};

/* Marks the tokens appended last, and the first of them if a document begins with it. */
static void mark_tokens(struct block_part *part, struct joined *joined) {
    const size_t before = part->count, known = arrlenu(part->token_marks);
    part->count = arrlenu(*joined->tokens);
    if (part->count == before || (joined->mark->in_loss && !joined->begins && known == 0)) return;
    arrsetlen(part->token_marks, part->count);
    memset(part->token_marks + known, TOKEN_COUNTS, before - known);
    memset(part->token_marks + before, joined->mark->in_loss ? TOKEN_COUNTS : 0,
           part->count - before);
    part->token_marks[before] |= joined->begins;
    joined->begins = 0;
}

/* Begins a joined text at a position of the text. */
static void begin_joined(struct joined *joined, const char *text) {
    joined->text = joined->end = text;
    joined->first = arrlenu(*joined->tokens);
}

/* Returns the bytes of the text before `end` that tokens [from, to) stand for, or 0 if that text
 * was changed before it was encoded or has characters without a token. */
static size_t text_of_tokens(const struct joined *joined, size_t from, size_t to, const char *end) {
    size_t bytes = 0, size;
    while (to-- > from) {
        const uint8_t *name = tokenizer_bytes(joined->tokenizer, (*joined->tokens)[to], &size);
        if (size > (size_t)(end - joined->text) - bytes ||
            memcmp(end - bytes - size, name, size) != 0)
            return 0;
        bytes += size;
    }
    return bytes;
}

/* Encodes the text of the last `window` tokens up to `end` again, after the tokens so far. Tokens
 * do not depend on text far before them: if one of the first new tokens begins where an old one
 * does, and half a window of tokens after it are equal, the text goes on with the new ones. Sets
 * *kept to the number of tokens before these, and *next to the index of the first. Returns
 * RESULT_NONE, with the tokens as they were, if the tokens differ. */
static int encode_window(struct block_part *part, struct joined *joined, const char *end,
                         size_t window, size_t *kept, size_t *next) {
    const size_t known = arrlenu(*joined->tokens);
    const size_t bytes = text_of_tokens(joined, known - window, known, joined->end);
    if (bytes == 0) return RESULT_NONE;
    const char *text = joined->end - bytes;
    if (tokenizer_encode(joined->encoder, joined->tokens, text, (size_t)(end - text),
                         !joined->mark->is_plain, &part->error))
        return -1;
    const int32_t *tokens = *joined->tokens;
    size_t old = known - window, new = known, size, total = 0;
    for (size_t i = known; i < arrlenu(*joined->tokens); i++) {
        tokenizer_bytes(joined->tokenizer, tokens[i], &size);
        total += size;
    }
    /* Some tokenizers add a space to the beginning, so the new tokens begin before the text. */
    size_t old_at = total - (size_t)(end - text), new_at = 0;
    while (old_at != new_at && old < known - window / 2 && new < arrlenu(*joined->tokens)) {
        tokenizer_bytes(joined->tokenizer, tokens[new_at < old_at ? new : old], &size);
        if (new_at < old_at) new_at += size, new ++;
        else old_at += size, old++;
    }
    const size_t equal = window / 2;
    if (old_at == new_at && old + equal <= known && new + equal <= arrlenu(*joined->tokens) &&
        memcmp(tokens + old, tokens + new, equal * sizeof *tokens) == 0 &&
        text_of_tokens(joined, new, arrlenu(*joined->tokens), end) ==
            (size_t)(end - joined->end) + text_of_tokens(joined, old, known, joined->end)) {
        *kept = old, *next = new;
        return 0;
    }
    arrsetlen(*joined->tokens, known);
    return RESULT_NONE;
}

/* Encodes the joined text up to `end`, like encode_window, or from its beginning if it is short. */
static int encode_joined(struct block_part *part, struct joined *joined, const char *end,
                         size_t *kept, size_t *next) {
    enum { SHORT_RUN = 1024, WINDOW = 128, WINDOW_GROWTH = 8 };
    const size_t known = arrlenu(*joined->tokens), count = known - joined->first;
    for (size_t window = WINDOW; count > SHORT_RUN && window < count; window *= WINDOW_GROWTH) {
        const int status = encode_window(part, joined, end, window, kept, next);
        if (status != RESULT_NONE) return status;
    }
    *kept = joined->first, *next = known;
    return tokenizer_encode(joined->encoder, joined->tokens, joined->text,
                            (size_t)(end - joined->text), !joined->mark->is_plain, &part->error);
}

/* The text after a special token is encoded as if nothing else stood before that token, so a
 * joined text that ends with one is continued by one that begins with it. */
static void shorten_joined(struct joined *joined, const char *end) {
    const size_t count = arrlenu(*joined->tokens);
    size_t size;
    if (count == joined->first) return;
    const int32_t last = (*joined->tokens)[count - 1];
    const uint8_t *name = tokenizer_bytes(joined->tokenizer, last, &size);
    if (tokenizer_special(joined->tokenizer, name, size) != last ||
        size > (size_t)(end - joined->text) || memcmp(end - size, name, size) != 0)
        return;
    joined->text = end - size;
    joined->first = count - 1;
}

/* Encodes a joined text up to `end`. Tokens of its beginning that the added text does not change
 * keep their marks; a token of both texts gets those of the added one. */
static int extend_joined(struct block_part *part, struct joined *joined, const char *end) {
    const size_t known = arrlenu(*joined->tokens);
    size_t same, next;
    if (encode_joined(part, joined, end, &same, &next)) return -1;
    int32_t *tokens = *joined->tokens;
    const size_t count = arrlenu(tokens);
    while (same < known && next < count && tokens[same] == tokens[next]) same++, next++;
    if (known > joined->first) {
        if (same == joined->first && arrlenu(part->token_marks) > same)
            joined->begins |= part->token_marks[same] & ~TOKEN_COUNTS;
        memmove(tokens + same, tokens + next, (count - next) * sizeof *tokens);
        arrsetlen(*joined->tokens, same + count - next);
        if (arrlenu(part->token_marks) > same) arrsetlen(part->token_marks, same);
        part->count = same;
    }
    joined->end = end;
    mark_tokens(part, joined);
    if (!joined->mark->is_plain) shorten_joined(joined, end);
    return 0;
}

/* Appends the tokens of the mark's separator. */
static int put_separator(struct block_part *part, struct joined *joined) {
    const struct tokenizer *tokenizer = joined->tokenizer;
    const enum separator separator = (enum separator)joined->mark->separator;
    const bool marks_documents = part->text.marks_documents;
    const bool ends_answer = separator == SEPARATOR_EOS;
    const int token = separator == SEPARATOR_END_OF_TEXT ? tokenizer->end_of_text
                      : separator == SEPARATOR_STOP      ? tokenizer->stop
                      : ends_answer                      ? tokenizer->eos
                                                         : -1;
    const bool begins_next = ends_answer && token >= 0 && token == tokenizer->end_of_text;
    const bool is_first =
        separator == SEPARATOR_END_OF_TEXT || (begins_next && !part->text.has_pairs);
    if (is_first && marks_documents)
        joined->begins |= ends_answer ? TOKEN_BEGINS : joined->mark->first_marks;
    if (token >= 0) arrput(*joined->tokens, token);
    else if ((separator == SEPARATOR_EMPTY_LINE || ends_answer) &&
             tokenizer_encode(joined->encoder, joined->tokens, "\n\n", 2, false, &part->error))
        return -1;
    mark_tokens(part, joined);
    if (joined->mark->begins && !is_first && separator != SEPARATOR_SHARED && marks_documents)
        joined->begins |= joined->mark->first_marks;
    return 0;
}

/* Returns the index of the first token from `at` on that has one of the marks. */
static size_t find_marked(const struct block_part *part, size_t at, int marks) {
    while (at < part->count && !(part->token_marks[at] & marks)) at++;
    return at;
}

/* A token that spans the end of a prompt belongs to its answer. It does so in both answers of a
 * pair if it does in one, as in TRL, which compares what follows the same tokens. */
static void align_answers(struct block_part *part) {
    size_t chosen = find_marked(part, 0, TOKEN_BEGINS), rejected;
    for (; chosen < part->count; chosen = find_marked(part, rejected + 1, TOKEN_BEGINS)) {
        rejected = find_marked(part, chosen + 1, TOKEN_BEGINS);
        if (rejected == part->count) break;
        if (part->token_marks[rejected] & TOKEN_LABEL) continue;
        const size_t ends[] = {find_marked(part, chosen, TOKEN_COUNTS) - chosen,
                               find_marked(part, rejected, TOKEN_COUNTS) - rejected};
        for (size_t i = ends[1]; i < ends[0]; i++) part->token_marks[chosen + i] |= TOKEN_COUNTS;
        for (size_t i = ends[0]; i < ends[1]; i++) part->token_marks[rejected + i] |= TOKEN_COUNTS;
    }
}

/* Tokens are first written to an array that stays in the CPU cache. At 32 bits each, the tokens of
 * a whole block would not fit, and one thread would later read them all from memory. */
static void encode_part(struct block_encoder *all, int thread, const struct shard_writer *writer,
                        struct block_part *part) {
    const struct block_text *text = &part->text;
    int32_t **tokens = &all->tokens[thread];
    struct joined joined = {.tokenizer = all->tokenizer,
                            .encoder = all->encoders[thread],
                            .tokens = tokens,
                            .mark = &text->before};
    arrsetlen(*tokens, 0);
    arrsetlen(part->token_marks, 0);
    part->count = 0;
    part->status = 0;
    begin_joined(&joined, text->block + text->begin);
    for (size_t i = 0; i <= text->mark_count && !part->status; i++) {
        const struct block_mark *mark = i < text->mark_count ? &text->marks[i] : NULL;
        const char *end = text->block + (mark ? mark->at : text->end);
        if (end > joined.text) part->status = extend_joined(part, &joined, end);
        if (!mark || part->status) break;
        joined.mark = mark;
        if (mark->joins) continue;
        part->status = put_separator(part, &joined);
        begin_joined(&joined, end);
    }
    if (text->has_pairs && all->tokenizer->kind != TOKENIZER_BYTES) align_answers(part);
    arrsetlen(part->packed, part->count * shard_writer_token_bytes(writer));
    shard_writer_pack(writer, part->packed, *tokens, part->count);
    if (arrcap(*tokens) * sizeof **tokens > KEPT_BYTES_MAX) arrfree(*tokens);
}

static int put_part(struct shard_writer *writer, struct block_part *part, struct error *error) {
    const uint8_t *marks = arrlenu(part->token_marks) > 0 ? part->token_marks : NULL;
    if (part->status) return fail(error, "%s", part->error.text);
    const int status = shard_writer_put_packed(writer, part->packed, marks, part->count, error);
    if (arrcap(part->packed) > KEPT_BYTES_MAX) arrfree(part->packed);
    if (arrcap(part->token_marks) > KEPT_BYTES_MAX) arrfree(part->token_marks);
    return status;
}

int block_encoder_put(struct block_encoder *encoder, struct shard_writer *writer,
                      const struct block_text *text, size_t filled, struct error *error) {
    const size_t count = divide(encoder, text), begin = text->begin, end = text->end;
    size_t done = 0;
#pragma omp parallel for schedule(dynamic, 1) num_threads(encoder->thread_count)
    for (size_t i = 0; i < count; i++) {
        const int thread = omp_get_thread_num();
        struct block_part *part = &encoder->parts[i];
        if (!is_long(part)) encode_part(encoder, thread, writer, part);
        size_t now;
#pragma omp atomic capture
        now = ++done;
        if (thread == 0)
            progress_show(encoder->progress,
                          ((double)begin + (double)(end - begin) * (double)now / (double)count) /
                              (double)filled);
    }
    int status = 0;
    for (size_t i = 0; i < count; i++) {
        struct block_part *part = &encoder->parts[i];
        if (is_long(part) && status == 0) encode_part(encoder, 0, writer, part);
        if (status == 0) status = put_part(writer, part, error);
    }
    return status;
}
