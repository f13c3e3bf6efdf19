#include "data/corpus/documents.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <stb/stb_ds.h>

#include "data/util/min_max.h"
#include "data/util/signals.h"
#include "data/util/utf8.h"

enum { BUFFER_BYTES = 1 << 20, NAME_SHOWN = 500 };

static const char END_OF_TEXT[] = "<|endoftext|>", BYTE_ORDER_MARK[] = "\xef\xbb\xbf";

static const struct jsonl_member MESSAGE[] = {{.name = "role"}, {.name = "content"}},
                                 PART[] = {{.name = "text"},
                                           {.name = "train", .kind = JSONL_BOOLEAN}};

/* Kinds of rows, in the order in which the first row is searched for their members. */
static const struct row_form {
    const char *field; /* its members, as --field names them */
    enum document_form form;
    const struct jsonl_member *items; /* members of the objects in its list; NULL: strings */
    const char *wanted;               /* printf format for the names of strings */
} ROWS[] = {
    {"text", DOCUMENT_TEXT, NULL, "a string named \"%.100s\""},
    {"messages", DOCUMENT_RENDERED, MESSAGE,
     "\"messages\", a list of objects with strings named \"role\" and \"content\""},
    {"segments", DOCUMENT_RENDERED, PART,
     "\"segments\", a list of objects with a string named \"text\" and \"train\", true or false"},
    {"prompt,completion", DOCUMENT_PAIR, NULL, "strings named \"%.100s\" and \"%.100s\""},
};
enum { TEXT, MESSAGES, SEGMENTS, PAIRS };

/* Parses "NAME" or "NAME,NAME" into the members to read. */
static int set_fields(struct documents *documents, const char *field, struct error *error) {
    free(documents->fields);
    documents->fields = strdup(field);
    if (!documents->fields) return fail(error, "out of memory while reading text");
    char *comma = strchr(documents->fields, ',');
    int form = comma ? PAIRS : SEGMENTS;
    while (!comma && form > TEXT && strcmp(field, ROWS[form].field) != 0) form--;
    documents->rows = &ROWS[form];
    if (!comma) return 0;
    *comma = '\0';
    if (*field != ',' && comma[1] && !strchr(comma + 1, ',') &&
        strcmp(documents->fields, comma + 1) != 0)
        return 0;
    return fail(error,
                "--field %.200s: allowed is the name of one member, or those of a prompt and its "
                "completion with a comma between",
                field);
}

/* Returns the name of member 0 or, of pairs, 1. */
static const char *field_name(const struct documents *documents, int i) {
    return i == 0 ? documents->fields : documents->fields + strlen(documents->fields) + 1;
}

static int field_count(const struct documents *documents) {
    return documents->rows->form == DOCUMENT_PAIR ? 2 : 1;
}

int documents_open(struct documents *documents, const struct inputs *inputs, const char *field,
                   struct error *error) {
    *documents = (struct documents){.inputs = inputs, .fd = -1};
    documents->capacity = BUFFER_BYTES;
    documents->row_bytes_max = DOCUMENT_ROW_BYTES_MAX;
    documents->buffer = malloc(documents->capacity);
    if (!documents->buffer) return fail(error, "out of memory while reading text");
    return field ? set_fields(documents, field, error) : 0;
}

static void close_input(struct documents *documents) {
    if (documents->fd > STDIN_FILENO) close(documents->fd);
    documents->fd = -1;
}

void documents_close(struct documents *documents) {
    if (documents->buffer) close_input(documents);
    free(documents->buffer);
    free(documents->first_bad_row);
    free(documents->fields);
    arrfree(documents->segments);
    arrfree(documents->items);
    documents->buffer = documents->first_bad_row = documents->fields = NULL;
}

static const struct input *current(const struct documents *documents) {
    return &documents->inputs->list[documents->next_input - 1];
}

static const char *input_name(const struct documents *documents) {
    const char *name = current(documents)->name;
    return strcmp(name, "-") == 0 ? "the standard input" : name;
}

static int open_input(struct documents *documents, struct error *error) {
    const char *name = documents->inputs->list[documents->next_input++].name;
    /* Without O_NONBLOCK, opening a named pipe could block and miss signals. */
    documents->fd =
        strcmp(name, "-") == 0 ? STDIN_FILENO : open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (documents->fd < 0)
        return fail(error, "cannot open %.*s: %s", NAME_SHOWN, name, strerror(errno));
    documents->at = documents->filled = documents->searched = 0;
    documents->line = 1;
    documents->at_end = false;
    documents->begins = true;
    documents->unread = true;
    return 0;
}

int documents_interrupted(struct error *error) {
    return fail(error, "interrupted: no shard was written or replaced");
}

/* True if the first bytes of a file are not UTF-8 text. The last character may be incomplete. */
static bool is_binary(const char *bytes, size_t size) {
    size_t end = utf8_skip_characters(bytes, size, 0);
    if (memchr(bytes, '\0', size)) return true;
    return end < size && !(size - end < 4 && (unsigned char)bytes[end] >= 0xC2);
}

