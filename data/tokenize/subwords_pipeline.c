#include "data/tokenize/subwords_builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#define BYTE_LEVEL_MEMBERS "type add_prefix_space trim_offsets use_regex"
#define METASPACE_MEMBERS  "type replacement add_prefix_space prepend_scheme split str_rep"

enum { DEPTH_MAX = 8, SPLIT_TEXT_MAX = 1000 };

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

int subwords_refuse(const char *what, const char *name, const struct json_reader *reader) {
    return json_reader_fail(
        reader,
        ": its %s \"%.60s\" is not supported\nanother version of this program may "
        "support it",
        what, name);
}

/* A component of the pipeline: its member of the file, and the list of its parts in a Sequence. */
struct component {
    const char *name, *parts;
    int (*read)(struct subwords *subwords, const struct cJSON *node, const char *type,
                const struct json_reader *reader);
};

/* Reads a node, or each part of a Sequence, at any depth. */
static int read_node(struct subwords *subwords, const struct cJSON *node,
                     const struct component *component, int depth,
                     const struct json_reader *reader) {
    const struct cJSON *part, *list = json_reader_member(node, component->parts);
    const char *type;
    char names[32];
    if (!node) return 0;
    if (!cJSON_IsObject(node)) return subwords_refuse(component->name, "that is no object", reader);
    if (json_reader_text(&type, node, "type", reader)) return -1;
    if (strcmp(type, "Sequence") != 0) return component->read(subwords, node, type, reader);
    snprintf(names, sizeof names, "type %s", component->parts);
    if (json_reader_expect(node, names, component->name, reader)) return -1;
    if (!cJSON_IsArray(list) || depth == DEPTH_MAX)
        return subwords_refuse(component->name, "Sequence without a list", reader);
    cJSON_ArrayForEach(part, list) {
        if (read_node(subwords, part, component, depth + 1, reader)) return -1;
    }
    return 0;
}

static int read_component(struct subwords *subwords, const struct cJSON *root,
                          const struct component *component, const struct json_reader *reader) {
    return read_node(subwords, json_reader_member(root, component->name), component, 0, reader);
}

/* ---- normalizer */

/* Reads {"String": ...} or {"Regex": ...}. */
static int read_pattern(const char **string, const char **regex, const struct cJSON *node,
                        const struct json_reader *reader) {
    const struct cJSON *pattern = json_reader_member(node, "pattern");
    if (json_reader_expect(pattern, "String Regex", "pattern", reader) ||
        json_reader_text(string, pattern, "String", reader) ||
        json_reader_text(regex, pattern, "Regex", reader))
        return -1;
    return !**string == !**regex ? subwords_refuse("pattern", "without a text", reader) : 0;
}

static int add_normalizer(struct subwords *subwords, enum subwords_normalizer_kind kind,
                          const char *from, const char *to, const struct json_reader *reader) {
    if (subwords->normalizer_count == SUBWORDS_NORMALIZERS_MAX)
        return subwords_refuse("normalizer", "of so many parts", reader);
    struct subwords_normalizer *part = &subwords->normalizers[subwords->normalizer_count++];
    *part = (struct subwords_normalizer){.kind = kind, .from = strdup(from), .to = strdup(to)};
    if (kind == SUBWORDS_NFC && !subwords->nfc.marks) nfc_open(&subwords->nfc);
    return part->from && part->to ? 0 : fail_memory(reader->error, "a tokenizer");
}

static int read_normalizer(struct subwords *subwords, const struct cJSON *node, const char *type,
                           const struct json_reader *reader) {
    const char *to, *from, *regex;
    if (strcmp(type, "NFC") == 0)
        return json_reader_expect(node, "type", "normalizer", reader)
                   ? -1
                   : add_normalizer(subwords, SUBWORDS_NFC, "", "", reader);
    if (strcmp(type, "Prepend") == 0) {
        if (json_reader_expect(node, "type prepend", "normalizer", reader) ||
            json_reader_text(&to, node, "prepend", reader))
            return -1;
        return add_normalizer(subwords, SUBWORDS_PREPEND, "", to, reader);
    }
    if (strcmp(type, "Replace") != 0) return subwords_refuse("normalizer", type, reader);
    if (json_reader_expect(node, "type pattern content", "normalizer", reader) ||
        json_reader_text(&to, node, "content", reader) || read_pattern(&from, &regex, node, reader))
        return -1;
    if (*regex) return subwords_refuse("normalizer", "Replace of a Regex", reader);
    return add_normalizer(subwords, SUBWORDS_REPLACE, from, to, reader);
}

