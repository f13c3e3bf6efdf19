#include "data/corpus/question_rows.h"

#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/util/json.h"
#include "data/util/utf8.h"
#include "data/corpus/question_text.h"

enum { FIELDS_MAX = 5, VALUES_MAX = 100000 };

/* Limits of the texts to score. Each choice has a copy of its context, so a short file may ask for
 * far more memory than it takes. */
enum { ROW_BYTES_MAX = 64 << 20, SET_BYTES_MAX = 1 << 30 };

struct row {
    struct question_set *set;
    struct question question;
    size_t bytes; /* total size of its choices with their contexts */
    const cJSON *object;
    const struct row_form *form;
    char **scratch; /* stb_ds array of stb_ds arrays, freed with the row */
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
                value ? "\"%s\" is not %s. Rows of %s have the fields %s"
                      : "there is no \"%s\", %s. Rows of %s have the fields %s",
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

/* Reads a string of an array, whose name is given. */
static int read_item(const char **text, struct row *row, const cJSON *item, const char *name) {
    *text = cJSON_IsString(item) ? item->valuestring : NULL;
    return *text ? 0 : refuse_field(row, item, name, "an array of strings");
}

/* Returns the strings, up to a NULL, as one that is freed with the row. */
__attribute__((sentinel)) static char *join(struct row *row, const char *first, ...) {
    char *joined = NULL;
    va_list arguments;
    va_start(arguments, first);
    for (const char *part = first; part; part = va_arg(arguments, const char *))
        if (*part) memcpy(arraddnptr(joined, strlen(part)), part, strlen(part));
    va_end(arguments);
    arrput(joined, '\0');
    arrput(row->scratch, joined);
    return joined;
}

/* ---- choices and the answer */

static int add_choice(struct row *row, const char *context, const char *delimiter,
                      const char *choice) {
    const size_t size = strlen(context) + strlen(choice), before = row->set->bytes;
    if (!*choice) return fail(row->error, "choice %d is empty", row->question.count + 1);
    row->bytes += size;
    if (row->bytes > ROW_BYTES_MAX)
        return fail(row->error,
                    "the context before each of its choices makes more than %d MiB\nshorten it, or "
                    "leave out the row",
                    ROW_BYTES_MAX >> 20);
    if (before + size > SET_BYTES_MAX)
        return fail(row->error,
                    "the rows up to here, with the context before each choice, make more than %d "
                    "MiB\ndivide the file",
                    SET_BYTES_MAX >> 20);
    question_add(row->set, &row->question, context, delimiter, choice);
    return 0;
}

static int check_count(struct row *row) {
    if (row->question.count >= 2) return 0;
    return fail(row->error, "a question has at least two choices, and this one has %d",
                row->question.count);
}

/* Reads the index of the answer among the choices added before, which are numbered from `first`. */
static int read_answer(struct row *row, const char *name, int first) {
    const cJSON *value = json_member(row->object, name);
    const int last = first + row->question.count - 1;
    double number = -1;
    if (check_count(row)) return -1;
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

static int read_plain(struct row *row) {
    const char *context, *text;
    const cJSON *choices, *choice;
    if (read_text(&context, row, row->object, "context") ||
        read_list(&choices, row, row->object, "choices"))
        return -1;
    const size_t size = strlen(context);
    cJSON_ArrayForEach(choice, choices) {
        if (read_item(&text, row, choice, "choices")) return -1;
        const bool is_apart = size == 0 || utf8_trim_end(context, size) < size ||
                              utf8_skip_space(text, strlen(text)) > 0;
        if (add_choice(row, context, is_apart ? "" : " ", text)) return -1;
    }
    return read_answer(row, "answer", 0);
}

static int read_hellaswag(struct row *row) {
    const char *label, *ctx_a, *ctx_b = "", *text;
    const cJSON *endings, *ending;
    if (read_text(&label, row, row->object, "activity_label") ||
        read_text(&ctx_a, row, row->object, "ctx_a") ||
        (json_member(row->object, "ctx_b") && read_text(&ctx_b, row, row->object, "ctx_b")) ||
        read_list(&endings, row, row->object, "endings"))
        return -1;
    char *capitalized = question_capitalize(ctx_b);
    arrput(row->scratch, capitalized);
    char *context = join(row, label, ": ", ctx_a, " ", capitalized, NULL);
    question_clean(context);
    cJSON_ArrayForEach(ending, endings) {
        if (read_item(&text, row, ending, "endings")) return -1;
        if (add_choice(row, context, " ", question_clean(join(row, text, NULL)))) return -1;
    }
    return read_answer(row, "label", 0);
}

/* Both layouts: lists of texts and labels beside the question, or one list of objects inside. */
static int read_arc(struct row *row) {
    const char *stem, *key;
    const cJSON *question = json_member(row->object, "question"), *choices, *labels = NULL;
    const bool nested = cJSON_IsObject(question);
    const cJSON *lists = json_member(row->object, "choices");
    if (read_text(&stem, row, nested ? question : row->object, nested ? "stem" : "question") ||
        read_text(&key, row, row->object, "answerKey") ||
        read_list(&choices, row, nested ? question : lists, nested ? "choices" : "text") ||
        (!nested && read_list(&labels, row, lists, "label")))
        return -1;
    const char *context = join(row, "Question: ", stem, "\nAnswer:", NULL);
    const cJSON *next_label = labels ? labels->child : NULL, *choice;
    row->question.answer = -1;
    cJSON_ArrayForEach(choice, choices) {
        const cJSON *text = nested ? json_member(choice, "text") : choice;
        const cJSON *label = nested ? json_member(choice, "label") : next_label;
        if (!cJSON_IsString(text) || !cJSON_IsString(label))
            return refuse_field(row, choice, "choices", "a text and a label for each choice");
        if (row->question.answer < 0 && strcmp(label->valuestring, key) == 0)
            row->question.answer = row->question.count;
        if (add_choice(row, context, " ", text->valuestring)) return -1;
        next_label = next_label ? next_label->next : NULL;
    }
    if (next_label)
        return refuse_field(row, choices, "choices", "a text and a label for each choice");
    if (check_count(row)) return -1;
    if (row->question.answer >= 0) return 0;
    return fail(row->error, "\"answerKey\" is not the label of a choice: \"%s\"",
                json_text_shown(key).text);
}

static int read_piqa(struct row *row) {
    const char *goal, *first, *second;
    if (read_text(&goal, row, row->object, "goal") || read_text(&first, row, row->object, "sol1") ||
        read_text(&second, row, row->object, "sol2"))
        return -1;
    const char *context = join(row, "Question: ", goal, "\nAnswer:", NULL);
    if (add_choice(row, context, " ", first) || add_choice(row, context, " ", second)) return -1;
    return read_answer(row, "label", 0);
}

static int read_winogrande(struct row *row) {
    const char *sentence, *options[2];
    if (read_text(&sentence, row, row->object, "sentence") ||
        read_text(&options[0], row, row->object, "option1") ||
        read_text(&options[1], row, row->object, "option2"))
        return -1;
    const size_t before = strcspn(sentence, "_");
    if (!sentence[before]) return fail(row->error, "\"sentence\" has no \"_\"");
    const char *after = question_strip(join(row, sentence + before + 1, NULL));
    char *begin = join(row, sentence, NULL);
    begin[before] = '\0';
    if (!*after) return fail(row->error, "nothing follows the \"_\" of \"sentence\"");
    for (int i = 0; i < 2; i++) {
        if (!*options[i]) return fail(row->error, "choice %d is empty", i + 1);
        const char *context = join(row, begin, options[i], NULL);
        if (add_choice(row, context, " ", after)) return -1;
        row->question.choices[i].characters = utf8_count(context, strlen(context));
    }
    return read_answer(row, "answer", 1);
}

static int read_mmlu(struct row *row) {
    static const char *const letters[] = {"A", "B", "C", "D"};
    const char *question, *name, *texts[4];
    const cJSON *choices;
    if (read_text(&question, row, row->object, "question") ||
        read_text(&name, row, row->object, "subject") ||
        read_list(&choices, row, row->object, "choices"))
        return -1;
    if (cJSON_GetArraySize(choices) != 4)
        return refuse_field(row, choices, "choices", "an array of four strings");
    for (int i = 0; i < 4; i++)
        if (read_item(&texts[i], row, cJSON_GetArrayItem(choices, i), "choices")) return -1;
    char *subject = join(row, name, NULL);
    for (char *at = subject; (at = strchr(at, '_')) != NULL;) *at = ' ';
    const char *context =
        join(row, "The following are multiple choice questions (with answers) about ", subject,
             ".\n\n", question_strip(join(row, question, NULL)), "\nA. ", texts[0], "\nB. ",
             texts[1], "\nC. ", texts[2], "\nD. ", texts[3], "\nAnswer:", NULL);
    for (int i = 0; i < 4; i++)
        if (add_choice(row, context, " ", letters[i])) return -1;
    return read_answer(row, "answer", 0);
}

/* The first two fields decide. */
static const struct row_form FORMS[] = {
    {"this program", {"context", "choices", "answer"}, read_plain},
    {"HellaSwag", {"ctx_a", "endings", "activity_label", "ctx_b", "label"}, read_hellaswag},
    {"ARC", {"question", "answerKey", "choices"}, read_arc},
    {"PIQA", {"goal", "sol1", "sol2", "label"}, read_piqa},
    {"WinoGrande", {"sentence", "option1", "option2", "answer"}, read_winogrande},
    {"MMLU", {"question", "subject", "choices", "answer"}, read_mmlu},
};
enum { FORMS_COUNT = sizeof FORMS / sizeof *FORMS };

/* ---- rows */

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
    /* Messages of json_parse begin with ":1:", an empty name and the only line of this text. */
    if (json_parse_limited(&root, row, size, VALUES_MAX, "", &problem))
        return fail(error, "%s:%zu%s", name, line, problem.text + 2);
    read.object = root;
    const int status = read_row(&read);
    cJSON_Delete(root);
    for (size_t i = 0; i < arrlenu(read.scratch); i++) arrfree(read.scratch[i]);
    arrfree(read.scratch);
    if (status == 0) {
        arrput(set->questions, read.question);
        return 0;
    }
    question_free(&read.question);
    return fail(error, "%s:%zu: %s", name, line, problem.text);
}
