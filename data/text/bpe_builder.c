#include "data/text/bpe_builder.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <stb/stb_ds.h>

enum { NAME_SHOWN = 40 };

/* Bytes of a name that messages show: whole characters. */
static int shown(const char *name) {
    size_t length = strlen(name);
    if (length > NAME_SHOWN)
        for (length = NAME_SHOWN; (name[length] & 0xc0) == 0x80;) length--;
    return (int)length;
}

__attribute__((format(printf, 2, 3))) static const char *refuse(struct bpe_builder *builder,
                                                                const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(builder->reason, sizeof builder->reason, format, arguments);
    va_end(arguments);
    return builder->reason;
}

void bpe_builder_open(struct bpe_builder *builder, struct bpe *bpe) {
    *bpe = (struct bpe){.end_of_text = -1};
    *builder = (struct bpe_builder){.bpe = bpe};
    byte_alphabet_fill(&builder->alphabet);
    sh_new_strdup(builder->tokens);
}

void bpe_builder_close(struct bpe_builder *builder) {
    shfree(builder->tokens);
    arrfree(builder->scratch);
}

int bpe_builder_find(struct bpe_builder *builder, const char *name) {
    const ptrdiff_t at = shgeti(builder->tokens, name);
    return at < 0 ? -1 : builder->tokens[at].value;
}

const char *bpe_builder_add_token(struct bpe_builder *builder, const char *name, int token) {
    if (*name == '\0') return "a token without a name";
    if (bpe_builder_find(builder, name) >= 0)
        return refuse(builder, "\"%.*s\" stands there twice", shown(name), name);
    if (token < 0 || token >= VOCABULARY_MAX)
        return refuse(builder, "the number of \"%.*s\" is no whole number within 0 to %d",
                      shown(name), name, VOCABULARY_MAX - 1);
    shput(builder->tokens, name, token);
    return NULL;
}

/* Names by token. */
static const char *sort_names(struct bpe_builder *builder, const char **names) {
    const int count = (int)shlen(builder->tokens);
    for (int i = 0; i < count; i++) {
        const struct bpe_token_name *entry = &builder->tokens[i];
        if (entry->value >= count)
            return refuse(builder,
                          "\"%.*s\" has the number %d, but there are %d tokens: their numbers must "
                          "be 0 to %d",
                          shown(entry->key), entry->key, entry->value, count, count - 1);
        if (names[entry->value])
            return refuse(builder, "\"%.*s\" and \"%.*s\" have the same number, %d",
                          shown(names[entry->value]), names[entry->value], shown(entry->key),
                          entry->key, entry->value);
        names[entry->value] = entry->key;
    }
    return NULL;
}

static const char *write_bytes(struct bpe_builder *builder, const char **names) {
    struct bpe *bpe = builder->bpe;
    for (int token = 0; token < bpe->vocab_size; token++) {
        const size_t start = arrlenu(bpe->bytes), room = strlen(names[token]);
        arrsetlen(bpe->bytes, start + room);
        const ptrdiff_t size =
            byte_alphabet_read(&builder->alphabet, bpe->bytes + start, names[token]);
        if (size < 0)
            return refuse(builder, "\"%.*s\" is not written in GPT-2's alphabet of bytes",
                          shown(names[token]), names[token]);
        arrsetlen(bpe->bytes, start + (size_t)size);
        byte_tokens_join(&bpe->byte_tokens, bpe->bytes + start, (size_t)size);
        arrput(bpe->starts, (uint32_t)start);
    }
    arrput(bpe->starts, (uint32_t)arrlenu(bpe->bytes));
    return NULL;
}

const char *bpe_builder_finish_tokens(struct bpe_builder *builder) {
    struct bpe *bpe = builder->bpe;
    const char **names = NULL;
    bpe->vocab_size = (int)shlen(builder->tokens);
    arrsetlen(names, (size_t)bpe->vocab_size);
    for (int i = 0; i < bpe->vocab_size; i++) names[i] = NULL;
    const char *reason = sort_names(builder, names);
    if (!reason) reason = write_bytes(builder, names);
    arrfree(names);
    if (reason) return reason;
    for (int byte = 0; byte < 256; byte++) {
        char name[BYTE_ALPHABET_TEXT_MAX];
        byte_alphabet_write(&builder->alphabet, name, (uint8_t)byte);
        const int token = bpe_builder_find(builder, name);
        if (token < 0)
            return refuse(builder, "there is no token \"%s\" for the byte 0x%02x", name,
                          (unsigned)byte);
        bpe->byte_tokens.tokens[byte] = token;
    }
    bpe->end_of_text = bpe_builder_find(builder, BPE_END_OF_TEXT);
    return NULL;
}

const char *bpe_builder_add_merge(struct bpe_builder *builder, const char *left,
                                  const char *right) {
    const size_t left_length = strlen(left), right_length = strlen(right);
    arrsetlen(builder->scratch, left_length + right_length + 1);
    memcpy(builder->scratch, left, left_length);
    memcpy(builder->scratch + left_length, right, right_length + 1);
    const char *const names[3] = {left, right, builder->scratch};
    int tokens[3];
    for (int i = 0; i < 3; i++) {
        tokens[i] = bpe_builder_find(builder, names[i]);
        if (tokens[i] < 0)
            return refuse(builder, "\"%.*s\"%s is not in the vocabulary", shown(names[i]), names[i],
                          i == 2 ? ", the result of the merge," : "");
    }
    struct merges *merges = &builder->bpe->merges;
    const struct merge merge = {
        .left = tokens[0], .right = tokens[1], .token = tokens[2], .rank = (uint32_t)merges->count};
    if (merges_add(merges, merge)) return NULL;
    return refuse(builder, "\"%.*s %.*s\" is merged a second time", shown(left), left, shown(right),
                  right);
}
