#include "data/text/bpe_files.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/text/bpe_builder.h"
#include "data/text/json_reader.h"
#include "data/base/utf8.h"

/* tokenizer.json as it is read. */
struct reader {
    struct json_reader json;
    struct bpe_builder builder;
};

static int fail_kind(struct reader *reader, const char *what) {
    return fail(reader->json.error,
                "%.*s: %s\nthis program reads tokenizers of GPT-2's kind only: byte-level BPE",
                JSON_READER_PATH_SHOWN, reader->json.path, what);
}

static int add_token(struct reader *reader, const char *name, const cJSON *number) {
    const double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    const int token = value >= 0 && value < INT_MAX && value == (int)value ? (int)value : -1;
    const char *reason = bpe_builder_add_token(&reader->builder, name, token);
    return reason ? fail(reader->json.error, "%.*s: %s", JSON_READER_PATH_SHOWN, reader->json.path,
                         reason)
                  : 0;
}

static int add_vocabulary(struct reader *reader, const cJSON *vocabulary) {
    if (!cJSON_IsObject(vocabulary))
        return fail(reader->json.error,
                    "%.*s: the vocabulary is no JSON object, {\"token\": number}",
                    JSON_READER_PATH_SHOWN, reader->json.path);
    const cJSON *entry;
    cJSON_ArrayForEach(entry, vocabulary) {
        if (add_token(reader, entry->string, entry)) return -1;
    }
    return 0;
}

static int finish_tokens(struct reader *reader) {
    const char *reason = bpe_builder_finish_tokens(&reader->builder);
    return reason ? fail(reader->json.error, "%.*s: %s", JSON_READER_PATH_SHOWN, reader->json.path,
                         reason)
                  : 0;
}

/* ---- merges.txt */

/* Splits "left right" in place. */
static const char *add_merge_line(struct bpe_builder *builder, char *line) {
    char *space = strchr(line, ' ');
    if (!space || space == line || space[1] == '\0' || strchr(space + 1, ' '))
        return "this is not two tokens with one space between";
    *space = '\0';
    return bpe_builder_add_merge(builder, line, space + 1);
}

static int read_merge_lines(struct bpe_builder *builder, const struct bpe_file *file, char *text,
                            struct error *error) {
    size_t number = 0, empty = 0;
    for (char *line = text, *next; line < text + file->size; line = next) {
        char *end = strchr(line, '\n');
        next = end ? end + 1 : text + file->size;
        number++;
        if (end) *end = '\0';
        const size_t length = strlen(line);
        if (length > 0 && line[length - 1] == '\r') line[length - 1] = '\0';
        if (*line == '\0' && !empty) empty = number;
        if (*line == '\0' || strncmp(line, "#version", 8) == 0) continue;
        const char *reason = empty ? "it follows an empty line" : add_merge_line(builder, line);
        if (reason)
            return fail(error, "%.*s, line %zu: %s", JSON_READER_PATH_SHOWN, file->path, number,
                        reason);
    }
    return 0;
}

static int read_merges(struct bpe_builder *builder, const struct bpe_file *file,
                       struct error *error) {
    if (file->size == 0) return fail(error, "%.*s is empty", JSON_READER_PATH_SHOWN, file->path);
    const char *nul = memchr(file->bytes, '\0', file->size);
    if (nul || !utf8_valid(file->bytes, file->size))
        return fail(error, "%.*s is not UTF-8 text\nis it the right file?", JSON_READER_PATH_SHOWN,
                    file->path);
    char *text = malloc(file->size + 1);
    if (!text)
        return fail(error, "out of memory while reading %.*s", JSON_READER_PATH_SHOWN, file->path);
    memcpy(text, file->bytes, file->size + 1);
    const int status = read_merge_lines(builder, file, text, error);
    free(text);
    return status;
}

/* ---- tokenizer.json */