/* Moves the unread bytes to the front of the buffer and reads more after them. */
static int read_more(struct documents *documents, struct error *error) {
    assert(!documents->at_end);
    documents->filled -= documents->at;
    documents->searched -= MIN(documents->searched, documents->at);
    memmove(documents->buffer, documents->buffer + documents->at, documents->filled);
    documents->at = 0;
    assert(documents->filled < documents->capacity);
    for (;;) {
        if (signals_wait(documents->fd)) return documents_interrupted(error);
        const ssize_t got = read(documents->fd, documents->buffer + documents->filled,
                                 documents->capacity - documents->filled);
        if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (got < 0)
            return fail(error, "cannot read %.*s: %s\ncheck the file", NAME_SHOWN,
                        input_name(documents), strerror(errno));
        if (documents->unread && is_binary(documents->buffer, (size_t)got) &&
            documents->binary++ == 0)
            documents->first_binary = input_name(documents);
        documents->unread = false;
        documents->at_end = got == 0;
        documents->filled += (size_t)got;
        documents->bytes_read += (uint64_t)got;
        return 0;
    }
}

/* Reads the first bytes of an input and skips a byte order mark. */
static int skip_byte_order_mark(struct documents *documents, struct error *error) {
    while (documents->filled < 3 && !documents->at_end)
        if (read_more(documents, error)) return -1;
    if (documents->filled >= 3 && memcmp(documents->buffer, BYTE_ORDER_MARK, 3) == 0)
        documents->at = 3;
    return 0;
}

/* Returns the next piece of a text file; RESULT_NONE at its end. */
static int next_of_text(struct documents *documents, struct document_piece *piece,
                        struct error *error) {
    const size_t separator_size = sizeof END_OF_TEXT - 1;
    for (;;) {
        const char *text = documents->buffer + documents->at;
        const size_t left = documents->filled - documents->at;
        size_t size = left;
        if (documents->split_documents) {
            const char *separator = memmem(text, left, END_OF_TEXT, separator_size);
            if (separator == text) {
                documents->at += separator_size;
                documents->begins = true;
                continue;
            }
            /* Hold back the bytes that may be the beginning of a separator. */
            if (separator) size = (size_t)(separator - text);
            else if (!documents->at_end)
                size = left < separator_size ? 0 : left - (separator_size - 1);
        }
        if (size > 0) {
            *piece =
                (struct document_piece){text, size, .begins = documents->begins, .in_loss = true};
            documents->begins = false;
            documents->at += size;
            return 0;
        }
        if (documents->at_end) return RESULT_NONE;
        if (read_more(documents, error)) return -1;
    }
}

/* Finds the next line, without its line end: *line, [*size]. Returns RESULT_NONE if there is
 * none. */
static int next_line(struct documents *documents, char **line, size_t *size, struct error *error) {
    for (;;) {
        char *begin = documents->buffer + documents->at;
        char *end = memchr(documents->buffer + documents->searched, '\n',
                           documents->filled - documents->searched);
        const size_t left = documents->filled - documents->at;
        documents->searched = documents->filled;
        if (end || (documents->at_end && left > 0)) {
            *line = begin;
            *size = end ? (size_t)(end - begin) : left;
            documents->at += *size + (end != NULL);
            documents->searched = documents->at;
            if (*size <= documents->row_bytes_max) return 0;
        } else if (documents->at_end) {
            return RESULT_NONE;
        }
        if (left > documents->row_bytes_max)
            return fail(error,
                        "%.*s, line %" PRIu64 ": the row is longer than %zu MiB\n"
                        "is the file JSON Lines, one object a line?",
                        NAME_SHOWN, input_name(documents), documents->line,
                        documents->row_bytes_max >> 20);
        if (left == documents->capacity) {
            char *grown = realloc(documents->buffer, 2 * documents->capacity);
            if (!grown) return fail(error, "out of memory while reading a row of JSON Lines");
            documents->buffer = grown;
            documents->capacity *= 2;
        }
        if (read_more(documents, error)) return -1;
    }
}

/* Completes a message about a row. Returns 0 if such rows are skipped, else -1. */
static int bad_row(struct documents *documents, size_t column, struct error *error) {
    char what[400], wanted[300];
    snprintf(what, sizeof what, "%.399s", error->text);
    snprintf(wanted, sizeof wanted, documents->rows->wanted, field_name(documents, 0),
             field_name(documents, field_count(documents) - 1));
    fail(error,
         "%.*s, line %" PRIu64 ", column %zu: %s\neach line must be a JSON object with %s; --field "
         "names %s, --skip-bad-rows goes on without such rows",
         NAME_SHOWN, input_name(documents), documents->line, column, what, wanted,
         documents->rows->form == DOCUMENT_TEXT ? "another" : "others");
    if (!documents->skip_bad_rows) return -1;
    if (documents->bad_rows++ == 0) {
        *strchr(error->text, '\n') = '\0';
        documents->first_bad_row = strdup(error->text);
    }
    return 0;
}

