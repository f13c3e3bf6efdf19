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

int documents_open(struct documents *documents, const struct inputs *inputs, const char *field,
                   const struct tokenizer *tokenizer, struct error *error) {
    *documents = (struct documents){.inputs = inputs, .fd = -1};
    documents->lacking = tokenizer ? tokenizer_lacking(tokenizer) : NULL;
    documents->capacity = BUFFER_BYTES;
    documents->row_bytes_max = DOCUMENT_ROW_BYTES_MAX;
    documents->buffer = malloc(documents->capacity);
    if (!documents->buffer) return fail_memory(error, "text");
    return rows_open(&documents->rows, field, tokenizer, error);
}

static void close_input(struct documents *documents) {
    if (documents->fd > STDIN_FILENO) close(documents->fd);
    documents->fd = -1;
}

void documents_close(struct documents *documents) {
    if (documents->buffer) close_input(documents);
    free(documents->buffer);
    free(documents->first_bad_row);
    rows_close(&documents->rows);
    documents->buffer = documents->first_bad_row = NULL;
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
    documents->begin = documents->end = (struct row_place){1, 0};
    documents->layout = ROW_LINES;
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

/* True if text begins as an object of JSON or a list of them does. */
static bool begins_like_json(const char *bytes, size_t size) {
    size_t at = 0;
    for (const char *wanted = "[{\""; *wanted; wanted++) {
        while (at < size && bytes[at] && strchr(" \t\r\n", bytes[at])) at++;
        if (at < size && bytes[at] == *wanted) at++;
        else if (*wanted != '[') return false;
    }
    return true;
}

/* True if the first line of a text could be the names of a table's columns. */
static bool begins_like_table(const char *bytes, size_t size) {
    static const char allowed[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_\",\t";
    bool several = false;
    size_t at = 0;
    for (; at < size && bytes[at] && strchr(allowed, bytes[at]); at++)
        several |= bytes[at] == ',' || bytes[at] == '\t';
    return several && at < size && (bytes[at] == '\n' || bytes[at] == '\r');
}

/* Checks the first bytes of an input, and keeps what notes say about them. */
static int inspect(struct documents *documents, const char *bytes, size_t size,
                   struct error *error) {
    if (documents->fd == STDIN_FILENO && inputs_check_first_bytes(bytes, size, error)) return -1;
    if (is_binary(bytes, size) && documents->binary++ == 0)
        documents->first_binary = input_name(documents);
    if (current(documents)->is_jsonl || documents->misread) return 0;
    documents->misread_as_json = begins_like_json(bytes, size);
    if (documents->misread_as_json || begins_like_table(bytes, size))
        documents->misread = input_name(documents);
    return 0;
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
        if (documents->unread && inspect(documents, documents->buffer, (size_t)got, error))
            return -1;
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
            *piece = (struct document_piece){.text = text,
                                             .size = size,
                                             .begins = documents->begins,
                                             .in_loss = true,
                                             .is_plain = true};
            documents->begins = false;
            documents->at += size;
            return 0;
        }
        if (documents->at_end) return RESULT_NONE;
        if (read_more(documents, error)) return -1;
    }
}

static int check_row_size(const struct documents *documents, size_t size, struct error *error) {
    if (size <= documents->row_bytes_max) return 0;
    return fail(error,
                "%.*s, line %" PRIu64 ": the row is longer than %zu MiB\n"
                "is the file JSON Lines, one object a line?",
                NAME_SHOWN, input_name(documents), documents->begin.line,
                documents->row_bytes_max >> 20);
}

/* Reads more of a row that does not end in the buffer. */
static int read_more_of_row(struct documents *documents, struct error *error) {
    const size_t left = documents->filled - documents->at;
    if (check_row_size(documents, left, error)) return -1;
    if (left == documents->capacity) {
        char *grown = realloc(documents->buffer, 2 * documents->capacity);
        if (!grown) return fail_memory(error, "a row of JSON Lines");
        documents->buffer = grown;
        documents->capacity *= 2;
    }
    return read_more(documents, error);
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
            documents->end = (struct row_place){documents->begin.line + 1, 0};
            return check_row_size(documents, *size, error);
        }
        if (documents->at_end) return RESULT_NONE;
        if (read_more_of_row(documents, error)) return -1;
    }
}

