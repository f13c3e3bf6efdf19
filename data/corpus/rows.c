#include "data/corpus/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/utf8.h"

static const struct jsonl_member MESSAGE[] = {{.name = "role", .synonym = "from"},
                                              {.name = "content", .synonym = "value"}},
                                 PART[] = {{.name = "text"},
                                           {.name = "train", .kind = JSONL_BOOLEAN}};

enum { INSTRUCTION, INPUT, OUTPUT };

/* Kinds of rows, in the order in which the first row is searched for their members. Instructions
 * come first, because Alpaca's own rows have a "text" too. */
static const struct row_form {
    const char *names[JSONL_MEMBERS_MAX];
    unsigned needed; /* bits of names that the first row must have */
    unsigned any;    /* bits of names of which it must have one */
    enum document_form form;
    const struct jsonl_member *items; /* members of the objects in its list; NULL: strings */
} ROWS[] = {
    {{"instruction", "input", "output"}, 1 << INSTRUCTION | 1 << OUTPUT, ~0U, DOCUMENT_PAIR, NULL},
    {{"text"}, 0, ~0U, DOCUMENT_TEXT, NULL},
    {{"messages"}, 0, ~0U, DOCUMENT_RENDERED, MESSAGE},
    {{"conversations"}, 0, ~0U, DOCUMENT_RENDERED, MESSAGE},
    {{"segments"}, 0, ~0U, DOCUMENT_RENDERED, PART},
    {{"prompt", "chosen", "rejected"},
     0,
     1 << PAIR_CHOSEN | 1 << PAIR_REJECTED,
     DOCUMENT_PAIR,
     NULL},
    {{"prompt", "completion", "label"},
     1 << PAIR_COMPLETION | 1 << PAIR_LABEL,
     ~0U,
     DOCUMENT_PAIR,
     NULL},
    {{"prompt", "completion"}, 0, ~0U, DOCUMENT_PAIR, NULL},
};
enum { INSTRUCTIONS, TEXT, MESSAGES, CONVERSATIONS, SEGMENTS, PREFERENCES, LABELLED, PAIRS, KINDS };

static int name_count(const struct row_form *kind) {
    int count = 0;
    while (count < JSONL_MEMBERS_MAX && kind->names[count]) count++;
    return count;
}

static void forget(struct rows *rows) {
    for (int i = 0; i < JSONL_MEMBERS_MAX; i++) {
        free(rows->names[i]);
        rows->names[i] = NULL;
    }
    rows->kind = NULL;
}

static int out_of_memory(struct error *error) {
    return fail(error, "out of memory while reading a row of JSON Lines");
}

bool rows_are_labelled(const struct rows *rows) {
    return rows->kind == &ROWS[LABELLED];
}

bool rows_are_pairs(const struct rows *rows) {
    return rows->kind == &ROWS[PREFERENCES] || rows_are_labelled(rows);
}

/* True if rows have prompts or answers that may be strings or lists. */
static bool rows_have_answers(const struct rows *rows) {
    return rows_are_pairs(rows) || rows->kind == &ROWS[PAIRS];
}

/* Sets kind and names; those of a list are as in ROWS. */
static int set_kind(struct rows *rows, int kind, char *const names[], struct error *error) {
    forget(rows);
    rows->kind = &ROWS[kind];
    for (int i = 0; i < name_count(rows->kind); i++) {
        if (names && !names[i]) continue;
        rows->names[i] = strdup(names ? names[i] : rows->kind->names[i]);
        if (!rows->names[i]) return out_of_memory(error);
    }
    return 0;
}

/* Returns the kind of pairs whose members are all fields, MEMBER or MEMBER=NAME, or KINDS. Sets
 * names to theirs, in the order of ROWS. */
static int pair_kind(char *const fields[], int count, char *names[JSONL_MEMBERS_MAX]) {
    for (int kind = PREFERENCES; kind <= LABELLED; kind++) {
        int found = 0;
        for (int member = 0; member < JSONL_MEMBERS_MAX; member++) {
            const char *name = ROWS[kind].names[member];
            const size_t size = strlen(name);
            names[member] = NULL;
            for (int i = 0; i < count && !names[member]; i++)
                if (strncmp(fields[i], name, size) == 0 && strchr("=", fields[i][size]))
                    names[member] = fields[i] + (fields[i][size] ? size + 1 : 0);
            found += names[member] != NULL;
        }
        const bool has_answers = names[PAIR_CHOSEN] && names[PAIR_REJECTED];
        if (found == count && has_answers && (names[PAIR_PROMPT] || kind == PREFERENCES))
            return kind;
    }
    return KINDS;
}

