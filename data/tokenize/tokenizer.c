#include "data/tokenize/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/files.h"
#include "data/tokenize/byte_alphabet.h"
#include "data/tokenize/cuts.h"
#include "data/tokenize/tiktoken_vocab.h"
#include "data/tokenize/subwords.h"
#include "data/tokenize/subwords_json.h"

enum { FILE_MAX_BYTES = 64 << 20 };

static const char vocab_name[] = "vocab.json", merges_name[] = "merges.txt",
                  tokenizer_name[] = "tokenizer.json", tiktoken_name[] = "tiktoken.json",
                  ranks_name[] = "ranks.tiktoken";

const char *tokenizer_kind_name(enum tokenizer_kind kind) {
    static const char *const names[] = {"bytes", "gpt2", "files"};
    return names[kind];
}

bool tokenizer_in_directory(const char *directory) {
    return (file_exists_in(directory, vocab_name) && file_exists_in(directory, merges_name)) ||
           file_exists_in(directory, tokenizer_name) ||
           (file_exists_in(directory, tiktoken_name) && file_exists_in(directory, ranks_name));
}

/* ---- tokenizer.json of byte-level tokenizers */

/* Prints the file up to the value of "vocab". cuts: texts are cut by GPT-2's pattern. */
static void print_head(FILE *out, bool cuts, int end_of_text) {
    char level[128];
    snprintf(level, sizeof level,
             "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
             "\"trim_offsets\": true, \"use_regex\": %s}",
             cuts ? "true" : "false");
    fputs("{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n"
          "  \"added_tokens\": [",
          out);
    if (end_of_text >= 0)
        fprintf(out,
                "{\"id\": %d, \"content\": \"<|endoftext|>\", \"single_word\": false, "
                "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, \"special\": true}",
                end_of_text);
    fprintf(out,
            "],\n  \"normalizer\": null,\n  \"pre_tokenizer\": %s,\n"
            "  \"post_processor\": null,\n  \"decoder\": %s,\n"
            "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n"
            "    \"unk_token\": null,\n    \"continuing_subword_prefix\": null,\n"
            "    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
            "    \"byte_fallback\": false,\n    \"ignore_merges\": false,\n    \"vocab\": ",
            level, level);
}

/* Prints the rest after "vocab". merges: the lines of merges.txt, which hold no control
 * characters. */
static void print_tail(FILE *out, const char *merges) {
    const char *separator = "";
    fputs(",\n    \"merges\": [", out);
    for (const char *line = merges; *line; line += strcspn(line, "\n"), line += *line != 0) {
        size_t size = strcspn(line, "\r\n");
        if (size == 0 || strncmp(line, "#version", 8) == 0) continue;
        fprintf(out, "%s\n    \"", separator);
        for (size_t i = 0; i < size; i++)
            fprintf(out, "%s%c", line[i] == '"' || line[i] == '\\' ? "\\" : "", line[i]);
        fputc('"', out);
        separator = ",";
    }
    fputs("]\n  }\n}\n", out);
}

void tokenizer_print_json(FILE *out, const struct tokenizer *tokenizer) {
    print_head(out, true, tokenizer->end_of_text);
    fwrite(tokenizer->files[0].bytes, 1, tokenizer->files[0].size, out);
    print_tail(out, tokenizer->files[1].bytes);
}

static int open_bytes(struct tokenizer *tokenizer, struct error *error) {
    struct tokenizer_file *file = &tokenizer->files[0];
    FILE *out = open_memstream(&file->bytes, &file->size);
    if (!out) return fail_memory(error, "a tokenizer");
    struct byte_alphabet alphabet;
    byte_alphabet_fill(&alphabet);
    print_head(out, false, -1);
    for (int byte = 0; byte < 256; byte++) {
        char letter[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&alphabet, letter, (uint8_t)byte);
        fprintf(out, "%s\n      \"%s%s\": %d", byte ? "," : "{",
                byte == '"' || byte == '\\' ? "\\" : "", letter, byte);
    }
    fputs("\n    }", out);
    print_tail(out, "");
    if (fclose(out) != 0) return fail_memory(error, "a tokenizer");
    file->name = tokenizer_name;
    sha256_of(file->sha256, file->bytes, file->size);
    tokenizer->file_count = 1;
    tokenizer->vocab_size = 256;
    return 0;
}

/* ---- files */

/* A file while it is read. */
struct source {
    char path[FILE_PATH_MAX];
    struct json_reader reader;
};