/* ---- pre_tokenizer */

int subwords_add_rule(struct subwords *subwords, const char *regex, enum split_dialect dialect,
                      bool drops_gaps, const struct json_reader *reader) {
    struct error error;
    if (subwords->rule_count == PRETOKENIZER_LEVELS_MAX)
        return subwords_refuse("pre_tokenizer", "of so many parts", reader);
    struct split_pattern *pattern = split_pattern_open(regex, dialect, subwords->atoms, &error);
    if (!pattern) return json_reader_fail(reader, ": %s", error.text);
    subwords->rules[subwords->rule_count++] =
        (struct pretokenizer_rule){.pattern = pattern, .drops_gaps = drops_gaps};
    return 0;
}

/* True if a normal form has no spaces. */
static bool lacks_spaces(const struct subwords *subwords) {
    for (int i = 0; i < subwords->normalizer_count; i++)
        if (subwords->normalizers[i].kind == SUBWORDS_REPLACE &&
            strcmp(subwords->normalizers[i].from, " ") == 0 &&
            !strchr(subwords->normalizers[i].to, ' '))
            return true;
    return false;
}

static int read_split(struct subwords *subwords, const struct cJSON *node,
                      const struct json_reader *reader) {
    const char *string, *regex, *behavior;
    bool invert;
    char escaped[2 * SPLIT_TEXT_MAX + 1], *out = escaped;
    if (json_reader_expect(node, "type pattern behavior invert", "pre_tokenizer Split", reader) ||
        read_pattern(&string, &regex, node, reader) ||
        json_reader_text(&behavior, node, "behavior", reader) ||
        json_reader_flag(&invert, node, "invert", false, reader))
        return -1;
    if (strcmp(string, " ") == 0 && lacks_spaces(subwords)) return 0;
    const bool removes = strcmp(behavior, "Removed") == 0 && invert;
    if (!removes && strcmp(behavior, "Isolated") != 0)
        return subwords_refuse("Split's behavior", behavior, reader);
    if (strlen(string) > SPLIT_TEXT_MAX)
        return subwords_refuse("pre_tokenizer", "Split of so long a String", reader);
    for (const char *at = string; *at; at++) {
        if (strchr("\\()[]{}.*+?^$|", *at)) *out++ = '\\';
        *out++ = *at;
    }
    *out = '\0';
    return subwords_add_rule(subwords, *regex ? regex : escaped, SPLIT_TOKENIZERS, removes, reader);
}

static int read_digits(struct subwords *subwords, const struct cJSON *node,
                       const struct json_reader *reader) {
    bool individual;
    if (json_reader_expect(node, "type individual_digits", "pre_tokenizer Digits", reader) ||
        json_reader_flag(&individual, node, "individual_digits", false, reader))
        return -1;
    return subwords_add_rule(subwords, individual ? "\\p{N}" : "\\p{N}+", SPLIT_TOKENIZERS, false,
                             reader);
}

static int read_byte_level(struct subwords *subwords, const struct cJSON *node,
                           const struct json_reader *reader) {
    bool adds, cuts;
    if (json_reader_expect(node, BYTE_LEVEL_MEMBERS, "pre_tokenizer ByteLevel", reader) ||
        json_reader_flag(&adds, node, "add_prefix_space", true, reader) ||
        json_reader_flag(&cuts, node, "use_regex", true, reader))
        return -1;
    if (adds && subwords->rule_count > 0)
        return subwords_refuse("pre_tokenizer", "ByteLevel with add_prefix_space after others",
                               reader);
    subwords->is_gpt2 = !adds && subwords->rule_count == 0;
    if (cuts && subwords_add_rule(subwords, gpt2_pattern, SPLIT_TOKENIZERS, false, reader))
        return -1;
    subwords->byte_level = true;
    subwords->adds_space = adds;
    return 0;
}