/* Advances a place by one byte. */
static void advance(struct row_place *place, char byte) {
    if (byte == '\n') *place = (struct row_place){place->line + 1, 0};
    else place->column += (byte & 0xC0) != 0x80;
}

/* Consumes white space or punctuation between rows. */
static void consume(struct documents *documents) {
    advance(&documents->begin, documents->buffer[documents->at++]);
}

/* Skips white space and counts its lines. *next is the character after it, which is not consumed,
 * or EOF. */
static int skip_space(struct documents *documents, int *next, struct error *error) {
    *next = EOF;
    for (;;) {
        while (*next == EOF && documents->at < documents->filled) {
            const char c = documents->buffer[documents->at];
            if (c == ' ' || c == '\t' || c == '\r' || c == '\n') consume(documents);
            else *next = (unsigned char)c;
        }
        documents->searched = documents->at;
        if (*next != EOF || documents->at_end) return 0;
        if (read_more(documents, error)) return -1;
    }
}

static int list_is_broken(const struct documents *documents, const char *what,
                          struct error *error) {
    return fail(error, "%.*s, line %" PRIu64 ": %s\nthe file begins with [, as a list of rows does",
                NAME_SHOWN, input_name(documents), documents->begin.line, what);
}

static int no_end(const struct documents *documents, struct error *error) {
    return list_is_broken(documents, "the list has no end", error);
}

/* Advances to the next value of a list. Returns RESULT_NONE if there is none. */
static int begin_value(struct documents *documents, struct error *error) {
    int next;
    if (skip_space(documents, &next, error)) return -1;
    if (documents->layout == LIST_GOES_ON && next == ',') {
        consume(documents);
        if (skip_space(documents, &next, error)) return -1;
    } else if (documents->layout == LIST_GOES_ON && next != ']' && next != EOF) {
        return list_is_broken(documents, "a comma must stand between two rows", error);
    } else if (next == ']') {
        consume(documents);
        if (skip_space(documents, &next, error)) return -1;
        return next == EOF ? RESULT_NONE
                           : list_is_broken(documents, "something follows the list", error);
    }
    documents->layout = LIST_GOES_ON;
    return next == EOF ? no_end(documents, error) : 0;
}

/* Finds the next row of a list, up to the comma or bracket after it: *row, [*size]. What is in it
 * is left to the parser. Returns RESULT_NONE if there is none. */
