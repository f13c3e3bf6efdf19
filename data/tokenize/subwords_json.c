#include "data/tokenize/subwords_json.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/util/utf8.h"
#include "data/tokenize/subwords_builder.h"

static int read_vocabulary(struct subwords_builder *builder, const cJSON *vocabulary) {
    const cJSON *entry;
    if (!cJSON_IsObject(vocabulary) || !vocabulary->child)
        return subwords_refuse("vocabulary",
                               cJSON_IsObject(vocabulary) ? "that is empty" : "that is no object",
                               builder->reader);
    cJSON_ArrayForEach(entry, vocabulary) {
        const char *name = entry->string;
        const int32_t token = json_reader_token(entry);
        const int status =
            builder->subwords->byte_level
                ? subwords_builder_add_letters(builder, name, token)
                : subwords_builder_add_token(builder, (const uint8_t *)name, strlen(name), token);
        if (status) return -1;
        subwords_builder_number(builder, name, token);
    }
    return 0;
}

static int read_added_tokens(struct subwords_builder *builder, const cJSON *root) {
    const struct json_reader *reader = builder->reader;
    const cJSON *entry, *list = json_reader_member(root, "added_tokens");
    cJSON *id;
    if (list && !cJSON_IsArray(list))
        return subwords_refuse("added_tokens", "that is no list", reader);
    cJSON_ArrayForEach(entry, list) {
        struct added_token added = {0};
        const char *text;
        if (json_reader_expect(entry, "id content single_word lstrip rstrip special normalized",
                               "added token", reader) ||
            json_reader_text(&text, entry, "content", reader) ||
            json_reader_flag(&added.special, entry, "special", false, reader) ||
            json_reader_flag(&added.single_word, entry, "single_word", false, reader) ||
            json_reader_flag(&added.lstrip, entry, "lstrip", false, reader) ||
            json_reader_flag(&added.rstrip, entry, "rstrip", false, reader) ||
            json_reader_flag(&added.normalized, entry, "normalized", !added.special, reader))
            return -1;
        if (*text == '\0') continue; /* tokenizers ignores it */
        if (json_reader_token(json_reader_member(entry, "id")) < 0)
            return json_reader_fail(reader, ": the added token \"%.40s\" has no valid number",
                                    text);
        added.token = subwords_builder_added_number(builder, text);
        id = cJSON_GetObjectItemCaseSensitive(entry, "id");
        cJSON_SetNumberValue(id, added.token); /* for a changed tokenizer.json */
        if (subwords_builder_add_added(builder, added, text)) return -1;
    }
    return 0;
}

/* Reads "left right"; a NUL replaces the space for a moment. */
static int read_two_words(struct subwords_builder *builder, char *left, uint32_t rank) {
    char *space = left ? strchr(left, ' ') : NULL;
    if (!space || space == left || space[1] == '\0' || strchr(space + 1, ' '))
        return json_reader_fail(
            builder->reader, ": merge %u: a merge must be \"left right\" or [\"left\", \"right\"]",
            (unsigned)rank);
    *space = '\0';
    const int status = subwords_builder_add_merge(builder, left, space + 1, rank);
    *space = ' ';
    return status;
}

/* Adds the line of merges.txt to a message. */
static int fail_at_line(const struct subwords_builder *builder, int line) {
    const struct error reason = *builder->reader->error;
    return fail(builder->reader->error, "%s (line %d)", reason.text, line);
}

/* Reads "left right" or ["left", "right"]. */
static int read_merge(struct subwords_builder *builder, const cJSON *entry, uint32_t rank) {
    const cJSON *first = cJSON_IsArray(entry) ? entry->child : NULL;
    const cJSON *second = first ? first->next : NULL;
    if (cJSON_IsString(first) && cJSON_IsString(second) && !second->next)
        return subwords_builder_add_merge(builder, first->valuestring, second->valuestring, rank);
    return read_two_words(builder, cJSON_IsString(entry) ? entry->valuestring : NULL, rank);
}

