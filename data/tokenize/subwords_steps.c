#include "data/tokenize/subwords_steps.h"

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

/* Calls `one` for a node, or for each part of a Sequence, at any depth; `member` names the list of
 * parts. */
typedef int read_one(struct subwords *subwords, const struct cJSON *node, const char *type,
                     const struct json_reader *reader);

static int read_all(struct subwords *subwords, const struct cJSON *node, const char *what,
                    const char *member, read_one *one, int depth,
                    const struct json_reader *reader) {
    const struct cJSON *list, *part;
    const char *type;
    char names[32];
    if (!node) return 0;
    if (!cJSON_IsObject(node) || json_reader_text(&type, node, "type", reader)) {
        return cJSON_IsObject(node) ? -1 : subwords_refuse(what, "that is no object", reader);
    }
    if (strcmp(type, "Sequence") != 0) return one(subwords, node, type, reader);
    snprintf(names, sizeof names, "type %s", member);
    list = json_reader_member(node, member);
    if (json_reader_expect(node, names, what, reader)) return -1;
    if (!cJSON_IsArray(list) || depth == DEPTH_MAX)
        return subwords_refuse(what, "Sequence without a list", reader);
    cJSON_ArrayForEach(part, list) {
        if (read_all(subwords, part, what, member, one, depth + 1, reader)) return -1;
    }
    return 0;
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

static int add_step(struct subwords *subwords, enum subwords_form form, const char *from,
                    const char *to, const struct json_reader *reader) {
    if (subwords->step_count == SUBWORDS_STEPS_MAX)
        return subwords_refuse("normalizer", "of so many parts", reader);
    struct subwords_step *step = &subwords->steps[subwords->step_count++];
    *step = (struct subwords_step){.form = form, .from = strdup(from), .to = strdup(to)};
    const bool has_memory =
        step->from && step->to &&
        (form != SUBWORDS_NFC || subwords->nfc.marks || nfc_open(&subwords->nfc) == 0);
    return has_memory ? 0 : fail(reader->error, "out of memory while opening a tokenizer");
}

static int read_normal_form(struct subwords *subwords, const struct cJSON *node, const char *type,
                            const struct json_reader *reader) {
    const char *to, *from, *regex;
    if (strcmp(type, "NFC") == 0)
        return json_reader_expect(node, "type", "normalizer", reader)
                   ? -1
                   : add_step(subwords, SUBWORDS_NFC, "", "", reader);
    if (strcmp(type, "Prepend") == 0) {
        if (json_reader_expect(node, "type prepend", "normalizer", reader) ||
            json_reader_text(&to, node, "prepend", reader))
            return -1;
        return add_step(subwords, SUBWORDS_PREPEND, "", to, reader);
    }
    if (strcmp(type, "Replace") != 0) return subwords_refuse("normalizer", type, reader);
    if (json_reader_expect(node, "type pattern content", "normalizer", reader) ||
        json_reader_text(&to, node, "content", reader) || read_pattern(&from, &regex, node, reader))
        return -1;
    if (*regex) return subwords_refuse("normalizer", "Replace of a Regex", reader);
    return add_step(subwords, SUBWORDS_REPLACE, from, to, reader);
}

int subwords_read_normalizer(struct subwords *subwords, const struct cJSON *root,
                             const struct json_reader *reader) {
    const struct cJSON *node = json_reader_member(root, "normalizer");
    return read_all(subwords, node, "normalizer", "normalizers", read_normal_form, 0, reader);
}

/* ---- pre_tokenizer */

int subwords_add_rule(struct subwords *subwords, const char *regex, enum split_edition edition,
                      bool drops_gaps, const struct json_reader *reader) {
    struct error error;
    if (subwords->rule_count == CUTTER_LEVELS_MAX)
        return subwords_refuse("pre_tokenizer", "of so many parts", reader);
    struct split_pattern *pattern = split_pattern_open(regex, edition, subwords->atoms, &error);
    if (!pattern) return json_reader_fail(reader, ": %s", error.text);
    subwords->rules[subwords->rule_count++] =
        (struct cutter_rule){.pattern = pattern, .drops_gaps = drops_gaps};
    return 0;
}

/* True if a normal form has no spaces. */
static bool lacks_spaces(const struct subwords *subwords) {
    for (int i = 0; i < subwords->step_count; i++)
        if (subwords->steps[i].form == SUBWORDS_REPLACE &&
            strcmp(subwords->steps[i].from, " ") == 0 && !strchr(subwords->steps[i].to, ' '))
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
    static const char *const words[] = {"never", "first", "always"};
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
    while (found < 3 && strcmp(scheme, words[found]) != 0) found++;
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

static int read_cut(struct subwords *subwords, const struct cJSON *node, const char *type,
                    const struct json_reader *reader) {
    if (subwords->byte_level && strcmp(type, "Metaspace") != 0)
        return subwords_refuse("pre_tokenizer", "after ByteLevel", reader);
    if (strcmp(type, "Split") == 0) return read_split(subwords, node, reader);
    if (strcmp(type, "Digits") == 0) return read_digits(subwords, node, reader);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(subwords, node, reader);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(subwords, node, reader);
    return subwords_refuse("pre_tokenizer", type, reader);
}

int subwords_read_pre_tokenizer(struct subwords *subwords, const struct cJSON *root,
                                const struct json_reader *reader) {
    const struct cJSON *node = json_reader_member(root, "pre_tokenizer");
    if (read_all(subwords, node, "pre_tokenizer", "pretokenizers", read_cut, 0, reader)) return -1;
    if (subwords->byte_level ? subwords->marks_spaces : subwords->rule_count > 0)
        return subwords_refuse(
            "pre_tokenizer",
            subwords->byte_level ? "Metaspace with ByteLevel" : "Split without ByteLevel", reader);
    return 0;
}

/* ---- decoder */

static int read_decoding(struct subwords *subwords, const struct cJSON *node, const char *type,
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

int subwords_read_decoder(struct subwords *subwords, const struct cJSON *root,
                          const struct json_reader *reader) {
    const struct cJSON *node;
    const char *type;
    node = json_reader_member(root, "decoder");
    if (json_reader_text(&type, node, "type", reader)) return -1;
    if (!node) return subwords_refuse("decoder", "null", reader);
    if (!subwords->byte_level)
        return read_all(subwords, node, "decoder", "decoders", read_decoding, 0, reader);
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

static int read_post(struct subwords *subwords, const struct cJSON *node, const char *type,
                     const struct json_reader *reader) {
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

int subwords_read_post_processor(struct subwords *subwords, const struct cJSON *root,
                                 const struct json_reader *reader) {
    const struct cJSON *node = json_reader_member(root, "post_processor");
    return read_all(subwords, node, "post_processor", "processors", read_post, 0, reader);
}