static int read_prepend(enum subwords_prepend *prepend, const struct cJSON *node,
                        const struct json_reader *reader) {
    static const char *const schemes[] = {"never", "first", "always"};
    const char *scheme, *mark;
    bool adds;
    if (json_reader_text(&scheme, node, "prepend_scheme", reader) ||
        json_reader_text(&mark, node, "replacement", reader) ||
        json_reader_flag(&adds, node, "add_prefix_space", true, reader))
        return -1;
    if (strcmp(mark, SUBWORDS_SPACE) != 0)
        return subwords_refuse("Metaspace's replacement", mark, reader);
    if (!*scheme) scheme = "always";
    int found = 0;
    while (found < 3 && strcmp(scheme, schemes[found]) != 0) found++;
    if (found == 3) return subwords_refuse("Metaspace's prepend_scheme", scheme, reader);
    *prepend = (enum subwords_prepend)found;
    return !adds && *prepend != SUBWORDS_NEVER
               ? subwords_refuse("Metaspace's add_prefix_space", "false", reader)
               : 0;
}

static int read_metaspace(struct subwords *subwords, const struct cJSON *node,
                          const struct json_reader *reader) {
    if (json_reader_expect(node, METASPACE_MEMBERS, "pre_tokenizer Metaspace", reader) ||
        read_prepend(&subwords->prepend, node, reader) ||
        json_reader_flag(&subwords->cuts_at_marks, node, "split", true, reader))
        return -1;
    if (subwords->marks_spaces) return subwords_refuse("pre_tokenizer", "second Metaspace", reader);
    subwords->marks_spaces = true;
    return 0;
}

static int read_pre_tokenizer(struct subwords *subwords, const struct cJSON *node, const char *type,
                              const struct json_reader *reader) {
    if (subwords->byte_level && strcmp(type, "Metaspace") != 0)
        return subwords_refuse("pre_tokenizer", "after ByteLevel", reader);
    if (strcmp(type, "Split") == 0) return read_split(subwords, node, reader);
    if (strcmp(type, "Digits") == 0) return read_digits(subwords, node, reader);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(subwords, node, reader);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(subwords, node, reader);
    return subwords_refuse("pre_tokenizer", type, reader);
}

/* ---- decoder */

static int read_decoder_part(struct subwords *subwords, const struct cJSON *node, const char *type,
                             const struct json_reader *reader) {
    const char *from, *regex, *to;
    enum subwords_prepend prepend;
    if (strcmp(type, "ByteFallback") == 0 || strcmp(type, "Fuse") == 0)
        return json_reader_expect(node, "type", "decoder", reader);
    if (strcmp(type, "Replace") == 0) {
        if (json_reader_expect(node, "type pattern content", "decoder", reader) ||
            read_pattern(&from, &regex, node, reader) ||
            json_reader_text(&to, node, "content", reader))
            return -1;
        if (strcmp(from, SUBWORDS_SPACE) == 0 && strcmp(to, " ") == 0) return 0;
    }
    if (strcmp(type, "Strip") == 0) {
        const struct cJSON *start, *stop;
        start = json_reader_member(node, "start");
        stop = json_reader_member(node, "stop");
        if (json_reader_expect(node, "type content start stop", "decoder", reader) ||
            json_reader_text(&from, node, "content", reader))
            return -1;
        subwords->strips_space = true;
        if (strcmp(from, " ") == 0 && cJSON_IsNumber(start) && start->valuedouble == 1 &&
            cJSON_IsNumber(stop) && stop->valuedouble == 0)
            return 0;
    }
    if (strcmp(type, "Metaspace") == 0) {
        if (json_reader_expect(node, METASPACE_MEMBERS, "decoder", reader) ||
            read_prepend(&prepend, node, reader))
            return -1;
        subwords->strips_space = prepend != SUBWORDS_NEVER;
        return 0;
    }
    return subwords_refuse("decoder", type, reader);
}