/* Without --field, the first good row decides for all rows. A bad one chooses the advice about
 * it. */
static int choose_form(struct documents *documents, const char *row, size_t size,
                       struct error *error) {
    static const char *const names[] = {"text", "messages", "segments", "prompt", "completion"};
    static const int forms[] = {TEXT, MESSAGES, SEGMENTS, PAIRS, PAIRS};
    const int count = sizeof names / sizeof *names;
    const unsigned found = jsonl_names(row, size, names, count);
    int first = 0;
    while (first < count && !(found & 1U << first)) first++;
    return set_fields(documents, ROWS[first < count ? forms[first] : TEXT].field, error);
}

static int find_template(struct documents *documents, struct error *error) {
    if (documents->tokenizer) documents->chat = chat_template_of(documents->tokenizer);
    if (documents->chat) return 0;
    return fail(error,
                "%.*s, line %" PRIu64
                ": the row has \"messages\", but the tokenizer has the special "
                "tokens of no known chat template (ChatML, Llama 3, Mistral 7B v0.3)\nrender the "
                "file with scripts/render_chat.py, which uses the model's own template",
                NAME_SHOWN, input_name(documents), documents->line);
}

/* Parses a row into segments. Returns -1 with a message about column if it is bad. */
static int parse_row(struct documents *documents, char *line, size_t size, size_t *column,
                     struct error *error) {
    const struct jsonl_member *of = documents->rows->items;
    const int count = field_count(documents);
    struct jsonl_member members[] = {{.name = field_name(documents, 0)},
                                     {.name = field_name(documents, count - 1)}};
    if (of)
        members[0] =
            (struct jsonl_member){members[0].name, JSONL_LIST, .of = of, .items = documents->items};
    const int status = jsonl_row(line, size, members, count, column, error);
    if (of) documents->items = members[0].items;
    if (status) return -1;
    *column = (size_t)(members[0].text - line) + 1;
    const size_t values = of ? arrlenu(documents->items) : (size_t)count;
    const struct jsonl_member *items = of ? documents->items : members;
    if (of == MESSAGE)
        return chat_render(documents->chat, items, values / 2, &documents->segments, error);
    bool any_in_loss = !of;
    for (size_t i = 0; i < values; i += of ? 2 : 1) {
        const bool in_loss = of ? items[i + 1].text[0] == 't' : i + 1 == values;
        const struct segment segment = {items[i].text, items[i].size, in_loss};
        arrput(documents->segments, segment);
        any_in_loss |= in_loss && segment.size > 0;
    }
    return any_in_loss ? 0 : fail(error, "there is no text to train on");
}

/* Reads a row. Returns 1 if it is bad and skipped. */
static int read_row(struct documents *documents, char *line, size_t size, struct error *error) {
    const bool undecided = !documents->rows;
    size_t column;
    if (undecided && choose_form(documents, line, size, error)) return -1;
    if (documents->rows == &ROWS[MESSAGES] && !documents->chat && find_template(documents, error))
        return -1;
    documents->next_segment = 0;
    arrsetlen(documents->segments, 0);
    if (parse_row(documents, line, size, &column, error) == 0) return 0;
    arrsetlen(documents->segments, 0);
    if (bad_row(documents, column, error)) return -1;
    if (undecided) documents->rows = NULL;
    return 1;
}

/* Returns the next segment of the last row. */
static void take_segment(struct documents *documents, struct document_piece *piece) {
    const struct segment segment = documents->segments[documents->next_segment];
    *piece = (struct document_piece){segment.text,
                                     segment.size,
                                     .begins = documents->next_segment++ == 0,
                                     .is_row = true,
                                     .in_loss = segment.in_loss,
                                     .form = documents->rows->form};
}

/* Returns the next row of JSON Lines, of which the segments follow; RESULT_NONE at the end of the
 * file. */
static int next_of_rows(struct documents *documents, struct document_piece *piece,
                        struct error *error) {
    for (;; documents->line++) {
        char *line = NULL;
        size_t size = 0;
        int status = next_line(documents, &line, &size, error);
        if (status) return status;
        if (jsonl_is_blank(line, size)) continue;
        status = read_row(documents, line, size, error);
        if (status < 0) return -1;
        if (status > 0) continue;
        documents->line++;
        take_segment(documents, piece);
        return 0;
    }
}

int documents_next(struct documents *documents, struct document_piece *piece, struct error *error) {
    if (documents->next_segment < arrlenu(documents->segments)) {
        take_segment(documents, piece);
        return 0;
    }
    for (;;) {
        if (documents->fd < 0) {
            if (documents->next_input == arrlenu(documents->inputs->list)) return RESULT_NONE;
            if (open_input(documents, error)) return -1;
            if ((documents->split_documents || current(documents)->is_jsonl) &&
                skip_byte_order_mark(documents, error))
                return -1;
        }
        const int status = current(documents)->is_jsonl ? next_of_rows(documents, piece, error)
                                                        : next_of_text(documents, piece, error);
        if (status != RESULT_NONE) return status;
        close_input(documents);
    }
}
