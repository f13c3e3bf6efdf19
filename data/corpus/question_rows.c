#include "data/corpus/question_rows.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/utf8.h"

enum { FIELDS_MAX = 5, VALUES_MAX = 100000, DEPTH_MAX = 256 };

struct row {
    struct question_set *set;
    struct question question;
    const cJSON *object;
    const struct row_form *form;
    struct error *error;
};

struct row_form {
    const char *name;
    const char *fields[FIELDS_MAX]; /* a row with the first two is of this form */
    int (*read)(struct row *row);
};

/* ---- reading fields */

/* Prints the fields of a form as "context, choices, answer". */
static void list_fields(char list[160], const struct row_form *form) {
    size_t used = 0;
    for (int i = 0; i < FIELDS_MAX && form->fields[i]; i++)
        used += (size_t)snprintf(list + used, 160 - used, "%s%s", i ? ", " : "", form->fields[i]);
}

/* Fails because a field is missing or is not `expected`, such as "a string". */
static int refuse_field(struct row *row, const cJSON *value, const char *name,
                        const char *expected) {
    char fields[160];
    list_fields(fields, row->form);
    return fail(row->error,
                value ? "\"%s\" is not %s. %s has the fields %s."
                      : "there is no \"%s\", %s. %s has the fields %s.",
                name, expected, row->form->name, fields);
}

static int read_text(const char **text, struct row *row, const cJSON *object, const char *name) {
    const cJSON *value = json_member(object, name);
    *text = cJSON_IsString(value) ? value->valuestring : NULL;
    return *text ? 0 : refuse_field(row, value, name, "a string");
}

static int read_list(const cJSON **list, struct row *row, const cJSON *object, const char *name) {
    *list = json_member(object, name);
    return cJSON_IsArray(*list) ? 0 : refuse_field(row, *list, name, "an array");
}

/* Reads the index of the answer among the choices added before, which are numbered from `first`. */
static int read_answer(struct row *row, const char *name, int first) {
    const cJSON *value = json_member(row->object, name);
    if (row->question.count < 2)
        return fail(row->error, "a question has at least two choices, and this one has %d",
                    row->question.count);
    const int last = first + row->question.count - 1;
    double number = -1;
    if (cJSON_IsNumber(value)) {
        number = value->valuedouble;
    } else if (cJSON_IsString(value)) {
        const size_t digits = strspn(value->valuestring, "0123456789");
        if (digits > 0 && digits < 9 && !value->valuestring[digits])
            number = atoi(value->valuestring);
    } else {
        return refuse_field(row, value, name, "the number of a choice");
    }
    if (!(number >= first && number <= last) || number != (int)number)
        return fail(row->error, "\"%s\" is not a whole number from %d to %d, one of the choices",
                    name, first, last);
    row->question.answer = (int)number - first;
    return 0;
}

/* ---- forms */

static int add_choice(struct row *row, const char *context, const char *delimiter,
                      const char *choice) {
    if (!*choice) return fail(row->error, "choice %d is empty", row->question.count + 1);
    question_add(row->set, &row->question, context, delimiter, choice);
    return 0;
}

static int read_plain(struct row *row) {
    const char *context;
    const cJSON *choices, *choice;
    if (read_text(&context, row, row->object, "context") ||
        read_list(&choices, row, row->object, "choices"))
        return -1;
    const size_t size = strlen(context);
    cJSON_ArrayForEach(choice, choices) {
        if (!cJSON_IsString(choice))
            return refuse_field(row, choice, "choices", "an array of strings");
        const char *text = choice->valuestring;
        const bool is_apart = size == 0 || utf8_trim_end(context, size) < size ||
                              utf8_skip_space(text, strlen(text)) > 0;
        if (add_choice(row, context, is_apart ? "" : " ", text)) return -1;
    }
    return read_answer(row, "answer", 0);
}

static const struct row_form FORMS[] = {
    {"A row of this program", {"context", "choices", "answer"}, read_plain},
};
enum { FORMS_COUNT = sizeof FORMS / sizeof *FORMS };

/* ---- rows */

static bool is_known(const struct json_span *key) {
    const size_t size = (size_t)(key->end - key->begin);
    for (int i = 0; i < FORMS_COUNT; i++)
        for (int j = 0; j < FIELDS_MAX && FORMS[i].fields[j]; j++)
            if (strlen(FORMS[i].fields[j]) == size &&
                memcmp(FORMS[i].fields[j], key->begin, size) == 0)
                return true;
    return false;
}

/* Replaces the values of unknown fields by 0 and spaces, which keeps all columns. These rows hold
 * whatever a dataset has collected, and json_parse refuses some of it, such as half a surrogate
 * pair. Stops at an error of syntax, which json_parse finds again. */
static void blank_unknown(char *row, size_t size) {
    struct json_scan scan = {.text = row, .at = row, .end = row + size, .depth_max = DEPTH_MAX};
    struct json_span key;
    if (json_scan_peek(&scan) != '{') return;
    do {
        scan.at++;
        if (!json_scan_key(&scan, &key)) return;
        json_scan_peek(&scan);
        char *const value = row + (scan.at - row);
        if (!json_scan_value(&scan)) return;
        if (is_known(&key)) continue;
        memset(value, ' ', (size_t)(scan.at - value));
        *value = '0';
    } while (json_scan_peek(&scan) == ',');
}

/* Fails because the row is of no known form. */
static int refuse_form(struct row *row) {
    char list[ERROR_MAX] = "", fields[160];
    size_t used = 0;
    for (int i = 0; i < FORMS_COUNT; i++) {
        list_fields(fields, &FORMS[i]);
        used +=
            (size_t)snprintf(list + used, sizeof list - used, "\n%s: %s", FORMS[i].name, fields);
    }
    return fail(row->error, "the fields are not those of a known row. Known are:%s", list);
}

static int read_row(struct row *row) {
    if (!cJSON_IsObject(row->object)) return fail(row->error, "the row is not an object, {...}");
    for (int i = 0; i < FORMS_COUNT && !row->form; i++)
        if (json_member(row->object, FORMS[i].fields[0]) &&
            json_member(row->object, FORMS[i].fields[1]))
            row->form = &FORMS[i];
    if (!row->form) return refuse_form(row);
    return row->form->read(row);
}

int question_row(struct question_set *set, char *row, size_t size, const char *name, size_t line,
                 struct error *error) {
    struct error problem;
    struct row read = {.set = set, .question.line = line, .error = &problem};
    cJSON *root;
    blank_unknown(row, size);
    /* Messages of json_parse begin with ":1:", an empty name and the only line of this text. */
    if (json_parse_limited(&root, row, size, VALUES_MAX, "", &problem))
        return fail(error, "%s:%zu%s", name, line, problem.text + 2);
    read.object = root;
    const int status = read_row(&read);
    cJSON_Delete(root);
    if (status == 0) {
        arrput(set->questions, read.question);
        return 0;
    }
    question_free(&read.question);
    return fail(error, "%s:%zu: %s", name, line, problem.text);
}
