#include "data/tokenize/tiktoken_vocab.h"

#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>
#include <stb/stb_ds.h>

#include "data/tokenize/subwords_builder.h"

/* Real tokens have at most a few hundred bytes. Finding the merges of one takes quadratic time. */
enum { NO_DIGIT = -1, RANK_BYTES_MAX = 64 << 10 };

static int digit_of(char letter) {
    if (letter >= 'A' && letter <= 'Z') return letter - 'A';
    if (letter >= 'a' && letter <= 'z') return letter - 'a' + 26;
    if (letter >= '0' && letter <= '9') return letter - '0' + 52;
    return letter == '+' ? 62 : letter == '/' ? 63 : NO_DIGIT;
}

/* Appends the bytes of base64 (RFC 4648, with padding) up to a space. Returns a pointer to that
 * space, or NULL. */
static const char *read_base64(uint8_t **bytes, const char *text) {
    for (; *text != ' '; text += 4) {
        int digits[4], count = 0;
        while (count < 4 && (digits[count] = digit_of(text[count])) != NO_DIGIT) count++;
        for (int i = count; i < 4; i++) {
            if (text[i] != '=') return NULL;
            digits[i] = 0;
        }
        if (count < 2 || (count < 4 && text[4] != ' ')) return NULL;
        const int all = digits[0] << 18 | digits[1] << 12 | digits[2] << 6 | digits[3];
        for (int i = 0; i < count - 1; i++) arrput(*bytes, (uint8_t)(all >> (16 - 8 * i)));
    }
    return text;
}

/* Reads "BASE64 RANK". */
static int read_line(struct subwords_builder *builder, const char *line, uint8_t **bytes) {
    arrsetlen(*bytes, 0);
    const char *number = read_base64(bytes, line);
    const size_t digits = number ? strspn(number + 1, "0123456789") : 0;
    const char end = number ? number[1 + digits] : '\0';
    if (digits == 0 || digits > 7 || (end != '\n' && end != '\r' && end != '\0'))
        return json_reader_fail(builder->reader, ": \"%.*s\" is not a token in base64 and its rank",
                                (int)strcspn(line, "\r\n") > 60 ? 60 : (int)strcspn(line, "\r\n"),
                                line);
    if (arrlenu(*bytes) > RANK_BYTES_MAX)
        return json_reader_fail(builder->reader, ": the token of rank %.*s has more than %d bytes",
                                (int)digits, number + 1, RANK_BYTES_MAX);
    return subwords_builder_add_token(builder, *bytes, arrlenu(*bytes), (int32_t)atol(number + 1));
}

static int read_lines(struct subwords_builder *builder) {
    const char *text = builder->reader->text;
    uint8_t *bytes = NULL;
    int status = 0;
    if (strlen(text) != builder->reader->size)
        return json_reader_fail(builder->reader, " is no text\nis it the right file?");
    while (*text && !status) {
        if (*text != '\n' && *text != '\r') status = read_line(builder, text, &bytes);
        text += strcspn(text, "\n");
        text += *text == '\n';
    }
    arrfree(bytes);
    return status;
}

/* Adds every pair of tokens that forms this token. has_size [RANK_BYTES_MAX + 1]: true for each
 * size that some token has, so that other sizes are skipped. */
static void add_all_splits(struct subwords *subwords, int32_t token, const uint8_t *name,
                           size_t size, const bool *has_size) {
    for (size_t cut = 1; cut < size; cut++) {
        if (!has_size[cut] || !has_size[size - cut]) continue;
        const struct merge merge = {.left = subwords_find(subwords, name, cut),
                                    .right = subwords_find(subwords, name + cut, size - cut),
                                    .token = token,
                                    .rank = (uint32_t)token};
        if (merge.left >= 0 && merge.right >= 0) merges_add(&subwords->merges, merge);
    }
}

/* Derives the merges from the ranks. A token's bytes merge in the same way in any text, as long as
 * none of them merges with bytes outside of the token. So if the merges of lower ranks leave two
 * tokens of its bytes, only those two ever form it. They leave more than two if a token has a lower
 * rank than its parts; then every pair is added. */
static void add_merges(struct subwords *subwords) {
    struct merges_scratch scratch = {0};
    int32_t *parts = NULL;
    bool has_size[RANK_BYTES_MAX + 1] = {false};
    for (int32_t token = 0; token < subwords->vocab_size; token++) {
        size_t size;
        subwords_bytes(subwords, token, &size);
        if (size <= RANK_BYTES_MAX) has_size[size] = true;
    }
    for (int32_t token = 0; token < subwords->vocab_size; token++) {
        size_t size;
        const uint8_t *name = subwords_bytes(subwords, token, &size);
        if (size < 2 || subwords_find(subwords, name, size) != token) continue;
        arrsetlen(parts, size);
        for (size_t i = 0; i < size; i++) parts[i] = subwords->bytes.tokens[name[i]];
        if (merges_apply(&subwords->merges, &scratch, parts, size) == 2)
            merges_add(&subwords->merges, (struct merge){.left = parts[0],
                                                         .right = parts[1],
                                                         .token = token,
                                                         .rank = (uint32_t)token});
        else add_all_splits(subwords, token, name, size, has_size);
    }
    arrfree(parts);
    merges_scratch_free(&scratch);
}

static int read_special(struct subwords_builder *builder) {
    const struct json_reader *reader = builder->reader;
    const cJSON *entry, *list = json_reader_member(builder->root, "special_tokens");
    const char *begin;
    struct subwords *subwords = builder->subwords;
    if (json_reader_text(&begin, builder->root, "begin", reader)) return -1;
    if (list && !cJSON_IsObject(list))
        return subwords_refuse("special_tokens", "that are no object", reader);
    cJSON_ArrayForEach(entry, list) {
        const struct added_token added = {.token = json_reader_token(entry), .special = true};
        if (subwords_builder_add_added(builder, added, entry->string)) return -1;
        if (strcmp(entry->string, begin) == 0)
            subwords->begins[subwords->begin_count++] = added.token;
    }
    if (*begin && subwords->begin_count != 1)
        return subwords_refuse("begin, which is no special token,", begin, reader);
    return 0;
}

static int read_files(struct subwords_builder *builder, const struct json_reader *json,
                      const struct json_reader *ranks) {
    struct subwords *subwords = builder->subwords;
    const char *pattern;
    subwords->byte_level = subwords->ignore_merges = true;
    subwords->unknown = -1;
    if (json_reader_expect(builder->root, "pattern special_tokens begin", "file", json) ||
        json_reader_text(&pattern, builder->root, "pattern", json) ||
        subwords_add_rule(subwords, pattern, SPLIT_TIKTOKEN, false, json))
        return -1;
    builder->reader = ranks;
    if (read_lines(builder)) return -1;
    builder->reader = json;
    if (read_special(builder)) return -1;
    builder->reader = ranks;
    if (subwords_builder_finish(builder, false)) return -1;
    for (int byte = 0; byte < 256; byte++) /* tiktoken ends a program that has such a text */
        if (subwords->lacking[byte])
            return json_reader_fail(ranks, ": there is no token for the byte 0x%02x",
                                    (unsigned)byte);
    add_merges(subwords);
    return subwords_builder_build_tries(builder);
}

int subwords_read_tiktoken(struct subwords *subwords, const struct json_reader *json,
                           const struct json_reader *ranks) {
    struct subwords_builder builder;
    if (subwords_builder_open(&builder, subwords, json)) return -1;
    return subwords_builder_close(&builder, read_files(&builder, json, ranks));
}
