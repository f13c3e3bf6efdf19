#include "data/corpus/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/chat_file.h"
#include "data/util/utf8.h"

static const struct jsonl_member MESSAGE[] = {{.name = "role", .synonym = "from"},
                                              {.name = "content", .synonym = "value"}},
                                 PART[] = {{.name = "text"},
                                           {.name = "train", .kind = JSONL_BOOLEAN}};

enum { INSTRUCTION, INPUT, OUTPUT };

/* Kinds of rows, in the order in which the first row is searched for their members. Instructions
 * come first, because Alpaca's own rows have a "text" too. */
static const struct row_type {
    const char *names[JSONL_MEMBERS_MAX];
    unsigned needed; /* bits of names that the first row must have */
    unsigned any;    /* bits of names of which it must have one */
    enum document_form form;
    const struct jsonl_member *items; /* members of the objects in its list; NULL: strings */
} ROWS[] = {
    {{"instruction", "input", "output"},
     1 << INSTRUCTION | 1 << OUTPUT,
     ~0U,
     DOCUMENT_ANSWER,
     NULL},
    {{"text"}, 0, ~0U, DOCUMENT_TEXT, NULL},
    {{"messages"}, 0, ~0U, DOCUMENT_RENDERED, MESSAGE},
    {{"conversations"}, 0, ~0U, DOCUMENT_RENDERED, MESSAGE},
    {{"segments"}, 0, ~0U, DOCUMENT_RENDERED, PART},
    {{"prompt", "chosen", "rejected"},
     0,
     1 << PAIR_CHOSEN | 1 << PAIR_REJECTED,
     DOCUMENT_ANSWER,
     NULL},
    {{"prompt", "completion", "label"},
     1 << PAIR_COMPLETION | 1 << PAIR_LABEL,
     ~0U,
     DOCUMENT_ANSWER,
     NULL},
    {{"prompt", "completion"}, 0, ~0U, DOCUMENT_ANSWER, NULL},
};
enum { ALPACA, TEXT, MESSAGES, CONVERSATIONS, SEGMENTS, PREFERENCES, LABELLED, COMPLETIONS, TYPES };

static int name_count(const struct row_type *type) {
    int count = 0;
    while (count < JSONL_MEMBERS_MAX && type->names[count]) count++;
    return count;
}

static void forget(struct rows *rows) {
    for (int i = 0; i < JSONL_MEMBERS_MAX; i++) {
        free(rows->names[i]);
        rows->names[i] = NULL;
    }
    rows->type = NULL;
}

static int out_of_memory(struct error *error) {
    return fail_memory(error, "a row of JSON Lines");
}

bool rows_are_labelled(const struct rows *rows) {
    return rows->type == &ROWS[LABELLED];
}

bool rows_are_pairs(const struct rows *rows) {
    return rows->type == &ROWS[PREFERENCES] || rows_are_labelled(rows);
}

/* True if rows have prompts or answers that may be strings or lists. */
static bool rows_have_answers(const struct rows *rows) {
    return rows_are_pairs(rows) || rows->type == &ROWS[COMPLETIONS];
}

/* Sets type and names; those of a list are as in ROWS. */
static int set_type(struct rows *rows, int type, char *const names[], struct error *error) {
    forget(rows);
    rows->type = &ROWS[type];
    rows->members.is_text = type == TEXT || type == SEGMENTS;
    for (int i = 0; i < name_count(rows->type); i++) {
        if (names && !names[i]) continue;
        rows->names[i] = strdup(names ? names[i] : rows->type->names[i]);
        if (!rows->names[i]) return out_of_memory(error);
    }
    return 0;
}

/* Returns the type of pairs whose members are all fields, MEMBER or MEMBER=NAME, or TYPES. Sets
 * names to theirs, in the order of ROWS. */
static int pair_type(char *const fields[], int count, char *names[JSONL_MEMBERS_MAX]) {
    for (int type = PREFERENCES; type <= LABELLED; type++) {
        int found = 0;
        for (int member = 0; member < JSONL_MEMBERS_MAX; member++) {
            const char *name = ROWS[type].names[member];
            const size_t size = strlen(name);
            names[member] = NULL;
            for (int i = 0; i < count && !names[member]; i++)
                if (strncmp(fields[i], name, size) == 0 && strchr("=", fields[i][size]))
                    names[member] = fields[i] + (fields[i][size] ? size + 1 : 0);
            found += names[member] != NULL;
        }
        const bool has_answers = names[PAIR_CHOSEN] && names[PAIR_REJECTED];
        if (found == count && has_answers && (names[PAIR_PROMPT] || type == PREFERENCES))
            return type;
    }
    return TYPES;
}

static bool are_different(char *const names[], int count) {
    for (int i = 0; i < count; i++)
        for (int j = 0; j < i; j++)
            if (names[i] && names[j] && strcmp(names[i], names[j]) == 0) return false;
    return true;
}