/* Reads a file and keeps it in tokenizer->files[index]. */
static int keep_file(struct tokenizer *tokenizer, struct source *source, int index,
                     const char *directory, const char *name, struct error *error) {
    struct tokenizer_file *kept = &tokenizer->files[index];
    if (file_path_join(source->path, directory, name, error) ||
        file_read_all(&kept->bytes, &kept->size, source->path, FILE_MAX_BYTES, error))
        return -1;
    kept->name = name;
    sha256_of(kept->sha256, kept->bytes, kept->size);
    source->reader = (struct json_reader){
        .path = source->path, .text = kept->bytes, .size = kept->size, .error = error};
    return 0;
}

static int check_directory(const char *directory, struct error *error) {
    if (tokenizer_in_directory(directory)) return 0;
    if (directory_refuse_file(directory, error)) return -1;
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

static bool same_merges(const struct merges *a, const struct merges *b) {
    struct merge *left = merges_list(a), *right = merges_list(b);
    const bool same = a->count == b->count &&
                      (a->count == 0 || memcmp(left, right, a->count * sizeof *left) == 0);
    arrfree(left);
    arrfree(right);
    return same;
}

/* Fails with the first difference between two tokenizers of GPT-2's kind. */
static int check_same(const struct subwords *a, const char *a_name, const struct subwords *b,
                      const char *b_name, struct error *error) {
    const char *const remedy = "keep the files of one tokenizer only";
    char what[32] = "";
    size_t size, other_size;
    if (a->vocab_size != b->vocab_size)
        return fail(error, "%.*s has %d tokens, but %.*s has %d\n%s", JSON_READER_PATH_SHOWN,
                    a_name, a->vocab_size, JSON_READER_PATH_SHOWN, b_name, b->vocab_size, remedy);
    for (int32_t token = 0; token < a->vocab_size && !*what; token++) {
        const uint8_t *bytes = subwords_bytes(a, token, &size);
        const uint8_t *other = subwords_bytes(b, token, &other_size);
        if (size != other_size || memcmp(bytes, other, size) != 0)
            snprintf(what, sizeof what, "token %d", (int)token);
    }
    if (!*what && same_merges(&a->merges, &b->merges) && a->rule_count == b->rule_count) return 0;
    return fail(error, "%.*s and %.*s disagree on the %s\n%s", JSON_READER_PATH_SHOWN, a_name,
                JSON_READER_PATH_SHOWN, b_name, *what ? what : "merges", remedy);
}

/* Hashes in 16 bits if the tokens fit, which keeps the hashes of older records valid. */
static void hash_merges(struct sha256 *hash, const struct subwords *subwords) {
    struct merge *list = merges_list(&subwords->merges);
    for (size_t i = 0; i < arrlenu(list); i++) {
        const int32_t wide[] = {list[i].left, list[i].right, list[i].token};
        const uint16_t narrow[] = {(uint16_t)wide[0], (uint16_t)wide[1], (uint16_t)wide[2]};
        if (subwords->vocab_size <= VOCABULARY_16_BITS) sha256_add(hash, narrow, sizeof narrow);
        else sha256_add(hash, wide, sizeof wide);
    }
    arrfree(list);
}

/* For GPT-2's kind, hashes everything that determines the tokens of a text, independent of the file
 * format. */
static void hash_tokens(struct sha256 *hash, const struct tokenizer *tokenizer) {
    const struct subwords *subwords = tokenizer->subwords;
    const struct subwords_texts *names = &subwords->names;
    const int32_t numbers[] = {subwords->vocab_size, tokenizer->end_of_text,
                               subwords->rule_count == 0};
    sha256_add(hash, numbers, sizeof numbers);
    sha256_add(hash, names->starts, arrlenu(names->starts) * sizeof *names->starts);
    sha256_add(hash, names->bytes, arrlenu(names->bytes));
    hash_merges(hash, subwords);
}

static int find_added(const struct subwords *subwords, const void *name, size_t size,
                      bool special) {
    for (size_t i = 0; i < arrlenu(subwords->added); i++) {
        const struct added_token *added = &subwords->added[i];
        if ((added->special || !special) && added->size == size &&
            memcmp(added->text, name, size) == 0)
            return added->token;
    }
    return -1;
}

int tokenizer_special(const struct tokenizer *tokenizer, const void *name, size_t size) {
    return tokenizer->subwords ? find_added(tokenizer->subwords, name, size, true) : -1;
}

size_t tokenizer_count_special(const struct tokenizer *tokenizer, const void *text, size_t size,
                               int *first) {
    const struct subwords *subwords = tokenizer->subwords;
    size_t count = 0;
    if (!subwords) return 0;
    const struct added_tree *const trees[] = {&subwords->raw, &subwords->normalized};
    for (int i = 0; i < 2; i++) {
        size_t at = 0, end = 0;
        for (int index; (index = added_tree_find(trees[i], text, size, &at, &end)) >= 0; at = end)
            if (subwords->added[index].special && count++ == 0)
                *first = subwords->added[index].token;
    }
    return count;
}

/* Returns the added token that ends a text by its name, or -1. Where there is <eos>, </s> is a tag
 * of HTML. */
static int named_end(const struct subwords *subwords) {
    static const char *const names[] = {SUBWORDS_END_OF_TEXT, "<|end_of_text|>", "<eos>", "</s>"};
    int token = -1;
    for (size_t i = 0; i < sizeof names / sizeof *names && token < 0; i++)
        token = find_added(subwords, names[i], strlen(names[i]), false);
    return token;
}

/* Returns the token that separates texts: the one that the model expects before a text, or else a
 * special token. */
static int separator_of(const struct subwords *subwords) {
    return subwords->begin_count > 0 ? subwords->begins[0] : named_end(subwords);
}

/* Returns the token that ends a text: the one that the model expects after a text, or else a
 * special token, or else the separator. */
static int stop_of(const struct subwords *subwords) {
    if (subwords->end_count > 0) return subwords->ends[subwords->end_count - 1];
    const int named = named_end(subwords);
    return named >= 0 ? named : separator_of(subwords);
}

static void set_ends(struct tokenizer *tokenizer) {
    tokenizer->vocab_size = tokenizer->subwords->vocab_size;
    tokenizer->end_of_text = separator_of(tokenizer->subwords);
    tokenizer->stop = stop_of(tokenizer->subwords);
    if (tokenizer->eos < 0 || tokenizer->eos >= tokenizer->vocab_size)
        tokenizer->eos = tokenizer->stop;
}

int tokenizer_leave_out(struct tokenizer *tokenizer, int64_t vocab_size) {
    if (tokenizer->kind != TOKENIZER_FILES) return 0;
    const int count = subwords_leave_out(tokenizer->subwords, vocab_size);
    if (count > 0) set_ends(tokenizer);
    tokenizer->left_out += count;
    return count;
}

/* Sets the members that follow from tokens, merges and files. */
static void finish_subwords(struct tokenizer *tokenizer) {
    const struct subwords *subwords = tokenizer->subwords;
    struct sha256 hash;
    char *cut = tokenizer->cuts_before;
    tokenizer->kind = subwords->is_gpt2 ? TOKENIZER_GPT2 : TOKENIZER_FILES;
    set_ends(tokenizer);
    for (const char *space = CUT_SPACES; *space; space++)
        if (subwords_cuts_before(subwords, *space)) *cut++ = *space;
    sha256_begin(&hash);
    if (subwords->is_gpt2) hash_tokens(&hash, tokenizer);
    for (int i = 0; i < tokenizer->file_count && !subwords->is_gpt2; i++)
        sha256_add(&hash, tokenizer->files[i].sha256, SHA256_HEX_MAX - 1);
    sha256_end(tokenizer->sha256, &hash);
}

static int read_tiktoken(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    struct source json, ranks;
    if (keep_file(tokenizer, &json, 0, directory, tiktoken_name, error) ||
        keep_file(tokenizer, &ranks, 1, directory, ranks_name, error))
        return -1;
    tokenizer->file_count = 2;
    return subwords_read_tiktoken(tokenizer->subwords, &json.reader, &ranks.reader);
}

/* Keeps a tokenizer.json made in memory, which may be NULL, in place of the files read. */
static void keep_changed(struct tokenizer *tokenizer, char *text) {
    if (!text) return;
    for (int i = 0; i < TOKENIZER_FILES_MAX; i++) free(tokenizer->files[i].bytes);
    memset(tokenizer->files, 0, sizeof tokenizer->files);
    struct tokenizer_file *kept = &tokenizer->files[0];
    *kept = (struct tokenizer_file){.name = tokenizer_name, .bytes = text, .size = strlen(text)};
    sha256_of(kept->sha256, kept->bytes, kept->size);
    tokenizer->file_count = 1;
}

/* Reads vocab.json and merges.txt with the settings beside them, which may be NULL. */
static int read_two(struct tokenizer *tokenizer, struct source *vocab, const char *directory,
                    const struct tokenizer_settings *settings, struct error *error) {
    struct source merges;
    char *text = NULL;
    if (keep_file(tokenizer, vocab, 0, directory, vocab_name, error) ||
        keep_file(tokenizer, &merges, 1, directory, merges_name, error))
        return -1;
    if (settings && settings->class == TOKENIZER_CLASS_OTHER)
        return fail(error,
                    "%.600s: tokenizer_class is \"%.60s\", but without %s, %s and %s are read\n"
                    "for GPT2Tokenizer and Qwen2Tokenizer only: AutoTokenizer.from_pretrained(...)"
                    "\n.save_pretrained(...) writes it",
                    directory, settings->class_name, tokenizer_name, vocab_name, merges_name);
    if (subwords_read_gpt2(tokenizer->subwords, &text, settings, &vocab->reader, &merges.reader))
        return -1;
    tokenizer->file_count = 2;
    keep_changed(tokenizer, text);
    return 0;
}

/* Reads tokenizer.json. If it is of GPT-2's kind and there are the other two files, those are read,
 * and must agree. */
static int read_whole(struct tokenizer *tokenizer, const char *directory, bool has_two,
                      const struct tokenizer_settings *settings, struct error *error) {
    struct source source, vocab;
    char *text;
    if (keep_file(tokenizer, &source, 2, directory, tokenizer_name, error) ||
        subwords_read_json(tokenizer->subwords, &text, settings, &source.reader))
        return -1;
    if (has_two && !text && tokenizer->subwords->is_gpt2) {
        struct subwords whole = *tokenizer->subwords;
        *tokenizer->subwords = (struct subwords){0};
        int status = read_two(tokenizer, &vocab, directory, NULL, error);
        if (!status)
            status = check_same(tokenizer->subwords, vocab.path, &whole, source.path, error);
        tokenizer->file_count = 3;
        subwords_free(&whole);
        return status;
    }
    tokenizer->files[0] = tokenizer->files[2];
    tokenizer->files[2] = (struct tokenizer_file){0};
    tokenizer->file_count = 1;
    keep_changed(tokenizer, text);
    return 0;
}

const char *const tokenizer_roles[TOKENIZER_ROLES] = {
    [ROLE_BOS] = "bos_token", [ROLE_UNK] = "unk_token", [ROLE_SEP] = "sep_token",
    [ROLE_PAD] = "pad_token", [ROLE_CLS] = "cls_token", [ROLE_MASK] = "mask_token"};

/* Returns the token of a role, or -1. */
static int token_of_role(const struct tokenizer *tokenizer,
                         const struct tokenizer_settings *settings, const char *role) {
    const char *name = tokenizer_settings_role(settings, role);
    return name ? find_added(tokenizer->subwords, name, strlen(name), false) : -1;
}

static int read_files(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    struct tokenizer_settings settings;
    struct source vocab;
    const bool has_two =
        file_exists_in(directory, vocab_name) && file_exists_in(directory, merges_name);
    const bool has_whole = file_exists_in(directory, tokenizer_name);
    if (tokenizer_settings_open(&settings, directory, error)) return -1;
    const int status = has_whole ? read_whole(tokenizer, directory, has_two, &settings, error)
                       : has_two ? read_two(tokenizer, &vocab, directory, &settings, error)
                                 : read_tiktoken(tokenizer, directory, error);
    if (!status) tokenizer->eos = token_of_role(tokenizer, &settings, "eos_token");
    for (int role = 0; role < TOKENIZER_ROLES && !status; role++)
        tokenizer->roles[role] = token_of_role(tokenizer, &settings, tokenizer_roles[role]);
    if (tokenizer->roles[ROLE_UNK] < 0) tokenizer->roles[ROLE_UNK] = tokenizer->subwords->unknown;
    tokenizer_settings_close(&settings);
    return status;
}

static int open_files(struct tokenizer *tokenizer, const char *directory, struct error *error) {
    if (check_directory(directory, error)) return -1;
    tokenizer->subwords = calloc(1, sizeof *tokenizer->subwords);
    tokenizer->directory = strdup(directory);
    if (!tokenizer->subwords || !tokenizer->directory) return fail_memory(error, "a tokenizer");
    if (read_files(tokenizer, directory, error)) return -1;
    finish_subwords(tokenizer);
    return 0;
}

int tokenizer_open(struct tokenizer *tokenizer, enum tokenizer_kind kind, const char *directory,
                   struct error *error) {
    *tokenizer = (struct tokenizer){.kind = kind, .end_of_text = -1, .stop = -1, .eos = -1};
    memset(tokenizer->roles, -1, sizeof tokenizer->roles);
    for (int byte = 0; byte < 256; byte++) tokenizer->bytes[byte] = (uint8_t)byte;
    const int status = kind == TOKENIZER_BYTES ? open_bytes(tokenizer, error)
                                               : open_files(tokenizer, directory, error);
    if (status) tokenizer_close(tokenizer);
    return status;
}

void tokenizer_close(struct tokenizer *tokenizer) {
    for (int i = 0; i < TOKENIZER_FILES_MAX; i++) free(tokenizer->files[i].bytes);
    if (tokenizer->subwords) subwords_free(tokenizer->subwords);
    free(tokenizer->subwords);
    free(tokenizer->directory);
    *tokenizer = (struct tokenizer){0};
}

/* ---- tokens of text */

struct tokenizer_encoder {
    struct subwords_encoder *subwords; /* NULL for bytes */
};

struct tokenizer_encoder *tokenizer_encoder_open(const struct tokenizer *tokenizer) {
    struct tokenizer_encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder || !tokenizer->subwords) return encoder;
    encoder->subwords = subwords_encoder_open(tokenizer->subwords);
    if (encoder->subwords) return encoder;
    free(encoder);
    return NULL;
}