static int check_pre_tokenizer(struct reader *reader, const cJSON *root) {
    const cJSON *found, *list;
    const char *type;
    found = json_reader_member(root, "pre_tokenizer");
    if (json_reader_text(&type, found, "type", &reader->json)) return -1;
    if (strcmp(type, "Sequence") == 0) {
        list = json_reader_member(found, "pretokenizers");
        if (cJSON_GetArraySize(list) != 1)
            return fail_kind(reader, "its pre_tokenizer is a Sequence of more or less than one");
        found = cJSON_GetArrayItem(list, 0);
        if (json_reader_text(&type, found, "type", &reader->json)) return -1;
    }
    if (strcmp(type, "ByteLevel") != 0)
        return fail_kind(reader, "its pre_tokenizer is not ByteLevel");
    bool prefix, regex;
    if (json_reader_flag(&prefix, found, "add_prefix_space", true, &reader->json) ||
        json_reader_flag(&regex, found, "use_regex", true, &reader->json))
        return -1;
    if (prefix)
        return fail_kind(reader, "its pre_tokenizer does not set add_prefix_space to false");
    reader->builder.bpe->whole_text = !regex;
    return 0;
}

/* A template that is the text alone is what transformers writes for GPT-2. */
static int check_post_processor(struct reader *reader, const cJSON *root) {
    const cJSON *found, *template, *sequence;
    const char *type;
    found = json_reader_member(root, "post_processor");
    template = json_reader_member(found, "single");
    if (json_reader_text(&type, found, "type", &reader->json)) return -1;
    if (!found || strcmp(type, "ByteLevel") == 0) return 0;
    sequence = json_reader_member(cJSON_GetArrayItem(template, 0), "Sequence");
    if (strcmp(type, "TemplateProcessing") == 0 && sequence && cJSON_GetArraySize(template) == 1)
        return 0;
    return fail_kind(reader, "its post_processor changes what the tokens are");
}

static int check_surroundings(struct reader *reader, const cJSON *root) {
    const cJSON *normalizer, *decoder;
    const char *type;
    normalizer = json_reader_member(root, "normalizer");
    decoder = json_reader_member(root, "decoder");
    if (normalizer) return fail_kind(reader, "it has a normalizer");
    if (json_reader_text(&type, decoder, "type", &reader->json)) return -1;
    if (strcmp(type, "ByteLevel") != 0) return fail_kind(reader, "its decoder is not ByteLevel");
    return check_pre_tokenizer(reader, root) || check_post_processor(reader, root) ? -1 : 0;
}

static int check_model(struct reader *reader, const cJSON *model) {
    const char *type, *prefix, *suffix;
    const cJSON *dropout;
    bool fallback, ignore;
    if (!cJSON_IsObject(model)) return fail_kind(reader, "it has no model");
    dropout = json_reader_member(model, "dropout");
    if (json_reader_text(&type, model, "type", &reader->json) ||
        json_reader_text(&prefix, model, "continuing_subword_prefix", &reader->json) ||
        json_reader_text(&suffix, model, "end_of_word_suffix", &reader->json) ||
        json_reader_flag(&fallback, model, "byte_fallback", false, &reader->json) ||
        json_reader_flag(&ignore, model, "ignore_merges", false, &reader->json))
        return -1;
    if (*type && strcmp(type, "BPE") != 0) return fail_kind(reader, "its model is not BPE");
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return fail_kind(reader, "its model has a dropout");
    if (*prefix) return fail_kind(reader, "its model has a continuing_subword_prefix");
    if (*suffix) return fail_kind(reader, "its model has an end_of_word_suffix");
    if (fallback) return fail_kind(reader, "its model has byte_fallback");
    if (ignore) return fail_kind(reader, "its model has ignore_merges");
    return 0;
}

static int add_added_token(struct reader *reader, const cJSON *entry) {
    const char *content;
    const cJSON *number;
    bool single_word, lstrip, rstrip;
    number = json_reader_member(entry, "id");
    if (json_reader_text(&content, entry, "content", &reader->json) ||
        json_reader_flag(&single_word, entry, "single_word", false, &reader->json) ||
        json_reader_flag(&lstrip, entry, "lstrip", false, &reader->json) ||
        json_reader_flag(&rstrip, entry, "rstrip", false, &reader->json))
        return -1;
    if (strcmp(content, BPE_END_OF_TEXT) != 0)
        return fail_kind(reader, "it has an added token other than " BPE_END_OF_TEXT);
    if (single_word || lstrip || rstrip)
        return fail_kind(reader, BPE_END_OF_TEXT " has single_word, lstrip or rstrip");
    const int known = bpe_builder_find(&reader->builder, content);
    if (known < 0) return add_token(reader, content, number);
    if (!cJSON_IsNumber(number) || number->valuedouble != known)
        return fail(reader->json.error, "%.*s: " BPE_END_OF_TEXT " has two numbers",
                    JSON_READER_PATH_SHOWN, reader->json.path);
    return 0;
}