static int read_decoder(struct subwords *subwords, const struct cJSON *root,
                        const struct json_reader *reader) {
    static const struct component component = {"decoder", "decoders", read_decoder_part};
    const struct cJSON *node = json_reader_member(root, component.name);
    const char *type;
    if (json_reader_text(&type, node, "type", reader)) return -1;
    if (!node) return subwords_refuse("decoder", "null", reader);
    if (!subwords->byte_level) return read_node(subwords, node, &component, 0, reader);
    if (strcmp(type, "ByteLevel") != 0) return subwords_refuse("decoder", type, reader);
    return json_reader_expect(node, BYTE_LEVEL_MEMBERS, "decoder ByteLevel", reader);
}

/* ---- post_processor */

/* Appends the tokens of a template's special token. */
static int add_special(int32_t *tokens, int *count, const struct cJSON *all, const char *id,
                       const struct json_reader *reader) {
    const struct cJSON *special, *ids, *number;
    special = json_reader_member(all, id);
    ids = json_reader_member(special, "ids");
    if (!cJSON_IsArray(ids)) return subwords_refuse("template's token", id, reader);
    cJSON_ArrayForEach(number, ids) {
        if (!cJSON_IsNumber(number) || number->valuedouble < 0 ||
            number->valuedouble >= VOCABULARY_MAX || *count == SUBWORDS_TEMPLATE_MAX)
            return subwords_refuse("template's token", id, reader);
        tokens[(*count)++] = (int32_t)number->valuedouble;
    }
    return 0;
}

static int read_post_processor(struct subwords *subwords, const struct cJSON *node,
                               const char *type, const struct json_reader *reader) {
    const struct cJSON *list, *all, *part, *text, *special;
    const char *id;
    int texts = 0, parts = 0;
    if (strcmp(type, "ByteLevel") == 0)
        return json_reader_expect(node, BYTE_LEVEL_MEMBERS, "post_processor ByteLevel", reader);
    if (strcmp(type, "TemplateProcessing") != 0)
        return subwords_refuse("post_processor", type, reader);
    list = json_reader_member(node, "single");
    all = json_reader_member(node, "special_tokens");
    if (json_reader_expect(node, "type single pair special_tokens", "post_processor", reader))
        return -1;
    cJSON_ArrayForEach(part, list) {
        if (++parts > 2 * SUBWORDS_TEMPLATE_MAX + 1)
            return subwords_refuse("post_processor", "template of so many parts", reader);
        text = json_reader_member(part, "Sequence");
        special = json_reader_member(part, "SpecialToken");
        if (json_reader_text(&id, special, "id", reader)) return -1;
        texts += text != NULL;
        if (special &&
            add_special(texts ? subwords->ends : subwords->begins,
                        texts ? &subwords->end_count : &subwords->begin_count, all, id, reader))
            return -1;
    }
    return cJSON_IsArray(list) && texts == 1
               ? 0
               : subwords_refuse("post_processor", "template without one text", reader);
}

int subwords_read_pipeline(struct subwords *subwords, const struct cJSON *root,
                           const struct json_reader *reader) {
    static const struct component normalizer = {"normalizer", "normalizers", read_normalizer},
                                  pre_tokenizer = {"pre_tokenizer", "pretokenizers",
                                                   read_pre_tokenizer},
                                  post_processor = {"post_processor", "processors",
                                                    read_post_processor};
    if (read_component(subwords, root, &normalizer, reader) ||
        read_component(subwords, root, &pre_tokenizer, reader))
        return -1;
    if (subwords->byte_level && subwords->marks_spaces)
        return subwords_refuse("pre_tokenizer", "Metaspace with ByteLevel", reader);
    if (!subwords->byte_level && subwords->rule_count > 0)
        return subwords_refuse("pre_tokenizer", "Split without ByteLevel", reader);
    if (read_decoder(subwords, root, reader)) return -1;
    return read_component(subwords, root, &post_processor, reader);
}
