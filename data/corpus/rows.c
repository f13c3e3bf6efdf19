#include "data/corpus/rows.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

static const struct jsonl_member MESSAGE[] = {{.name = "role", .synonym = "from"},
                                              {.name = "content", .synonym = "value"}},
                                 PART[] = {{.name = "text"},
                                           {.name = "train", .kind = JSONL_BOOLEAN}};

enum { INSTRUCTION, INPUT, OUTPUT };

/* Kinds of rows, in the order in which the first row is searched for their members. Instructions
 * come first, because Alpaca's own rows have a "text" too. */
static const struct row_form {
    const char *names[JSONL_MEMBERS_MAX];
    unsigned needed; /* bits of names that the first row must have; 0: any of them */
    enum document_form form;
    const struct jsonl_member *items; /* members of the objects in its list; NULL: strings */
} ROWS[] = {
    {{"instruction", "input", "output"}, 1 << INSTRUCTION | 1 << OUTPUT, DOCUMENT_PAIR, NULL},
    {{"text"}, 0, DOCUMENT_TEXT, NULL},
    {{"messages"}, 0, DOCUMENT_RENDERED, MESSAGE},
    {{"conversations"}, 0, DOCUMENT_RENDERED, MESSAGE},
    {{"segments"}, 0, DOCUMENT_RENDERED, PART},
    {{"prompt", "completion"}, 0, DOCUMENT_PAIR, NULL},
};
enum { INSTRUCTIONS, TEXT, MESSAGES, CONVERSATIONS, SEGMENTS, PAIRS, KINDS };

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

/* Sets kind and names; those of a list are as in ROWS. */
static int set_kind(struct rows *rows, int kind, char *const names[], struct error *error) {
    forget(rows);
    rows->kind = &ROWS[kind];
    for (int i = 0; i < name_count(rows->kind); i++) {
        rows->names[i] = strdup(names ? names[i] : rows->kind->names[i]);
        if (!rows->names[i]) return out_of_memory(error);
    }
    return 0;
}

/* Parses "NAME", "NAME,NAME" or "NAME,NAME,NAME", which must differ. */
static int set_fields(struct rows *rows, const char *field, struct error *error) {
    static const int of_count[] = {[1] = TEXT, [2] = PAIRS, [3] = INSTRUCTIONS};
    char copy[256], *names[JSONL_MEMBERS_MAX], *left = copy;
    int count = 0;
    bool good = snprintf(copy, sizeof copy, "%s", field) < (int)sizeof copy;
    while (good && left) {
        char *name = strsep(&left, ",");
        good = *name && count < JSONL_MEMBERS_MAX;
        for (int i = 0; good && i < count; i++) good = strcmp(names[i], name) != 0;
        if (good) names[count++] = name;
    }
    if (!good)
        return fail(error,
                    "--field %.200s: allowed is the name of one member, or those of a prompt and "
                    "its completion, or of an instruction, its input and output, with commas "
                    "between",
                    field);
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
    arrfree(rows->items);
    arrfree(rows->text);
    arrfree(rows->segments);
}

/* Without --field, the first good row decides for all rows. A bad one chooses the advice about
 * it. */
static int choose_kind(struct rows *rows, const char *row, size_t size, struct error *error) {
    for (int kind = 0; kind < KINDS; kind++) {
        const struct row_form *form = &ROWS[kind];
        const unsigned found = jsonl_names(row, size, form->names, name_count(form));
        const bool fits = form->needed ? (found & form->needed) == form->needed : found != 0;
        if (fits) return set_kind(rows, kind, NULL, error);
    }
    return set_kind(rows, TEXT, NULL, error);
}

void rows_names(const struct rows *rows, char *text, size_t size) {
    snprintf(text, size, "%s", "");
    for (int i = 0; i < name_count(rows->kind); i++) {
        const size_t used = strlen(text);
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
    case PAIRS:
        snprintf(text, size, "strings named \"%.100s\" and \"%.100s\"", rows->names[0],
                 rows->names[1]);
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
                "template (ChatML, Llama 3, Mistral 7B v0.3)\nrender the file with "
                "scripts/render_chat.py, which uses the model's own template",
                rows->names[0]);
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
        arrput(rows->segments, ((struct segment){rows->text, arrlenu(rows->text), false}));
        arrput(rows->segments,
               ((struct segment){members[OUTPUT].text, members[OUTPUT].size, true}));
        return members[OUTPUT].size > 0 ? 0 : fail(error, "the output is empty");
    }
    const struct jsonl_member turns[] = {{.text = (char[]){"user"}, .size = 4},
                                         {.text = rows->text, .size = arrlenu(rows->text)},
                                         {.text = (char[]){"assistant"}, .size = 9},
                                         members[OUTPUT]};
    return chat_render(rows->chat, turns, 2, &rows->segments, error);
}

/* The texts of a list of parts, or of strings, the last of which counts in the loss. */
static int take_texts(struct rows *rows, const struct jsonl_member members[], int count,
                      struct error *error) {
    const bool listed = rows->kind->items != NULL;
    const struct jsonl_member *values = listed ? rows->items : members;
    const size_t end = listed ? arrlenu(rows->items) : (size_t)count;
    bool any_in_loss = false;
    for (size_t i = 0; i < end; i += listed ? JSONL_ITEM_MEMBERS : 1) {
        const bool in_loss = listed ? values[i + 1].text[0] == 't' : i + 1 == end;
        const struct segment segment = {values[i].text, values[i].size, in_loss};
        arrput(rows->segments, segment);
        any_in_loss |= in_loss && segment.size > 0;
    }
    /* A text may be empty: such documents are dropped. */
    if (any_in_loss || rows->kind == &ROWS[TEXT]) return 0;
    return fail(error, listed ? "there is no text to train on" : "the completion is empty");
}

/* Parses a row into segments. Returns -1 with a message about column if it is bad. */
static int parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const struct row_form *kind = rows->kind;
    const int count = name_count(kind);
    struct jsonl_member members[JSONL_MEMBERS_MAX] = {0};
    for (int i = 0; i < count; i++) members[i].name = rows->names[i];
    if (kind == &ROWS[INSTRUCTIONS]) members[INPUT].optional = true;
    if (kind->items) {
        members[0].kind = JSONL_LIST;
        members[0].of = kind->items;
        members[0].items = rows->items;
    }
    const int status = jsonl_row(row, size, members, count, column, error);
    if (kind->items) rows->items = members[0].items;
    if (status) return -1;
    *column = (size_t)(members[0].text - row) + 1;
    if (kind == &ROWS[INSTRUCTIONS]) return render_instruction(rows, members, error);
    if (kind->items == MESSAGE)
        return chat_render(rows->chat, rows->items, arrlenu(rows->items) / JSONL_ITEM_MEMBERS,
                           &rows->segments, error);
    return take_texts(rows, members, count, error);
}

int rows_parse(struct rows *rows, char *row, size_t size, size_t *column, struct error *error) {
    const bool undecided = !rows->kind;
    *column = 1;
    if (undecided && choose_kind(rows, row, size, error)) return -1;
    if (rows->kind->items == MESSAGE && find_template(rows, error)) return -1;
    arrsetlen(rows->segments, 0);
    if (parse(rows, row, size, column, error) == 0) return 0;
    arrsetlen(rows->segments, 0);
    return RESULT_NONE;
}

enum document_form rows_form(const struct rows *rows) {
    assert(rows->kind);
    const bool chat = rows->kind == &ROWS[INSTRUCTIONS] && rows->chat;
    return chat ? DOCUMENT_RENDERED : rows->kind->form;
}
