#include "data/corpus/pair_rows.h"

#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/token_mask.h"
#include "data/util/min_max.h"

/* A prompt or an answer: one string, or a list of messages or parts. */
struct text {
    enum { STRING, MESSAGES, PARTS } kind;
    const struct jsonl_member *values; /* [1], or [2 * count] of a list */
    size_t count;                      /* bytes of a string, or messages or parts */
};

static struct text text_of(const struct jsonl_member *member) {
    if (member->kind != JSONL_LIST) return (struct text){STRING, member, member->size};
    const bool is_parts = strcmp(member->of[0].name, "text") == 0;
    return (struct text){is_parts ? PARTS : MESSAGES, member->items,
                         arrlenu(member->items) / JSONL_ITEM_MEMBERS};
}

static bool is_equal(const struct jsonl_member *a, const struct jsonl_member *b) {
    return a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
}

static bool is_trained(const struct jsonl_member *part) {
    return part[1].text[0] == 't';
}

/* True if there is no text, or for an answer, none that is trained. */
static bool is_empty(const struct text *text, bool is_answer) {
    if (text->kind != PARTS) return text->count == 0;
    for (size_t i = 0; i < text->count; i++) {
        const struct jsonl_member *part = &text->values[2 * i];
        if (part->size > 0 && (!is_answer || is_trained(part))) return false;
    }
    return true;
}

/* Returns the number of bytes, messages or parts of the common beginning of two answers. */
static size_t common_beginning(const struct text *a, const struct text *b) {
    const size_t least = MIN(a->count, b->count);
    size_t same = 0;
    if (a->kind != STRING) {
        while (same < least && is_equal(&a->values[2 * same], &b->values[2 * same]) &&
               is_equal(&a->values[2 * same + 1], &b->values[2 * same + 1]))
            same++;
        return same < least ? same : least - 1;
    }
    const char *text = a->values->text;
    while (same < least && text[same] == b->values->text[same]) same++;
    const bool differs = same < least;
    if (!differs) same--;
    while (same > 0 && (text[same] & 0xC0) == 0x80) same--; /* characters stay whole */
    return differs && same > 0 && text[same - 1] == ' ' ? same - 1 : same;
}

static int check_answer(const struct text *answer, const char *name, struct error *error) {
    if (is_empty(answer, true)) return fail(error, "\"%.100s\" is empty", name);
    if (answer->kind != MESSAGES || (chat_is_assistant(&answer->values[0]) &&
                                     chat_is_assistant(&answer->values[2 * answer->count - 2])))
        return 0;
    return fail(error, "\"%.100s\" must begin and end with a message of the assistant", name);
}

/* Appends the text from `first` on, in its units, as segments of a prompt or an answer. */
static void put_text(struct pair_rows *rows, struct row_texts *texts, const struct text *text,
                     size_t first, bool is_answer) {
    if (text->kind == STRING)
        arrput(texts->segments,
               segment_of(text->values->text + first, text->count - first, is_answer));
    for (size_t i = first; text->kind == PARTS && i < text->count; i++) {
        const struct jsonl_member *part = &text->values[2 * i];
        arrput(texts->segments, segment_of(part->text, part->size, is_answer && is_trained(part)));
    }
    for (size_t i = 2 * first; text->kind == MESSAGES && i < 2 * text->count; i++)
        arrput(rows->values, text->values[i]);
}

/* Appends a document: a prompt, and an answer without its first `skip` units. */
static int put_document(struct pair_rows *rows, struct row_texts *texts, const struct text *prompt,
                        const struct text *answer, size_t skip, int marks, struct error *error) {
    const struct row_document document = {arrlenu(texts->segments), (uint8_t)marks};
    arrput(texts->documents, document);
    arrsetlen(rows->values, 0);
    put_text(rows, texts, prompt, 0, false);
    put_text(rows, texts, answer, skip, true);
    return answer->kind != MESSAGES ? 0
                                    : chat_render_from(rows->chat, rows->values,
                                                       arrlenu(rows->values) / JSONL_ITEM_MEMBERS,
                                                       prompt->count, &texts->segments, error);
}

