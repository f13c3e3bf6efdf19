#include "data/text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/text/bpe.h"
#include "data/text/bpe_builder.h"
#include "data/text/bpe_files.h"
#include "data/text/cuts.h"
#include "data/base/files.h"
#include "data/text/piece_cache.h"
#include "data/text/pieces.h"
#include "data/text/subwords.h"
#include "data/text/subwords_files.h"

static const char vocab_name[] = "vocab.json", merges_name[] = "merges.txt",
                  tokenizer_name[] = "tokenizer.json";

const char *tokenizer_kind_name(enum tokenizer_kind kind) {
    static const char *const names[] = {"bytes", "gpt2", "files"};
    return names[kind];
}

bool tokenizer_in_directory(const char *directory) {
    return (file_exists_in(directory, vocab_name) && file_exists_in(directory, merges_name)) ||
           file_exists_in(directory, tokenizer_name) ||
           (file_exists_in(directory, SUBWORDS_TIKTOKEN) &&
            file_exists_in(directory, SUBWORDS_RANKS));
}

/* ---- bytes */

static int open_bytes(struct tokenizer *tokenizer, struct error *error) {
    struct tokenizer_file *file = &tokenizer->files[0];
    FILE *out = open_memstream(&file->bytes, &file->size);
    if (!out) return fail(error, "out of memory while opening a tokenizer");
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
          "  \"added_tokens\": [],\n  \"normalizer\": null,\n  \"pre_tokenizer\": "
          "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
          "\"use_regex\": false},\n  \"post_processor\": null,\n  \"decoder\": "
          "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
          "\"use_regex\": false},\n  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
          "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
          "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
          "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": {",
          out);
    struct byte_alphabet alphabet;
    byte_alphabet_fill(&alphabet);
    for (int byte = 0; byte < 256; byte++) {
        char letter[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, letter, (uint8_t)byte);
        fprintf(out, "%s\n      \"%s%s\": %d", byte ? "," : "",
                byte == '"' || byte == '\\' ? "\\" : "", letter, byte);
    }
    fputs("\n    },\n    \"merges\": []\n  }\n}\n", out);
    if (fclose(out) != 0) return fail(error, "out of memory while opening a tokenizer");
    file->name = tokenizer_name;
    sha256_of(file->sha256, file->bytes, file->size);
    tokenizer->file_count = 1;
    tokenizer->vocab_size = 256;
    return 0;
}

/* ---- gpt2 */

/* Reads a file and keeps it; its place in files, or -1. */
static int keep_file(struct tokenizer *tokenizer, struct bpe_file *file, char path[FILE_PATH_MAX],
                     const char *directory, const char *name, struct error *error) {
    struct tokenizer_file *kept = &tokenizer->files[tokenizer->file_count];
    if (file_path_join(path, directory, name, error) ||
        file_read_all(&kept->bytes, &kept->size, path, BPE_FILE_MAX_BYTES, error))
        return -1;
    tokenizer->file_count++;
    kept->name = name;
    sha256_of(kept->sha256, kept->bytes, kept->size);
    *file = (struct bpe_file){.path = path, .bytes = kept->bytes, .size = kept->size};
    return 0;
}

static int check_directory(const char *directory, struct error *error) {
    if (tokenizer_in_directory(directory)) return 0;
    if (!file_exists(directory))
        return fail(error, "no such directory: %.600s\nname one that holds a tokenizer", directory);
    const char *missing = file_exists_in(directory, vocab_name)    ? merges_name
                          : file_exists_in(directory, merges_name) ? vocab_name
                                                                   : NULL;
    if (missing)
        return fail(error, "%.600s has no %s\nit needs %s and %s, or %s", directory, missing,
                    vocab_name, merges_name, tokenizer_name);
    return fail(error, "%.600s holds no tokenizer\nit needs %s and %s, or %s", directory,
                vocab_name, merges_name, tokenizer_name);
}

/* tokenizer.json beside vocab.json and merges.txt has to say the same. */
static int check_other(const struct bpe *bpe, const char *name, const struct bpe_file *file,
                       struct error *error) {
    struct bpe other;
    if (bpe_read_tokenizer(&other, file, error)) return -1;
    const int status = bpe_compare(bpe, name, &other, file->path, error);
    bpe_free(&other);
    return status;
}

