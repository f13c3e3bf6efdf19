#include "model/choices/questions.h"

#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "data/corpus/jsonl.h"
#include "data/util/files.h"
#include "data/util/json.h"
#include "data/util/utf8.h"

/* Each choice has a copy of its context, so a short file may ask for far more memory than it
 * takes: the texts of a row and of all rows are limited, too. */
enum { FILE_BYTES_MAX = 1 << 30 };
enum { ROW_BYTES_MAX = 64 << 20, SET_BYTES_MAX = 1 << 30 };

void question_add(struct question_set *set, struct question *question, const char *context,
                  const char *delimiter, const char *choice) {
    const size_t before = strlen(context), between = strlen(delimiter), after = strlen(choice);
    const size_t kept = utf8_trim_end(context, before), size = before + between + after;
    char *text = NULL;
    memcpy(arraddnptr(text, size + 1), context, before);
    memcpy(text + before, delimiter, between);
    memcpy(text + before + between, choice, after + 1);
    arrput(set->texts, text);
    set->bytes += size;
    const struct choice added = {text, kept, text + kept, size - kept, utf8_count(choice, after)};
    arrput(question->choices, added);
    question->count++;
}

void questions_close(struct question_set *set) {
    for (size_t i = 0; i < arrlenu(set->questions); i++) arrfree(set->questions[i].choices);
    for (size_t i = 0; i < arrlenu(set->texts); i++) arrfree(set->texts[i]);
    arrfree(set->questions);
    arrfree(set->texts);
}

/* ---- rows */

static int refuse_field(const cJSON *value, const char *name, const char *expected,
                        struct error *error) {
    return fail(error,
                value ? "\"%s\" is not %s. Rows have the fields context, choices, answer"
                      : "there is no \"%s\", %s. Rows have the fields context, choices, answer",
                name, expected);
}

/* Fails if the row has the layout of a benchmark: the two fields by which scripts/questions.py
 * recognizes it. */
static int refuse_benchmark(const cJSON *row, struct error *error) {
    static const char *const benchmarks[][3] = {
        {"HellaSwag", "ctx_a", "endings"},
        {"ARC", "question", "answerKey"},
        {"PIQA", "goal", "sol1"},
        {"MMLU", "question", "subject"},
        {"WinoGrande", "sentence", "option1"},
    };
    for (size_t i = 0; i < sizeof benchmarks / sizeof *benchmarks; i++)
        if (json_member(row, benchmarks[i][1]) && json_member(row, benchmarks[i][2]))
            return fail(error,
                        "this is a row of %s. Convert the file:\n"
                        "python3 scripts/questions.py FILE questions.jsonl",
                        benchmarks[i][0]);
    return 0;
}

static const char *usual_delimiter(const char *context, const char *choice) {
    const size_t size = strlen(context);
    const bool is_apart = size == 0 || utf8_trim_end(context, size) < size ||
                          utf8_skip_space(choice, strlen(choice)) > 0;
    return is_apart ? "" : " ";
}

/* Adds a choice, unless the texts of its row, which began at `begin` bytes of the set, or those of
 * the set become too large. */
static int add_choice(struct question_set *set, struct question *question, size_t begin,
                      const char *context, const char *delimiter, const char *choice,
                      struct error *error) {
    const size_t end = set->bytes + strlen(context) + strlen(delimiter) + strlen(choice);
    if (!*choice) return fail(error, "choice %d is empty", question->count + 1);
    if (end - begin > ROW_BYTES_MAX)
        return fail(error,
                    "the context before each of its choices makes more than %d MiB\nshorten it, or "
                    "leave out the row",
                    ROW_BYTES_MAX >> 20);
    if (end > SET_BYTES_MAX)
        return fail(error,
                    "the rows up to here, with the context before each choice, make more than %d "
                    "MiB\ndivide the file",
                    SET_BYTES_MAX >> 20);
    question_add(set, question, context, delimiter, choice);
    return 0;
}

static int read_choices(struct question_set *set, struct question *question, const cJSON *row,
                        struct error *error) {
    const cJSON *context = json_member(row, "context"), *choices = json_member(row, "choices");
    const cJSON *delimiter = json_member(row, "delimiter"), *choice;
    const bool is_each = cJSON_IsArray(context);
    if (!is_each && !cJSON_IsString(context))
        return refuse_field(context, "context", "a string, or an array of strings", error);
    if (!cJSON_IsArray(choices)) return refuse_field(choices, "choices", "an array", error);
    if (delimiter && !cJSON_IsString(delimiter))
        return refuse_field(delimiter, "delimiter", "a string", error);
    const cJSON *before = is_each ? context->child : context;
    const size_t begin = set->bytes;
    cJSON_ArrayForEach(choice, choices) {
        if (!cJSON_IsString(before))
            return refuse_field(context, "context", "an array with a string for each choice",
                                error);
        if (!cJSON_IsString(choice))
            return refuse_field(choices, "choices", "an array of strings", error);
        const char *first = before->valuestring, *text = choice->valuestring;
        const char *between = delimiter ? delimiter->valuestring : usual_delimiter(first, text);
        if (add_choice(set, question, begin, first, between, text, error)) return -1;
        if (is_each) before = before->next;
    }
    if (is_each && before)
        return refuse_field(context, "context", "an array with a string for each choice", error);
    return 0;
}