static int add_added_tokens(struct reader *reader, const cJSON *root) {
    const cJSON *list, *entry;
    list = json_reader_member(root, "added_tokens");
    if (list && !cJSON_IsArray(list))
        return fail(reader->json.error, "%.*s: \"added_tokens\" is no list", JSON_READER_PATH_SHOWN,
                    reader->json.path);
    cJSON_ArrayForEach(entry, list) {
        if (add_added_token(reader, entry)) return -1;
    }
    return 0;
}

/* A merge is "left right" or ["left", "right"]. */
static const char *add_merge_entry(struct bpe_builder *builder, const cJSON *entry) {
    if (cJSON_IsString(entry)) return add_merge_line(builder, entry->valuestring);
    const cJSON *left = cJSON_IsArray(entry) ? entry->child : NULL;
    const cJSON *right = left ? left->next : NULL;
    if (!cJSON_IsString(left) || !cJSON_IsString(right) || right->next)
        return "a merge must be \"left right\" or [\"left\", \"right\"]";
    return bpe_builder_add_merge(builder, left->valuestring, right->valuestring);
}

static int add_merge_entries(struct reader *reader, const cJSON *list) {
    const cJSON *entry;
    size_t number = 0;
    if (!cJSON_IsArray(list)) return fail_kind(reader, "its model has no list of merges");
    cJSON_ArrayForEach(entry, list) {
        const char *reason = add_merge_entry(&reader->builder, entry);
        if (reason)
            return fail(reader->json.error, "%.*s: merge %zu: %s", JSON_READER_PATH_SHOWN,
                        reader->json.path, number, reason);
        number++;
    }
    return 0;
}

static int read_root(struct reader *reader, const cJSON *root) {
    const cJSON *model, *vocabulary, *merges;
    if (!cJSON_IsObject(root)) return fail_kind(reader, "it holds no JSON object");
    model = json_reader_member(root, "model");
    vocabulary = json_reader_member(model, "vocab");
    merges = json_reader_member(model, "merges");
    if (check_model(reader, model) || check_surroundings(reader, root)) return -1;
    if (add_vocabulary(reader, vocabulary) || add_added_tokens(reader, root) ||
        finish_tokens(reader))
        return -1;
    return add_merge_entries(reader, merges);
}

/* ---- both */

static int finish(struct reader *reader, struct bpe *bpe, cJSON *root, int status) {
    cJSON_Delete(root);
    bpe_builder_close(&reader->builder);
    if (status) bpe_free(bpe);
    return status;
}

int bpe_read_tokenizer(struct bpe *bpe, const struct bpe_file *tokenizer, struct error *error) {
    struct reader reader = {.json = {.path = tokenizer->path, .error = error}};
    cJSON *root;
    bpe_builder_open(&reader.builder, bpe);
    int status = json_reader_parse(&root, &reader.json, tokenizer->bytes, tokenizer->size);
    if (!status) status = read_root(&reader, root);
    return finish(&reader, bpe, root, status);
}

int bpe_read_vocab_and_merges(struct bpe *bpe, const struct bpe_file *vocab,
                              const struct bpe_file *merges, struct error *error) {
    struct reader reader = {.json = {.path = vocab->path, .error = error}};
    cJSON *root;
    bpe_builder_open(&reader.builder, bpe);
    int status = json_reader_parse(&root, &reader.json, vocab->bytes, vocab->size);
    if (!status) status = add_vocabulary(&reader, root);
    if (!status) status = finish_tokens(&reader);
    if (!status) status = read_merges(&reader.builder, merges, error);
    return finish(&reader, bpe, root, status);
}