static int read_gpt2(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    struct bpe_file vocab, merges, whole;
    char paths[TOKENIZER_FILES_MAX][FILE_PATH_MAX];
    const bool has_two =
        file_exists_in(directory, vocab_name) && file_exists_in(directory, merges_name);
    const bool has_one = file_exists_in(directory, tokenizer_name);
    tokenizer->bpe = calloc(1, sizeof *tokenizer->bpe);
    if (!tokenizer->bpe) return fail(error, "out of memory while opening a tokenizer");
    if (has_two && (keep_file(tokenizer, &vocab, paths[0], directory, vocab_name, error) ||
                    keep_file(tokenizer, &merges, paths[1], directory, merges_name, error) ||
                    bpe_read_vocab_and_merges(tokenizer->bpe, &vocab, &merges, error)))
        return -1;
    if (!has_one) return 0;
    if (keep_file(tokenizer, &whole, paths[2], directory, tokenizer_name, error)) return -1;
    if (has_two) return check_other(tokenizer->bpe, paths[0], &whole, error);
    return bpe_read_tokenizer(tokenizer->bpe, &whole, error);
}

/* In 16 bits where they fit: so were all tokens when the first records were written, and their
 * hashes hold good. */
static void hash_merges(struct sha256 *hash, const struct bpe *bpe) {
    struct merge *list = merges_list(&bpe->merges);
    for (size_t i = 0; i < arrlenu(list); i++) {
        const int32_t wide[] = {list[i].left, list[i].right, list[i].token};
        const uint16_t narrow[] = {(uint16_t)wide[0], (uint16_t)wide[1], (uint16_t)wide[2]};
        if (bpe->vocab_size <= VOCABULARY_16_BITS) sha256_add(hash, narrow, sizeof narrow);
        else sha256_add(hash, wide, sizeof wide);
    }
    arrfree(list);
}

/* The hash of what tokens a text becomes. */
static void hash_tokens(struct tokenizer *tokenizer) {
    const struct bpe *bpe = tokenizer->bpe;
    const int32_t numbers[] = {bpe->vocab_size, bpe->end_of_text, bpe->whole_text};
    struct sha256 hash;
    uint8_t digest[SHA256_BYTES];
    sha256_begin(&hash);
    sha256_add(&hash, numbers, sizeof numbers);
    sha256_add(&hash, bpe->starts, arrlenu(bpe->starts) * sizeof *bpe->starts);
    sha256_add(&hash, bpe->bytes, arrlenu(bpe->bytes));
    hash_merges(&hash, bpe);
    sha256_end(&hash, digest);
    sha256_hex(tokenizer->sha256, digest);
}