/* True if both documents have the same text. */
static bool are_equal(const struct row_texts *texts) {
    const size_t first = texts->documents[0].segment, second = texts->documents[1].segment;
    const struct segment *a = texts->segments + first, *b = texts->segments + second;
    if (second - first != arrlenu(texts->segments) - second) return false;
    for (size_t i = 0; i < second - first; i++)
        if (a[i].size != b[i].size || memcmp(a[i].text, b[i].text, a[i].size) != 0) return false;
    return true;
}

static int fail_kinds(struct error *error) {
    return fail(error, "the prompt and the answers must be strings, or lists of one kind");
}

int pair_row_put(struct pair_rows *rows, const struct jsonl_member members[JSONL_MEMBERS_MAX],
                 struct row_texts *texts, const struct jsonl_member **bad, struct error *error) {
    struct text answers[2], prompt = {.kind = STRING};
    for (int i = 0; i < 2; i++) {
        *bad = &members[PAIR_CHOSEN + i];
        answers[i] = text_of(*bad);
        if (answers[i].kind != answers[0].kind) return fail_kinds(error);
        if (answers[i].count == 0) return fail(error, "\"%.100s\" is empty", (*bad)->name);
    }
    if (members[PAIR_PROMPT].name) prompt = text_of(&members[PAIR_PROMPT]);
    /* A string beside messages is the prompt that they begin with. */
    const bool is_implicit =
        !members[PAIR_PROMPT].name || (prompt.kind == STRING && answers[0].kind == MESSAGES);
    if (is_implicit) prompt = answers[0];
    const size_t skip = is_implicit ? common_beginning(&answers[0], &answers[1]) : 0;
    const size_t same = is_implicit ? skip : prompt.count;
    const struct text beginning = {prompt.kind, prompt.values, same};
    *bad = &members[is_implicit ? PAIR_CHOSEN : PAIR_PROMPT];
    if (prompt.kind != answers[0].kind) return fail_kinds(error);
    if (is_empty(&beginning, false))
        return is_implicit ? fail(error, "the answers have no common beginning as their prompt")
                           : fail(error, "\"%.100s\" is empty", (*bad)->name);
    for (int i = 0; i < 2; i++) {
        struct text rest = answers[i];
        *bad = &members[PAIR_CHOSEN + i];
        if (rest.kind != STRING) rest.values += 2 * skip;
        rest.count -= skip;
        const int marks = TOKEN_BEGINS | (i ? TOKEN_REJECTED : 0);
        if (check_answer(&rest, (*bad)->name, error) ||
            put_document(rows, texts, &beginning, &answers[i], skip, marks, error))
            return -1;
    }
    rows->rendered = prompt.kind != STRING;
    return are_equal(texts) ? fail(error, "\"%.100s\" and \"%.100s\" are equal",
                                   members[PAIR_CHOSEN].name, members[PAIR_REJECTED].name)
                            : 0;
}

/* Copies a row, since its text is overwritten by the next one's. */
static void hold(struct held_row *held, const char *row, size_t size,
                 const struct jsonl_member *members) {
    arrsetlen(held->text, size);
    memcpy(held->text, row, size);
    for (int i = 0; i < JSONL_MEMBERS_MAX; i++) {
        struct jsonl_member *items = held->members[i].items, *copy = &held->members[i];
        const size_t count = members[i].kind == JSONL_LIST ? arrlenu(members[i].items) : 0;
        *copy = members[i];
        copy->text = held->text + (members[i].text - row);
        arrsetlen(items, count);
        for (size_t j = 0; j < count; j++) {
            items[j] = members[i].items[j];
            if (items[j].text >= row && items[j].text <= row + size) /* not a constant */
                items[j].text = held->text + (members[i].items[j].text - row);
        }
        copy->items = items;
    }
}