static bool are_different(char *const names[], int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (names[i] && names[j] && strcmp(names[i], names[j]) == 0) return false;
    return true;
}

/* Parses "NAME", "NAME,NAME" or "NAME,NAME,NAME", which must differ, or the members of pairs. */
static int set_fields(struct rows *rows, const char *field, struct error *error) {
    static const int of_count[] = {[1] = TEXT, [2] = PAIRS, [3] = INSTRUCTIONS};
    char copy[256], *names[JSONL_MEMBERS_MAX], *members[JSONL_MEMBERS_MAX], *left = copy;
    int count = 0;
    bool good = snprintf(copy, sizeof copy, "%s", field) < (int)sizeof copy;
    while (good && left) {
        char *name = strsep(&left, ",");
        good = *name && count < JSONL_MEMBERS_MAX;
        if (good) names[count++] = name;
    }
    const int pairs = good ? pair_kind(names, count, members) : KINDS;
    for (int i = 0; pairs < KINDS && i < JSONL_MEMBERS_MAX; i++) good &= !members[i] || *members[i];
    good = good && (pairs < KINDS ? are_different(members, JSONL_MEMBERS_MAX)
                                  : are_different(names, count));
    if (!good)
        return fail(error,
                    "--field %.200s: allowed is the name of one member, or those of a prompt and "
                    "its completion, or of an instruction, its input and output, with commas "
                    "between; or for pairs, prompt=NAME,chosen=NAME,rejected=NAME or "
                    "prompt=NAME,completion=NAME,label=NAME",
                    field);
    if (pairs < KINDS) return set_kind(rows, pairs, members, error);
    int kind = of_count[count];
    for (int i = 0; count == 1 && i < KINDS; i++)
        if (ROWS[i].items && strcmp(names[0], ROWS[i].names[0]) == 0) kind = i;
    return set_kind(rows, kind, names, error);
}

int rows_open(struct rows *rows, const char *field, const struct tokenizer *tokenizer,
              struct error *error) {
    *rows = (struct rows){.tokenizer = tokenizer};
    return field ? set_fields(rows, field, error) : 0;
}

void rows_close(struct rows *rows) {
    forget(rows);
    for (int i = 0; i < JSONL_MEMBERS_MAX; i++) arrfree(rows->items[i]);
    arrfree(rows->text);
    arrfree(rows->texts.segments);
    arrfree(rows->texts.documents);
    pair_rows_close(&rows->pairs);
    arrfree(rows->original);
}

/* Returns the value of --field that reads such a row as a pair, or NULL if it is none. */
static const char *pair_field_of(const char *row, size_t size) {
    const struct row_form *pair = &ROWS[PREFERENCES];
    const unsigned found = jsonl_names(row, size, pair->names, name_count(pair));
    if (!(found & 1 << PAIR_CHOSEN && found & 1 << PAIR_REJECTED)) return NULL;
    return found & 1 << PAIR_PROMPT ? "prompt,chosen,rejected" : "chosen,rejected";
}

/* Without --field, the first good row decides for all rows. A bad one chooses the advice about
 * it. */
static int choose_kind(struct rows *rows, const char *row, size_t size, struct error *error) {
    for (int kind = 0; kind < KINDS; kind++) {
        const struct row_form *form = &ROWS[kind];
        const unsigned found = jsonl_names(row, size, form->names, name_count(form));
        if ((found & form->needed) != form->needed || !(found & form->any)) continue;
        rows->pair_field = kind < PREFERENCES ? pair_field_of(row, size) : NULL;
        const bool is_implicit = kind == PREFERENCES && !(found & 1 << PAIR_PROMPT);
        char *const answers[] = {NULL, (char[]){"chosen"}, (char[]){"rejected"}};
        return set_kind(rows, kind, is_implicit ? answers : NULL, error);
    }
    return set_kind(rows, TEXT, NULL, error);
}

void rows_names(const struct rows *rows, char *text, size_t size) {
    snprintf(text, size, "%s", "");
    for (int i = 0; i < name_count(rows->kind); i++) {
        const size_t used = strlen(text);
        if (!rows->names[i]) continue;
        snprintf(text + used, size - used, "%s%.80s", used ? ", " : "", rows->names[i]);
    }
}