/* The special token of one of these names, or -1. */
static int named_end(const struct subwords *subwords) {
    static const char *const names[] = {BPE_END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (size_t j = 0; j < arrlenu(subwords->added); j++)
            if (strcmp(subwords->added[j].text, names[i]) == 0) return subwords->added[j].token;
    return -1;
}

/* The token that separates texts: what the model expects before one, or else a special token. */
static int separator_of(const struct subwords *subwords) {
    return subwords->begin_count > 0 ? subwords->begins[0] : named_end(subwords);
}

/* The token that ends an answer: what the model expects behind a text, or else a special token, or
 * else what separates texts. */
static int stop_of(const struct subwords *subwords) {
    if (subwords->end_count > 0) return subwords->ends[subwords->end_count - 1];
    const int named = named_end(subwords);
    return named >= 0 ? named : separator_of(subwords);
}

/* What follows from tokens and merges of another kind. */
static void adopt_subwords(struct tokenizer *tokenizer) {
    const struct subwords *subwords = tokenizer->subwords;
    struct sha256 hash;
    uint8_t digest[SHA256_BYTES];
    char *cut = tokenizer->cuts_before;
    tokenizer->vocab_size = subwords->vocab_size;
    tokenizer->end_of_text = separator_of(subwords);
    tokenizer->stop = stop_of(subwords);
    for (const char *space = CUT_SPACES; *space; space++)
        if (subwords_cuts_before(subwords, *space)) *cut++ = *space;
    sha256_begin(&hash);
    for (int i = 0; i < tokenizer->file_count; i++)
        sha256_add(&hash, tokenizer->files[i].sha256, SHA256_HEX_MAX - 1);
    sha256_end(&hash, digest);
    sha256_hex(tokenizer->sha256, digest);
}

static int open_subwords(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    struct subwords_file files[SUBWORDS_FILES_MAX];
    tokenizer->subwords = calloc(1, sizeof *tokenizer->subwords);
    if (!tokenizer->subwords) return fail(error, "out of memory while opening a tokenizer");
    if (subwords_read_folder(tokenizer->subwords, files, &tokenizer->file_count, directory, error))
        return -1;
    for (int i = 0; i < tokenizer->file_count; i++) {
        struct tokenizer_file *kept = &tokenizer->files[i];
        *kept = (struct tokenizer_file){
            .name = files[i].name, .bytes = files[i].bytes, .size = files[i].size};
        sha256_of(kept->sha256, kept->bytes, kept->size);
    }
    adopt_subwords(tokenizer);
    return 0;
}

static int open_gpt2(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    struct pieces pieces;
    if (pieces_open(&pieces, error)) return -1;
    pieces_close(&pieces);
    if (read_gpt2(tokenizer, directory, error)) return -1;
    tokenizer->vocab_size = tokenizer->bpe->vocab_size;
    tokenizer->end_of_text = tokenizer->stop = tokenizer->bpe->end_of_text;
    if (!tokenizer->bpe->whole_text || tokenizer->bpe->merges.count == 0)
        strcpy(tokenizer->cuts_before, CUT_SPACES);
    hash_tokens(tokenizer);
    return 0;
}

/* Whether tokenizer.json is of GPT-2's kind. */
static bool is_gpt2s_kind(const char *directory) {
    struct tokenizer kept = {0};
    struct bpe_file file;
    struct bpe bpe = {0};
    struct error error;
    char path[FILE_PATH_MAX];
    const bool is_gpt2 = !keep_file(&kept, &file, path, directory, tokenizer_name, &error) &&
                         !bpe_read_tokenizer(&bpe, &file, &error);
    bpe_free(&bpe);
    tokenizer_close(&kept);
    return is_gpt2;
}

/* GPT-2's kind has a way of its own, which is faster and knows vocab.json and merges.txt. Where it
 * does not take the files and there is another kind's, that is tried. */
static int open_files(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    if (check_directory(directory, error)) return -1;
    const bool has_two =
        file_exists_in(directory, vocab_name) && file_exists_in(directory, merges_name);
    const bool has_one = file_exists_in(directory, tokenizer_name);
    if ((has_two || has_one) && open_gpt2(tokenizer, directory, error) == 0) return 0;
    if (has_one ? is_gpt2s_kind(directory) : has_two) return -1;
    struct tokenizer other = {.kind = TOKENIZER_FILES, .end_of_text = -1, .stop = -1};
    struct error reason;
    if (open_subwords(&other, directory, &reason)) {
        tokenizer_close(&other);
        if (!has_two) *error = reason;
        return -1;
    }
    tokenizer_close(tokenizer);
    *tokenizer = other;
    return 0;
}

int tokenizer_open(struct tokenizer *tokenizer, enum tokenizer_kind kind, const char *directory,
                   struct error *error) {
    const enum tokenizer_kind first = kind == TOKENIZER_BYTES ? kind : TOKENIZER_GPT2;
    *tokenizer = (struct tokenizer){.kind = first, .end_of_text = -1, .stop = -1};
    const int status = kind == TOKENIZER_BYTES ? open_bytes(tokenizer, error)
                                               : open_files(tokenizer, directory, error);
    if (status) tokenizer_close(tokenizer);
    return status;
}

void tokenizer_close(struct tokenizer *tokenizer) {
    for (int i = 0; i < TOKENIZER_FILES_MAX; i++) free(tokenizer->files[i].bytes);
    if (tokenizer->bpe) bpe_free(tokenizer->bpe);
    free(tokenizer->bpe);
    if (tokenizer->subwords) subwords_free(tokenizer->subwords);
    free(tokenizer->subwords);
    *tokenizer = (struct tokenizer){0};
}

/* ---- tokens of text */

struct tokenizer_encoder {
    const struct tokenizer *tokenizer;
    struct pieces pieces;
    struct merges_scratch scratch;
    struct piece_cache cache;
    struct piece piece; /* the next to be encoded */
    struct subwords_encoder *subwords;
};

struct tokenizer_encoder *tokenizer_encoder_open(const struct tokenizer *tokenizer) {
    struct error error;
    struct tokenizer_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder) return NULL;
    encoder->tokenizer = tokenizer;
    if (tokenizer->bpe && pieces_open(&encoder->pieces, &error)) {
        free(encoder);
        return NULL;
    }
    if (tokenizer->bpe) piece_cache_open(&encoder->cache);
    if (tokenizer->subwords && !(encoder->subwords = subwords_encoder_open(tokenizer->subwords))) {
        free(encoder);
        return NULL;
    }
    return encoder;
}