void tokenizer_encoder_close(struct tokenizer_encoder *encoder) {
    if (!encoder) return;
    subwords_encoder_close(encoder->subwords);
    free(encoder);
}

int tokenizer_encode(struct tokenizer_encoder *encoder, int32_t **tokens, const void *text,
                     size_t size, bool special, struct error *error) {
    const uint8_t *bytes = text;
    if (encoder->subwords)
        return subwords_encode(encoder->subwords, tokens, text, size, special, error);
    if (size == 0) return 0;
    int32_t *added = arraddnptr(*tokens, size);
    for (size_t i = 0; i < size; i++) added[i] = bytes[i];
    return 0;
}

static void put_begins(const struct subwords *subwords, int32_t **tokens) {
    const size_t count = (size_t)subwords->begin_count;
    if (count > 0) memcpy(arraddnptr(*tokens, count), subwords->begins, count * sizeof **tokens);
}

int tokenizer_encode_beginning(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer,
                               int32_t **tokens, struct error *error) {
    const struct subwords *subwords = tokenizer->subwords;
    if (subwords && subwords->begin_count > 0) {
        put_begins(subwords, tokens);
        return 0;
    }
    if (tokenizer->end_of_text < 0) return tokenizer_encode(encoder, tokens, "\n", 1, false, error);
    arrput(*tokens, tokenizer->end_of_text);
    return 0;
}