/* Appends the pair of a row, with the completion of another. */
static int put_labelled(struct pair_rows *rows, struct row_texts *texts,
                        const struct held_row *held, const struct held_row *other,
                        struct error *error) {
    const struct text prompt = text_of(&held->members[PAIR_PROMPT]),
                      own = text_of(&held->members[PAIR_COMPLETION]),
                      others = text_of(&other->members[PAIR_COMPLETION]);
    const bool is_undesirable = held->members[PAIR_LABEL].text[0] == 'f';
    const int label = is_undesirable ? TOKEN_LABEL : 0;
    return put_document(rows, texts, &prompt, &own, 0, TOKEN_BEGINS | label, error) ||
                   put_document(rows, texts, &prompt, &others, 0,
                                TOKEN_BEGINS | TOKEN_REJECTED | TOKEN_LABEL, error)
               ? -1
               : 0;
}

int labelled_row_put(struct pair_rows *rows, const char *row, size_t size,
                     const struct jsonl_member members[JSONL_MEMBERS_MAX], struct row_texts *texts,
                     const struct jsonl_member **bad, struct error *error) {
    const struct text prompt = text_of(&members[PAIR_PROMPT]),
                      completion = text_of(&members[PAIR_COMPLETION]);
    struct held_row *current = &rows->held[rows->labelled % 2],
                    *before = &rows->held[(rows->labelled + 1) % 2];
    *bad = &members[PAIR_PROMPT];
    if (is_empty(&prompt, false)) return fail(error, "\"%.100s\" is empty", (*bad)->name);
    *bad = &members[PAIR_COMPLETION];
    if (check_answer(&completion, (*bad)->name, error)) return -1;
    if (completion.kind != prompt.kind ||
        (rows->labelled > 0 && completion.kind != text_of(&before->members[PAIR_COMPLETION]).kind))
        return fail_kinds(error);
    hold(current, row, size, members);
    rows->rendered = prompt.kind != STRING;
    const bool is_first = rows->labelled == 0;
    if (rows->labelled == 1 && put_labelled(rows, texts, before, current, error)) return -1;
    if (put_labelled(rows, texts, current, is_first ? current : before, error)) return -1;
    if (is_first) { /* it was only checked */
        arrsetlen(texts->segments, 0);
        arrsetlen(texts->documents, 0);
    }
    rows->labelled++;
    rows->undesirable += members[PAIR_LABEL].text[0] == 'f';
    return 0;
}

int completion_row_put(struct pair_rows *rows, const struct jsonl_member members[JSONL_MEMBERS_MAX],
                       struct row_texts *texts, const struct jsonl_member **bad,
                       struct error *error) {
    static const char *const kinds[] = {
        [STRING] = "a string", [MESSAGES] = "a list of messages", [PARTS] = "a list of segments"};
    struct text prompt = text_of(&members[PAIR_PROMPT]);
    const struct text completion = text_of(&members[PAIR_COMPLETION]);
    *bad = &members[PAIR_COMPLETION];
    /* An empty list is of either kind. */
    if (prompt.kind != STRING && prompt.count == 0 && completion.kind != STRING)
        prompt.kind = completion.kind;
    if (completion.kind != prompt.kind && completion.count > 0)
        return fail(error, "\"%.100s\" is %s, but \"%.100s\" is %s", members[PAIR_PROMPT].name,
                    kinds[prompt.kind], (*bad)->name, kinds[completion.kind]);
    rows->rendered = prompt.kind != STRING;
    return check_answer(&completion, (*bad)->name, error) ||
                   put_document(rows, texts, &prompt, &completion, 0, 0, error)
               ? -1
               : 0;
}

void pair_rows_close(struct pair_rows *rows) {
    for (int i = 0; i < 2; i++) {
        arrfree(rows->held[i].text);
        for (int j = 0; j < JSONL_MEMBERS_MAX; j++) arrfree(rows->held[i].members[j].items);
    }
    arrfree(rows->values);
}