void rows_describe(const struct rows *rows, char *text, size_t size) {
    switch (rows->kind - ROWS) {
    case INSTRUCTIONS:
        snprintf(text, size, "strings named \"%.80s\" and \"%.80s\", and maybe \"%.80s\"",
                 rows->names[INSTRUCTION], rows->names[OUTPUT], rows->names[INPUT]);
        return;
    case TEXT: snprintf(text, size, "a string named \"%.100s\"", rows->names[0]); return;
    case MESSAGES:
        snprintf(text, size,
                 "\"messages\", a list of objects with strings named \"role\" and \"content\"");
        return;
    case CONVERSATIONS:
        snprintf(text, size,
                 "\"conversations\", a list of objects with strings named \"from\" and \"value\"");
        return;
    case SEGMENTS:
        snprintf(text, size,
                 "\"segments\", a list of objects with a string named \"text\" and \"train\", true "
                 "or false");
        return;
    case PREFERENCES:
        snprintf(text, size, "\"%.80s\" and \"%.80s\", %s", rows->names[PAIR_CHOSEN],
                 rows->names[PAIR_REJECTED],
                 rows->names[PAIR_PROMPT]
                     ? "after a prompt, all strings or all lists of messages"
                     : "strings or lists of messages that begin with the same prompt");
        return;
    case LABELLED:
        snprintf(text, size,
                 "\"%.80s\" and \"%.80s\", strings or lists of messages, and \"%.80s\", true or "
                 "false",
                 rows->names[PAIR_PROMPT], rows->names[PAIR_COMPLETION], rows->names[PAIR_LABEL]);
        return;
    case PAIRS:
        snprintf(text, size, "\"%.80s\" and \"%.80s\", both strings or both lists of messages",
                 rows->names[0], rows->names[1]);
    }
}

static bool has_template(struct rows *rows) {
    if (!rows->chat && rows->tokenizer) rows->chat = chat_template_of(rows->tokenizer);
    return rows->chat;
}

static int find_template(struct rows *rows, struct error *error) {
    if (has_template(rows)) return 0;
    return fail(error,
                "the row has \"%s\", but the tokenizer has the special tokens of no known chat "
                "template (ChatML, Llama 3, Mistral 7B v0.3, Gemma)\nrender the file with "
                "scripts/render_chat.py, which uses the model's own template",
                rows_have_answers(rows) ? "messages" : rows->names[0]);
}

static void append(char **text, const char *bytes, size_t size) {
    if (size > 0) memcpy(arraddnptr(*text, size), bytes, size);
}

static void append_string(char **text, const char *string) {
    append(text, string, strlen(string));
}

/* Puts the prompt of an instruction into rows->text. */
static void write_prompt(struct rows *rows, const struct jsonl_member *instruction,
                         const struct jsonl_member *input) {
    char **text = &rows->text;
    arrsetcap(*text, 64); /* never NULL */
    arrsetlen(*text, 0);
    if (rows->chat) {
        append(text, instruction->text, instruction->size);
        if (input->size > 0) append_string(text, "\n");
        append(text, input->text, input->size);
        return;
    }
    append_string(text, "Below is an instruction that describes a task");
    if (input->size > 0)
        append_string(text, ", paired with an input that provides further context");
    append_string(text, ". Write a response that appropriately completes the request.\n\n"
                        "### Instruction:\n");
    append(text, instruction->text, instruction->size);
    if (input->size > 0) append_string(text, "\n\n### Input:\n");
    append(text, input->text, input->size);
    append_string(text, "\n\n### Response:\n");
}

static int render_instruction(struct rows *rows, const struct jsonl_member members[],
                              struct error *error) {
    const bool as_chat = has_template(rows);
    write_prompt(rows, &members[INSTRUCTION], &members[INPUT]);
    if (!as_chat) {
        arrput(rows->texts.segments, ((struct segment){rows->text, arrlenu(rows->text), false}));
        arrput(rows->texts.segments,
               ((struct segment){members[OUTPUT].text, members[OUTPUT].size, true}));
        return members[OUTPUT].size > 0 ? 0 : fail(error, "the output is empty");
    }
    const struct jsonl_member turns[] = {{.text = (char[]){"user"}, .size = 4},
                                         {.text = rows->text, .size = arrlenu(rows->text)},
                                         {.text = (char[]){"assistant"}, .size = 9},
                                         members[OUTPUT]};
    return chat_render(rows->chat, turns, 2, &rows->texts.segments, error);
}

/* Takes the texts of a list of parts. */
static int take_parts(struct rows *rows, struct error *error) {
    const struct jsonl_member *values = rows->items[0];
    bool any_in_loss = false;
    for (size_t i = 0; i < arrlenu(values); i += JSONL_ITEM_MEMBERS) {
        const bool in_loss = values[i + 1].text[0] == 't';
        const struct segment segment = {values[i].text, values[i].size, in_loss};
        arrput(rows->texts.segments, segment);
        any_in_loss |= in_loss && segment.size > 0;
    }
    return any_in_loss ? 0 : fail(error, "there is no text to train on");
}