int tokenizer_encode_context(struct tokenizer_encoder *encoder, const struct tokenizer *tokenizer,
                             int32_t **tokens, const void *text, size_t size, struct error *error) {
    const struct subwords *subwords = tokenizer->subwords;
    const size_t before = arrlenu(*tokens);
    if (size == 0) return tokenizer_encode_beginning(encoder, tokenizer, tokens, error);
    if (subwords) put_begins(subwords, tokens);
    const size_t count = arrlenu(*tokens) - before;
    if (tokenizer_encode(encoder, tokens, text, size, true, error)) return -1;
    const int32_t *begins = *tokens + before, *after = begins + count;
    if (count > 0 && arrlenu(*tokens) - before >= 2 * count &&
        memcmp(begins, after, count * sizeof *after) == 0)
        arrdeln(*tokens, before, count); /* the text has them itself */
    return 0;
}

const bool *tokenizer_lacking(const struct tokenizer *tokenizer) {
    const struct subwords *subwords = tokenizer->subwords;
    for (int byte = 0; subwords && byte < 256; byte++)
        if (subwords->lacking[byte]) return subwords->lacking;
    return NULL;
}

bool tokenizer_falls_back(const struct tokenizer *tokenizer, int token) {
    size_t size;
    const uint8_t *bytes = tokenizer_bytes(tokenizer, token, &size);
    const struct subwords *subwords = tokenizer->subwords;
    return subwords && !subwords->byte_level && size == 1 &&
           subwords->bytes.tokens[*bytes] == token;
}

const uint8_t *tokenizer_bytes(const struct tokenizer *tokenizer, int token, size_t *size) {
    *size = 0;
    if (token < 0 || token >= tokenizer->vocab_size) return tokenizer->bytes;
    if (tokenizer->subwords) return subwords_bytes(tokenizer->subwords, token, size);
    *size = 1;
    return tokenizer->bytes + token;
}