/* Parses "NAME", "NAME,NAME" or "NAME,NAME,NAME", which must differ, or the members of pairs. */
static int set_fields(struct rows *rows, const char *field, struct error *error) {
    static const int of_count[] = {[1] = TEXT, [2] = COMPLETIONS, [3] = ALPACA};
    char copy[256], *names[JSONL_MEMBERS_MAX], *members[JSONL_MEMBERS_MAX], *left = copy;
    int count = 0;
    bool good = snprintf(copy, sizeof copy, "%s", field) < (int)sizeof copy;
    while (good && left) {
        char *name = strsep(&left, ",");
        good = *name && count < JSONL_MEMBERS_MAX;
        if (good) names[count++] = name;
    }
    const int pairs = good ? pair_type(names, count, members) : TYPES;
    for (int i = 0; pairs < TYPES && i < JSONL_MEMBERS_MAX; i++) good &= !members[i] || *members[i];
    good = good && (pairs < TYPES ? are_different(members, JSONL_MEMBERS_MAX)
                                  : are_different(names, count));
    if (!good)
        return fail(error,
                    "--field %.200s: allowed is the name of one member, or those of a prompt and "
                    "its completion, or of an instruction, its input and output, with commas "
                    "between; or for pairs, prompt=NAME,chosen=NAME,rejected=NAME or "
                    "prompt=NAME,completion=NAME,label=NAME",
                    field);
    if (pairs < TYPES) return set_type(rows, pairs, members, error);
    int type = of_count[count];
    for (int i = 0; count == 1 && i < TYPES; i++)
        if (ROWS[i].items && strcmp(names[0], ROWS[i].names[0]) == 0) type = i;
    return set_type(rows, type, names, error);
}

int rows_open(struct rows *rows, const char *field, const struct tokenizer *tokenizer,
              struct error *error) {
    *rows = (struct rows){.tokenizer = tokenizer};
    row_members_open(&rows->members);
    return field ? set_fields(rows, field, error) : 0;
}

void rows_close(struct rows *rows) {
    forget(rows);
    for (int i = 0; i < JSONL_MEMBERS_MAX; i++) arrfree(rows->items[i]);
    row_members_close(&rows->members);
    arrfree(rows->text);
    arrfree(rows->texts.segments);
    arrfree(rows->texts.documents);
    pair_rows_close(&rows->pairs);
    arrfree(rows->original);
}

/* Without --field, the first good row decides for all rows. A bad one chooses the advice about
 * it. */
static int choose_type(struct rows *rows, const char *row, size_t size, struct error *error) {
    for (int i = 0; i < TYPES; i++) {
        const struct row_type *type = &ROWS[i];
        const unsigned found = jsonl_names(row, size, type->names, name_count(type));
        if ((found & type->needed) != type->needed || !(found & type->any)) continue;
        const bool is_implicit = i == PREFERENCES && !(found & 1 << PAIR_PROMPT);
        char *const answers[] = {NULL, (char[]){"chosen"}, (char[]){"rejected"}};
        return set_type(rows, i, is_implicit ? answers : NULL, error);
    }
    return set_type(rows, TEXT, NULL, error);
}

void rows_names(const struct rows *rows, char *text, size_t size) {
    snprintf(text, size, "%s", "");
    for (int i = 0; i < name_count(rows->type); i++) {
        const size_t used = strlen(text);
        if (!rows->names[i]) continue;
        snprintf(text + used, size - used, "%s%.80s", used ? ", " : "", rows->names[i]);
    }
}

void rows_describe(const struct rows *rows, char *text, size_t size) {
    switch (rows->type - ROWS) {
    case ALPACA:
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
    case COMPLETIONS:
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
                "the row has \"%s\", but the tokenizer is for no known chat template (ChatML, "
                "Llama 3, Mistral 7B v0.3, Gemma, OLMo 2, EXAONE 4)\nrender the file with "
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
        arrput(rows->texts.segments, segment_of(rows->text, arrlenu(rows->text), false));
        arrput(rows->texts.segments, segment_of(members[OUTPUT].text, members[OUTPUT].size, true));
        return members[OUTPUT].size > 0 ? 0 : fail(error, "the output is empty");
    }
    static char roles[][10] = {"user", "assistant"};
    struct jsonl_member list = {.kind = JSONL_LIST, .of = MESSAGE, .items = rows->items[0]};
    arrsetlen(list.items, 0);
    arrput(list.items, ((struct jsonl_member){.text = roles[0], .size = strlen(roles[0])}));
    arrput(list.items, ((struct jsonl_member){.text = rows->text, .size = arrlenu(rows->text)}));
    arrput(list.items, ((struct jsonl_member){.text = roles[1], .size = strlen(roles[1])}));
    arrput(list.items, members[OUTPUT]);
    rows->items[0] = list.items;
    return chat_render(rows->chat, list.items, arrlenu(list.items) / JSONL_ITEM_MEMBERS,
                       &rows->texts.segments, error);
}