static int read_merges(struct subwords_builder *builder, const cJSON *list) {
    const struct json_reader *reader = builder->reader;
    const cJSON *entry;
    uint32_t rank = 0;
    if (!cJSON_IsArray(list)) return subwords_refuse("merges", "that are no list", reader);
    if (builder->merges) builder->reader = builder->merges;
    cJSON_ArrayForEach(entry, list) {
        if (read_merge(builder, entry, rank) == 0) rank++;
        else if (!builder->merges) return -1;
        else return fail_at_line(builder, entry->valueint);
    }
    builder->reader = reader;
    return 0;
}

/* Reads the options of the model, all but vocabulary and merges. */
static int read_options(struct subwords *subwords, const cJSON *model, const char **unknown,
                        bool *byte_fallback, const struct json_reader *reader) {
    const char *type, *prefix, *suffix;
    const cJSON *dropout = json_reader_member(model, "dropout");
    if (json_reader_expect(model,
                           "type dropout unk_token continuing_subword_prefix fuse_unk "
                           "byte_fallback vocab end_of_word_suffix ignore_merges merges",
                           "model", reader) ||
        json_reader_text(&type, model, "type", reader) ||
        json_reader_text(&prefix, model, "continuing_subword_prefix", reader) ||
        json_reader_text(&suffix, model, "end_of_word_suffix", reader) ||
        json_reader_text(unknown, model, "unk_token", reader) ||
        json_reader_flag(byte_fallback, model, "byte_fallback", false, reader) ||
        json_reader_flag(&subwords->fuse_unknown, model, "fuse_unk", false, reader) ||
        json_reader_flag(&subwords->ignore_merges, model, "ignore_merges", false, reader))
        return -1;
    if (*type && strcmp(type, "BPE") != 0) return subwords_refuse("model", type, reader);
    if (*prefix) return subwords_refuse("continuing_subword_prefix", prefix, reader);
    if (*suffix) return subwords_refuse("end_of_word_suffix", suffix, reader);
    if (dropout && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        return subwords_refuse("model's option", "dropout", reader);
    return 0;
}

/* Returns the first number without a token, or vocab_size. */
static int32_t first_hole(const struct subwords *subwords) {
    const uint32_t *starts = subwords->names.starts;
    int32_t token = 0;
    while (token < subwords->vocab_size && starts[token] < starts[token + 1]) token++;
    return token;
}

/* Decides whether the tokenizer is of GPT-2's kind; is_gpt2 already covers the pre-tokenizer. For
 * that kind <|endoftext|> is special even if the file does not add it. */
static int detect_gpt2(struct subwords_builder *builder, bool byte_fallback) {
    struct subwords *subwords = builder->subwords;
    const char *const name = SUBWORDS_END_OF_TEXT;
    const size_t count = arrlenu(subwords->added);
    struct added_token *added = subwords->added;
    subwords->is_gpt2 = subwords->is_gpt2 && !byte_fallback && !subwords->ignore_merges &&
                        first_hole(subwords) == subwords->vocab_size &&
                        subwords->normalizer_count == 0 &&
                        subwords->unknown == SUBWORDS_UNKNOWN_VANISHES &&
                        subwords->begin_count + subwords->end_count == 0 && count <= 1 &&
                        (count == 0 || (strcmp(added->text, name) == 0 && !added->single_word &&
                                        !added->lstrip && !added->rstrip));
    if (!subwords->is_gpt2) return 0;
    if (count == 1) added->special = true;
    const int32_t token = subwords_find(subwords, (const uint8_t *)name, strlen(name));
    if (count == 1 || token < 0) return 0;
    return subwords_builder_add_added(builder,
                                      (struct added_token){.token = token, .special = true}, name);
}

static int read_model(struct subwords_builder *builder, const cJSON *root, const cJSON *model) {
    struct subwords *subwords = builder->subwords;
    const struct json_reader *reader = builder->reader;
    const cJSON *vocabulary, *merges;
    const char *unknown;
    bool byte_fallback;
    vocabulary = json_reader_member(model, "vocab");
    merges = json_reader_member(model, "merges");
    if (read_options(subwords, model, &unknown, &byte_fallback, reader) ||
        read_vocabulary(builder, vocabulary))
        return -1;
    const int32_t token =
        *unknown ? subwords_builder_find_number(builder, unknown) : SUBWORDS_UNKNOWN_VANISHES;
    if (read_added_tokens(builder, root) || subwords_builder_finish(builder, byte_fallback))
        return -1;
    if (*unknown && token < 0) subwords->unknown = SUBWORDS_UNKNOWN_FAILS;
    else subwords->unknown = token;
    if (subwords->byte_level && !subwords->lacks_bytes)
        subwords->unknown = SUBWORDS_UNKNOWN_VANISHES;
    if (detect_gpt2(builder, byte_fallback)) return -1;
    return read_merges(builder, merges) || subwords_builder_build_tries(builder) ? -1 : 0;
}

/* True if the vocabulary has all tokens of the template. */
static bool has_template(const struct subwords *subwords) {
    bool has = true;
    for (int i = 0; i < subwords->begin_count; i++)
        has &= subwords->begins[i] < subwords->vocab_size;
    for (int i = 0; i < subwords->end_count; i++) has &= subwords->ends[i] < subwords->vocab_size;
    return has;
}

static int read_root(struct subwords_builder *builder) {
    struct subwords *subwords = builder->subwords;
    const struct json_reader *reader = builder->reader;
    const cJSON *root = builder->root, *model = json_reader_member(root, "model");
    if (json_reader_expect(root,
                           "version truncation padding added_tokens normalizer pre_tokenizer "
                           "post_processor decoder model",
                           "file", reader))
        return -1;
    if (!model) return subwords_refuse("model", "null", reader);
    if (subwords_read_pipeline(subwords, root, reader) || read_model(builder, root, model))
        return -1;
    return has_template(subwords)
               ? 0
               : subwords_refuse("post_processor", "token outside the vocabulary", reader);
}

/* Prints the parsed file, with what the settings changed. */
static int print_root(char **text, const struct subwords_builder *builder) {
    *text = cJSON_PrintUnformatted(builder->root);
    return *text ? 0 : fail_memory(builder->reader->error, "a tokenizer");
}

int subwords_read_json(struct subwords *subwords, char **text,
                       const struct tokenizer_settings *settings,
                       const struct json_reader *reader) {
    struct subwords_builder builder;
    bool changed = false;
    if (text) *text = NULL;
    if (subwords_builder_open(&builder, subwords, reader)) return -1;
    int status =
        settings ? tokenizer_settings_apply(settings, builder.root, false, &changed, reader->error)
                 : 0;
    if (!status) status = read_root(&builder);
    if (!status && changed) status = print_root(text, &builder);
    return subwords_builder_close(&builder, status);
}

/* ---- vocab.json and merges.txt */

/* The tokenizer.json of a class without vocabulary and merges, with all members that tokenizers
 * needs. */
#define BYTE_LEVEL(adds, cuts)                              \
    "{\"type\": \"ByteLevel\", \"add_prefix_space\": " adds \
    ", \"trim_offsets\": true, \"use_regex\": " cuts "}"
#define CLASS(normalizer, pre_tokenizer)                                                          \
    "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [], "      \
    "\"normalizer\": " normalizer ", \"pre_tokenizer\": " pre_tokenizer ", "                      \
    "\"post_processor\": null, \"decoder\": " BYTE_LEVEL(                                         \
        "true", "true") ", "                                                                      \
                        "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, " \
                        "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, "     \
                        "\"fuse_unk\": false, "                                                   \
                        "\"byte_fallback\": false, \"ignore_merges\": false, \"merges\": []}}"
static const char gpt2_json[] = CLASS("null", BYTE_LEVEL("false", "true"));
static const char qwen2_json[] = CLASS(
    "{\"type\": \"NFC\"}",
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
    "\"behavior\": \"Isolated\", \"invert\": false}, " BYTE_LEVEL("false", "false") "]}");
#undef CLASS
#undef BYTE_LEVEL

/* Appends the lines of merges.txt to the merges of a tokenizer.json, with their numbers in
 * valueint. The text is a copy; NULs replace its line ends. */
static int read_lines(const struct json_reader *reader, char *text, cJSON *list) {
    int number = 0;
    bool ended = false;
    for (char *line = text, *next; line < text + reader->size; line = next) {
        next = line + strcspn(line, "\n");
        if (*next) *next++ = '\0';
        line[strcspn(line, "\r")] = '\0';
        number++;
        if (*line == '\0') ended = true;
        if (*line == '\0' || strncmp(line, "#version", 8) == 0) continue;
        if (ended) return json_reader_fail(reader, ", line %d: it follows an empty line", number);
        cJSON *merge = cJSON_CreateString(line);
        if (!cJSON_AddItemToArray(list, merge)) return fail_memory(reader->error, "a tokenizer");
        merge->valueint = number;
    }
    return 0;
}

static int read_merges_txt(const struct json_reader *reader, cJSON *list) {
    if (reader->size == 0) return json_reader_fail(reader, " is empty");
    if (strlen(reader->text) != reader->size || !utf8_valid(reader->text, reader->size))
        return json_reader_fail(reader, " is not UTF-8 text\nis it the right file?");
    char *text = strdup(reader->text);
    if (!text) return fail_memory(reader->error, "a tokenizer");
    const int status = read_lines(reader, text, list);
    free(text);
    return status;
}

/* True if the files mean GPT-2's tokenizer without any change: no added token but <|endoftext|>. */
static bool is_plain(const struct tokenizer_settings *settings, const cJSON *root) {
    const cJSON *list = json_member(root, "added_tokens"), *item = list ? list->child : NULL;
    const cJSON *level = json_member(root, "pre_tokenizer");
    const cJSON *vocabulary = json_member(json_member(root, "model"), "vocab");
    if (!settings) return true;
    if (settings->class != TOKENIZER_CLASS_GPT2 || json_reader_member(root, "post_processor") ||
        cJSON_IsTrue(json_member(level, "add_prefix_space")))
        return false;
    return !item || (!item->next &&
                     strcmp(json_member(item, "content")->valuestring, SUBWORDS_END_OF_TEXT) == 0 &&
                     json_member(vocabulary, SUBWORDS_END_OF_TEXT) &&
                     !cJSON_IsTrue(json_member(item, "single_word")) &&
                     !cJSON_IsTrue(json_member(item, "lstrip")) &&
                     !cJSON_IsTrue(json_member(item, "rstrip")));
}

int subwords_read_gpt2(struct subwords *subwords, char **text,
                       const struct tokenizer_settings *settings, const struct json_reader *vocab,
                       const struct json_reader *merges) {
    struct subwords_builder builder;
    const bool qwen2 = settings && settings->class == TOKENIZER_CLASS_QWEN2;
    bool changed, plain;
    if (text) *text = NULL;
    if (subwords_builder_open(&builder, subwords, vocab)) return -1;
    cJSON *vocabulary = builder.root, *root = cJSON_Parse(qwen2 ? qwen2_json : gpt2_json);
    if (!cJSON_AddItemToObject(cJSON_GetObjectItem(root, "model"), "vocab", vocabulary)) {
        cJSON_Delete(root);
        return subwords_builder_close(&builder, fail_memory(vocab->error, "a tokenizer"));
    }
    builder.root = root;
    builder.merges = merges;
    int status =
        settings ? tokenizer_settings_apply(settings, root, true, &changed, vocab->error) : 0;
    plain = !status && is_plain(settings, root);
    if (!status)
        status = read_merges_txt(merges,
                                 cJSON_GetObjectItem(cJSON_GetObjectItem(root, "model"), "merges"));
    if (!status) status = read_root(&builder);
    if (!status && plain && !subwords->is_gpt2)
        status = json_reader_fail(
            vocab, ": no token has the number %d\nnumbers must be 0, 1, 2 ... without holes",
            (int)first_hole(subwords));
    if (!status && !plain) status = print_root(text, &builder);
    return subwords_builder_close(&builder, status);
}