/* Parses a row of one text, conversation or instruction into segments. Returns -1 with a message
 * about column if it is bad. */
static int parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const struct row_form *kind = rows->kind;
    const int count = name_count(kind);
    struct jsonl_member members[JSONL_MEMBERS_MAX] = {0};
    for (int i = 0; i < count; i++) members[i].name = rows->names[i];
    if (kind == &ROWS[INSTRUCTIONS]) members[INPUT].optional = true;
    if (kind->items) {
        members[0].kind = JSONL_LIST;
        members[0].of = kind->items;
        members[0].items = rows->items[0];
    }
    const int status = jsonl_row(row, size, members, count, column, error);
    if (kind->items) rows->items[0] = members[0].items;
    if (status) return -1;
    *column = (size_t)(members[0].text - row) + 1;
    arrput(rows->texts.documents, ((struct row_document){0}));
    if (kind == &ROWS[INSTRUCTIONS]) return render_instruction(rows, members, error);
    if (kind->items == MESSAGE)
        return chat_render(rows->chat, rows->items[0], arrlenu(rows->items[0]) / JSONL_ITEM_MEMBERS,
                           &rows->texts.segments, error);
    if (kind->items) return take_parts(rows, error);
    /* A text may be empty: such documents are dropped. */
    arrput(rows->texts.segments, ((struct segment){members[0].text, members[0].size, true}));
    return 0;
}

/* Parses a row with answers. Returns RESULT_NONE with a message about column if it is bad. */
static int parse_answers(struct rows *rows, char *row, size_t size, size_t *column,
                         struct error *error) {
    const bool is_labelled = rows_are_labelled(rows);
    const int first = !rows->names[PAIR_PROMPT], end = name_count(rows->kind);
    const struct jsonl_member *bad;
    struct jsonl_member members[JSONL_MEMBERS_MAX] = {0};
    bool any_messages = false;
    for (int i = first; i < end; i++)
        members[i] = (struct jsonl_member){
            .name = rows->names[i],
            .kind = is_labelled && i == PAIR_LABEL ? JSONL_BOOLEAN : JSONL_STRING_OR_LIST,
            .of = MESSAGE,
            .or_of = PART,
            .items = rows->items[i]};
    arrsetcap(rows->original, size + 1); /* never NULL */
    arrsetlen(rows->original, size);
    memcpy(rows->original, row, size);
    int status = jsonl_row(row, size, members + first, end - first, column, error);
    for (int i = first; i < end; i++) {
        rows->items[i] = members[i].items;
        any_messages |= arrlenu(members[i].items) > 0 && members[i].kind == JSONL_LIST &&
                        members[i].of == MESSAGE;
    }
    if (status) return RESULT_NONE;
    if (any_messages && find_template(rows, error)) return -1;
    rows->pairs.chat = rows->chat;
    status = is_labelled
                 ? labelled_row_put(&rows->pairs, row, size, members, &rows->texts, &bad, error)
             : rows_are_pairs(rows)
                 ? pair_row_put(&rows->pairs, members, &rows->texts, &bad, error)
                 : completion_row_put(&rows->pairs, members, &rows->texts, &bad, error);
    if (status == 0) return 0;
    memcpy(row, rows->original, size);
    *column = (size_t)utf8_count(row, bad->at) + 1;
    return RESULT_NONE;
}

int rows_parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const bool undecided = !rows->kind;
    *column = 1;
    if (undecided && choose_kind(rows, row, size, error)) return -1;
    if (rows->kind->items == MESSAGE && find_template(rows, error)) return -1;
    arrsetlen(rows->texts.segments, 0);
    arrsetlen(rows->texts.documents, 0);
    const int status = rows_have_answers(rows) ? parse_answers(rows, row, size, column, error)
                       : parse(rows, row, size, column, error) ? RESULT_NONE
                                                               : 0;
    if (status == 0) return 0;
    arrsetlen(rows->texts.segments, 0);
    arrsetlen(rows->texts.documents, 0);
    return status;
}

int rows_finish(const struct rows *rows, struct error *error) {
    return rows->pairs.labelled != 1
               ? 0
               : fail(error,
                      "there is one row with a label; at least two are needed, since each is "
                      "compared with the completion of another");
}

enum document_form rows_form(const struct rows *rows) {
    assert(rows->kind);
    if (rows_have_answers(rows)) return rows->pairs.rendered ? DOCUMENT_RENDERED : DOCUMENT_PAIR;
    const bool chat = rows->kind == &ROWS[INSTRUCTIONS] && rows->chat;
    return chat ? DOCUMENT_RENDERED : rows->kind->form;
}