static int next_of_list(struct documents *documents, char **row, size_t *size,
                        struct error *error) {
    bool in_string = false, escaped = false;
    int depth = 0;
    const int status = begin_value(documents, error);
    if (status) return status;
    documents->end = documents->begin;
    for (;; documents->searched++) {
        while (documents->searched == documents->filled) {
            if (documents->at_end) return no_end(documents, error);
            if (read_more_of_row(documents, error)) return -1;
        }
        const char c = documents->buffer[documents->searched];
        const bool closes = c == '}' || c == ']';
        if (!in_string && depth == 0 && (c == ',' || closes)) break;
        advance(&documents->end, c);
        if (in_string) {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else {
            in_string = c == '"';
            depth += (c == '{' || c == '[') - closes;
        }
    }
    *row = documents->buffer + documents->at;
    *size = documents->searched - documents->at;
    documents->at = documents->searched;
    return check_row_size(documents, *size, error);
}

/* Completes a message about a row. Returns 0 if such rows are skipped, else -1. */
static int bad_row(struct documents *documents, const char *row, size_t size, size_t column,
                   struct error *error) {
    char what[400], wanted[300];
    const bool is_text = rows_form(&documents->rows) == DOCUMENT_TEXT;
    struct row_place place = documents->begin;
    for (size_t i = 0, before = column - 1; i < size; i++) {
        const bool begins_character = (row[i] & 0xC0) != 0x80;
        if (begins_character && before-- == 0) break;
        advance(&place, row[i]);
    }
    snprintf(what, sizeof what, "%.399s", error->text);
    rows_describe(&documents->rows, wanted, sizeof wanted);
    fail(error,
         "%.*s, line %" PRIu64 ", column %zu: %s\neach %s must be a JSON object with %s; --field "
         "names %s, --skip-bad-rows goes on without such rows",
         NAME_SHOWN, input_name(documents), place.line, place.column + 1, what,
         documents->layout == ROW_LINES ? "line" : "row", wanted, is_text ? "another" : "others");
    if (!documents->skip_bad_rows) return -1;
    if (documents->bad_rows++ == 0) {
        *strchr(error->text, '\n') = '\0';
        documents->first_bad_row = strdup(error->text);
    }
    return 0;
}

/* Reads a row. Returns 1 if it is bad and skipped. */
static int read_row(struct documents *documents, char *row, size_t size, struct error *error) {
    const bool undecided = !documents->rows.type;
    size_t column;
    const int status = rows_parse(&documents->rows, row, size, &column, error);
    documents->next_segment = documents->next_document = 0;
    if (status == 0) return 0;
    if (status < 0) {
        char what[600];
        snprintf(what, sizeof what, "%.599s", error->text);
        return fail(error, "%.*s, line %" PRIu64 ": %s", NAME_SHOWN, input_name(documents),
                    documents->begin.line, what);
    }
    if (bad_row(documents, row, size, column, error)) return -1;
    if (undecided) documents->rows.type = NULL;
    return 1;
}

/* Returns the next segment of the last row. */
static void take_segment(struct documents *documents, struct document_piece *piece) {
    const struct rows *rows = &documents->rows;
    const size_t index = documents->next_segment++, next = documents->next_document;
    const bool begins =
        next < arrlenu(rows->texts.documents) && rows->texts.documents[next].segment == index;
    *piece = (struct document_piece){rows->texts.segments[index].text,
                                     rows->texts.segments[index].size,
                                     .begins = begins,
                                     .is_row = true,
                                     .in_loss = rows->texts.segments[index].in_loss,
                                     .is_plain = rows->texts.segments[index].is_plain,
                                     .form = rows_form(rows),
                                     .marks = begins ? rows->texts.documents[next].marks : 0};
    documents->next_document += begins;
}

/* Finds out whether an input of rows is a list. */
static int choose_layout(struct documents *documents, struct error *error) {
    int next;
    if (skip_space(documents, &next, error)) return -1;
    documents->begins = false;
    if (next == '[') {
        documents->layout = LIST_BEGINS;
        consume(documents);
    }
    documents->end = documents->begin;
    return 0;
}

/* Returns the next row, of which the segments follow; RESULT_NONE at the end of the file. */
static int next_of_rows(struct documents *documents, struct document_piece *piece,
                        struct error *error) {
    if (documents->begins && choose_layout(documents, error)) return -1;
    for (;;) {
        char *row = NULL;
        size_t size = 0;
        documents->begin = documents->end;
        int status = documents->layout == ROW_LINES ? next_line(documents, &row, &size, error)
                                                    : next_of_list(documents, &row, &size, error);
        if (status) return status;
        if (documents->layout == ROW_LINES && jsonl_is_blank(row, size)) continue;
        status = read_row(documents, row, size, error);
        if (status < 0) return -1;
        if (status > 0) continue;
        documents->row_count++;
        if (arrlenu(documents->rows.texts.segments) == 0) continue;
        take_segment(documents, piece);
        return 0;
    }
}

static int next_piece(struct documents *documents, struct document_piece *piece,
                      struct error *error) {
    if (documents->next_segment < arrlenu(documents->rows.texts.segments)) {
        take_segment(documents, piece);
        return 0;
    }
    for (;;) {
        if (documents->fd < 0) {
            if (documents->next_input == arrlenu(documents->inputs->list))
                return rows_finish(&documents->rows, error) ? -1 : RESULT_NONE;
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

/* Remembers the place of the first byte without a token. */
static void keep_first_lacking(struct documents *documents, uint8_t byte) {
    snprintf(documents->first_lacking, sizeof documents->first_lacking,
             "0x%02x in %.*s, line %" PRIu64, (unsigned)byte, NAME_SHOWN, input_name(documents),
             documents->begin.line);
}

/* Counts the bytes of a piece that have no token. In a text file begin.line counts its lines. */
static void count_lacking(struct documents *documents, const struct document_piece *piece) {
    for (size_t i = 0; i < piece->size; i++) {
        const uint8_t byte = (uint8_t)piece->text[i];
        if (documents->lacking[byte] && documents->lacking_count++ == 0)
            keep_first_lacking(documents, byte);
        documents->begin.line += byte == '\n' && !piece->is_row;
    }
}

int documents_next(struct documents *documents, struct document_piece *piece, struct error *error) {
    const int status = next_piece(documents, piece, error);
    if (status == 0 && documents->lacking) count_lacking(documents, piece);
    return status;
}
