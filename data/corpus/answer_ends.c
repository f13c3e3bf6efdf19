#include "data/corpus/answer_ends.h"

#include <stdbool.h>
#include <stdlib.h>

#include <stb/stb_ds.h>
#include "data/util/min_max.h"

/* Tokens of a shard that are read: enough answers, in little time. */
enum { READ_MAX = 1 << 18 };

/* How often a token ends an answer. */
struct ending {
    int32_t key;
    int64_t value;
};

static bool is_special(const struct tokenizer *tokenizer, int32_t token) {
    size_t size;
    const uint8_t *name = tokenizer_bytes(tokenizer, token, &size);
    return size > 0 && tokenizer_special(tokenizer, name, size) == token;
}

/* Counts the last tokens of answers at the beginning of a shard. */
static int count_shard(struct ending **endings, int64_t *answers, const struct token_shard *shard,
                       struct error *error) {
    const uint64_t count = MIN(shard->count, READ_MAX);
    if (!shard->mask.bits || count == 0) return 0;
    int32_t *tokens = malloc(count * sizeof *tokens);
    if (!tokens) return fail_memory(error, "a text");
    const int status = token_shard_read(shard, tokens, 0, count, error);
    bool answer = false, before = true;
    for (uint64_t i = 0; status == 0 && i < count; i++) {
        const bool counts = token_mask_in_loss(&shard->mask, i);
        answer = counts && (answer || !before);
        before = counts;
        const bool last =
            i + 1 == shard->count || (i + 1 < count && !token_mask_in_loss(&shard->mask, i + 1));
        if (!answer || !last) continue;
        const int64_t before_this = hmget(*endings, tokens[i]); /* hmput adds the key first */
        hmput(*endings, tokens[i], before_this + 1);
        ++*answers;
    }
    free(tokens);
    return status;
}

int answer_ends(int32_t ends[ANSWER_ENDS_MAX], const struct tokens *text,
                const struct tokenizer *tokenizer, struct error *error) {
    struct ending *endings = NULL;
    int64_t answers = 0;
    int status = 0, count = 0;
    hmdefault(endings, 0);
    for (size_t i = 0; status == 0 && i < arrlenu(text->shards); i++)
        status = count_shard(&endings, &answers, &text->shards[i], error);
    for (ptrdiff_t i = 0; status == 0 && i < hmlen(endings) && count < ANSWER_ENDS_MAX; i++)
        if (10 * endings[i].value >= answers && is_special(tokenizer, endings[i].key))
            ends[count++] = endings[i].key;
    hmfree(endings);
    return status ? -1 : count;
}