/* Takes the texts of a list of parts. */
static int take_parts(struct rows *rows, struct error *error) {
    const struct jsonl_member *values = rows->items[0];
    bool any_in_loss = false;
    for (size_t i = 0; i < arrlenu(values); i += JSONL_ITEM_MEMBERS) {
        const bool in_loss = values[i + 1].text[0] == 't';
        const struct segment segment = segment_of(values[i].text, values[i].size, in_loss);
        arrput(rows->texts.segments, segment);
        any_in_loss |= in_loss && segment.size > 0;
    }
    return any_in_loss ? 0 : fail(error, "there is no text to train on");
}

/* Parses a row of one text, conversation or instruction into segments. Returns -1 with a message
 * about column if it is bad. */
static int parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const struct row_type *type = rows->type;
    const int count = name_count(type);
    struct jsonl_member members[JSONL_MEMBERS_MAX] = {0};
    for (int i = 0; i < count; i++) members[i].name = rows->names[i];
    members[0].others = &rows->members.others;
    if (type == &ROWS[ALPACA]) members[INPUT].optional = true;
    if (type->items) {
        members[0].kind = JSONL_LIST;
        members[0].of = type->items;
        members[0].items = rows->items[0];
    }
    const int status = jsonl_row(row, size, members, count, column, error);
    if (type->items) rows->items[0] = members[0].items;
    if (status) return -1;
    *column = (size_t)(members[0].text - row) + 1;
    arrput(rows->texts.documents, ((struct row_document){0}));
    if (type == &ROWS[ALPACA]) return render_instruction(rows, members, error);
    if (type->items == MESSAGE)
        return chat_render(rows->chat, rows->items[0], arrlenu(rows->items[0]) / JSONL_ITEM_MEMBERS,
                           &rows->texts.segments, error);
    if (type->items) return take_parts(rows, error);
    /* A text may be empty: such documents are dropped. */
    arrput(rows->texts.segments, segment_of(members[0].text, members[0].size, true));
    return 0;
}

/* Parses a row with answers. Returns RESULT_NONE with a message about column if it is bad. */
static int parse_answers(struct rows *rows, char *row, size_t size, size_t *column,
                         struct error *error) {
    const bool is_labelled = rows_are_labelled(rows);
    const int first = !rows->names[PAIR_PROMPT], end = name_count(rows->type);
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
    members[first].others = &rows->members.others;
    int status = jsonl_row(row, size, members + first, end - first, column, error);
    for (int i = first; i < end; i++) {
        rows->items[i] = members[i].items;
        any_messages |= arrlenu(members[i].items) > 0 && members[i].kind == JSONL_LIST &&
                        members[i].of == MESSAGE;
    }
    if (status) {
        memcpy(row, rows->original, size);
        return RESULT_NONE;
    }
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

/* Counts the special tokens in strings of the last row, or keeps them text: without a template, all
 * of the strings, and with one, those that name one. */
static void find_special(struct rows *rows) {
    struct segment *segments = rows->texts.segments;
    bool has_template = false, found = false;
    for (size_t i = 0; i < arrlenu(segments); i++) has_template |= segments[i].is_template;
    if (!rows->tokenizer || (rows_form(rows) == DOCUMENT_RENDERED && !has_template)) return;
    for (size_t i = 0; i < arrlenu(segments); i++) {
        if (segments[i].is_template) continue;
        const size_t count = tokenizer_count_special(rows->tokenizer, segments[i].text,
                                                     segments[i].size, &rows->special_token);
        segments[i].is_plain = rows->special_as_text && (count > 0 || !has_template);
        rows->special_count += count;
        found |= count > 0;
    }
    rows->special_rows += found;
}

int rows_parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const bool undecided = !rows->type;
    *column = 1;
    if (undecided && choose_type(rows, row, size, error)) return -1;
    if (rows->type->items == MESSAGE && find_template(rows, error)) return -1;
    arrsetlen(rows->texts.segments, 0);
    arrsetlen(rows->texts.documents, 0);
    const int status = rows_have_answers(rows) ? parse_answers(rows, row, size, column, error)
                       : parse(rows, row, size, column, error) ? RESULT_NONE
                                                               : 0;
    for (size_t i = 0; status == 0 && i < arrlenu(rows->texts.documents); i++) {
        const struct segment *first = rows->texts.segments + rows->texts.documents[i].segment;
        if (arrlenu(rows->texts.segments) > 0 && first->is_template)
            rows->without_system |= !chat_begins_with_system(rows->chat, first);
    }
    if (status == 0) find_special(rows);
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
    assert(rows->type);
    if (rows_have_answers(rows)) return rows->pairs.rendered ? DOCUMENT_RENDERED : DOCUMENT_ANSWER;
    const bool chat = rows->type == &ROWS[ALPACA] && rows->chat;
    return chat ? DOCUMENT_RENDERED : rows->type->form;
}