static int read_answer(struct question *question, const cJSON *row, struct error *error) {
    const cJSON *value = json_member(row, "answer");
    double number = -1;
    if (question->count < 2)
        return fail(error, "a question has at least two choices, and this one has %d",
                    question->count);
    if (cJSON_IsNumber(value)) {
        number = value->valuedouble;
    } else if (cJSON_IsString(value)) {
        const size_t digits = strspn(value->valuestring, "0123456789");
        if (digits > 0 && digits < 9 && !value->valuestring[digits])
            number = atoi(value->valuestring);
    } else {
        return refuse_field(value, "answer", "the number of a choice", error);
    }
    if (!(number >= 0 && number < question->count) || number != (int)number)
        return fail(error, "\"answer\" is not a whole number from 0 to %d, one of the choices",
                    question->count - 1);
    question->answer = (int)number;
    return 0;
}

/* True if a string, or a string in an array, has a NUL character. */
static bool has_nul(const cJSON *value) {
    const cJSON *item;
    if (cJSON_IsString(value)) return strstr(value->valuestring, JSON_ROW_NUL);
    cJSON_ArrayForEach(item, value) if (cJSON_IsString(item) &&
                                        strstr(item->valuestring, JSON_ROW_NUL)) return true;
    return false;
}

/* Fails if a field that is read appears twice or has a NUL character. */
static int check_fields(const cJSON *row, struct error *error) {
    static const char *const names[] = {"context", "choices", "answer", "delimiter"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const cJSON *value = NULL, *field;
        cJSON_ArrayForEach(field, row) {
            if (strcmp(field->string, names[i]) != 0) continue;
            if (value) return fail(error, "\"%s\" appears twice", names[i]);
            value = field;
        }
        if (has_nul(value))
            return fail(error, "\"%s\" has \\u0000, the NUL character\nremove it", names[i]);
    }
    return 0;
}

/* Adds the question of a line. */
static int read_row(struct question_set *set, const char *line, size_t size, size_t number,
                    const char *path, struct error *error) {
    struct error problem;
    struct question question = {.line = number};
    size_t column;
    cJSON *row;
    if (json_parse_row(&row, line, size, &column, &problem))
        return fail(error, "%s:%zu:%zu: %s", path, number, column, problem.text);
    int status = cJSON_IsObject(row) ? 0 : fail(&problem, "the row is not an object, {...}");
    if (status == 0 && !json_member(row, "context")) status = refuse_benchmark(row, &problem);
    if (status == 0) status = check_fields(row, &problem);
    if (status == 0) status = read_choices(set, &question, row, &problem);
    if (status == 0) status = read_answer(&question, row, &problem);
    cJSON_Delete(row);
    arrput(set->questions, question);
    return status ? fail(error, "%s:%zu: %s", path, number, problem.text) : 0;
}

/* ---- files */

/* Refuses files of other kinds, which are common for these data. */
static int check_kind(const char *text, size_t size, const char *path, struct error *error) {
    if (size >= 4 && memcmp(text, "PAR1", 4) == 0)
        return fail(error,
                    "%s: this is a Parquet file, and JSON Lines are read. Convert one of a "
                    "benchmark:\npython3 scripts/questions.py FILE questions.jsonl",
                    path);
    if (text[strspn(text, " \t\r\n")] == '[')
        return fail(error,
                    "%s: this is a JSON array, and JSON Lines are read: one object on each line. "
                    "Convert it:\njq -c '.[]' IN.json > OUT.jsonl",
                    path);
    return 0;
}

static int read_rows(struct question_set *set, const char *text, size_t size, const char *path,
                     struct error *error) {
    size_t line = 1;
    for (const char *row = text, *end = text + size, *next; row < end; row = next, line++) {
        const char *stop = memchr(row, '\n', (size_t)(end - row));
        next = stop ? stop + 1 : end;
        if (!stop) stop = end;
        const size_t length = (size_t)(stop - row);
        if (!jsonl_is_blank(row, length) && read_row(set, row, length, line, path, error))
            return -1;
    }
    return arrlenu(set->questions) > 0 ? 0 : fail(error, "%s:1: the file has no rows", path);
}

int questions_open(struct question_set *set, const char *path, struct error *error) {
    char *text, shown[FILE_SHOWN_MAX];
    size_t size;
    *set = (struct question_set){0};
    if (file_read_all(&text, &size, path, FILE_BYTES_MAX, error)) return -1;
    file_path_shown(shown, path);
    const size_t mark = size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    int status = check_kind(text + mark, size - mark, shown, error);
    if (status == 0) status = read_rows(set, text + mark, size - mark, shown, error);
    free(text);
    if (status) questions_close(set);
    return status;
}