void tokenizer_encoder_close(struct tokenizer_encoder *encoder) {
    if (!encoder) return;
    pieces_close(&encoder->pieces);
    merges_scratch_free(&encoder->scratch);
    piece_cache_close(&encoder->cache);
    subwords_encoder_close(encoder->subwords);
    free(encoder);
}

/* Encodes the piece before and looks this one up, which is encoded when the next one comes. */
static void encode_piece(struct tokenizer_encoder *encoder, int32_t **tokens, const uint8_t *bytes,
                         size_t size) {
    const struct bpe *bpe = encoder->tokenizer->bpe;
    const struct piece piece = encoder->piece;
    encoder->piece = piece_cache_place(&encoder->cache, bytes, size);
    if (piece.size == 0 || piece_cache_take(&piece, tokens)) return;
    const size_t before = arrlenu(*tokens);
    byte_tokens_merge(&bpe->byte_tokens, &bpe->merges, &encoder->scratch, tokens, piece.bytes,
                      piece.size);
    piece_cache_put(&piece, *tokens + before, arrlenu(*tokens) - before);
}

static void encode_plain(struct tokenizer_encoder *encoder, int32_t **tokens, const uint8_t *text,
                         size_t size) {
    size_t begin, end;
    if (encoder->tokenizer->bpe->whole_text) {
        encode_piece(encoder, tokens, text, size);
    } else {
        pieces_begin(&encoder->pieces, text, size);
        while (pieces_next(&encoder->pieces, &begin, &end))
            encode_piece(encoder, tokens, text + begin, end - begin);
    }
    encode_piece(encoder, tokens, NULL, 0);
}

int tokenizer_encode(struct tokenizer_encoder *encoder, int32_t **tokens, const void *text,
                     size_t size, bool special, struct error *error) {
    const struct tokenizer *tokenizer = encoder->tokenizer;
    const uint8_t *at = text;
    if (size == 0) return 0;
    if (tokenizer->subwords)
        return subwords_encode(encoder->subwords, tokens, text, size, special, error);
    if (!tokenizer->bpe) {
        int32_t *added = arraddnptr(*tokens, size);
        for (size_t i = 0; i < size; i++) added[i] = at[i];
        return 0;
    }
    const size_t length = sizeof BPE_END_OF_TEXT - 1;
    const uint8_t *found;
    while (special && tokenizer->end_of_text >= 0 &&
           (found = memmem(at, size, BPE_END_OF_TEXT, length))) {
        encode_plain(encoder, tokens, at, (size_t)(found - at));
        arrput(*tokens, tokenizer->end_of_text);
        size -= (size_t)(found + length - at);
        at = found + length;
    }
    encode_plain(encoder, tokens, at, size);
    return 0;
}

/* All values of a byte: what the tokens of the kind bytes are made of. */
#define FOUR(n)       (n), (n) + 1, (n) + 2, (n) + 3
#define SIXTEEN(n)    FOUR(n), FOUR((n) + 4), FOUR((n) + 8), FOUR((n) + 12)
#define SIXTY_FOUR(n) SIXTEEN(n), SIXTEEN((n) + 16), SIXTEEN((n) + 32), SIXTEEN((n) + 48)
static const uint8_t all_bytes[256] = {SIXTY_FOUR(0), SIXTY_FOUR(64), SIXTY_FOUR(128),
                                       SIXTY_FOUR(192)};

const uint8_t *tokenizer_bytes(const struct tokenizer *tokenizer, int token, size_t *size) {
    *size = 0;
    if (token < 0 || token >= tokenizer->vocab_size) return all_bytes;
    if (tokenizer->subwords) return subwords_bytes(tokenizer->subwords, token, size);
    if (!tokenizer->bpe) {
        *size = 1;
        return all_bytes + token;
    }
    const uint32_t *starts = tokenizer->bpe->starts;
    *size = starts[token + 1] - starts[token];
    return tokenizer->bpe->bytes + starts[token];
}
