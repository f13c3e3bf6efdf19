#include "data/corpus/questions.h"

#include <criterion/criterion.h>
#include <string.h>

#include <stb/stb_ds.h>

#include "test/match.h"
#include "test/scratch.h"

TestSuite(question_rows, .init = make_folder, .fini = remove_folder);

enum { CHOICES_MAX = 5 };

/* Rows of benchmarks, and the texts that lm-evaluation-harness 0.4.13 makes of them. */
static const struct {
    const char *row;
    int answer;
    struct {
        const char *context; /* NULL: that of the first choice */
        const char *continuation;
        int64_t characters;
    } choices[CHOICES_MAX];
} ROWS[] = {
    /* HellaSwag */
    {"{\"ctx_a\":\"A man is sitting on a roof.\",\"ctx_b\":\"he\",\"activity_label\":\"Roof "
     "shingle removal\",\"endings\":[\"is using wrap.\",\"is ripping  level   tiles "
     "off.\",\"[substeps] Get a [unclosed ending\",\"starts [x]pulling[y] up "
     "é.\"],\"label\":3,\"ctx\":\"A man is sitting on a roof.\",\"ind\":1}",
     3,
     {{"Roof shingle removal: A man is sitting on a roof. He", " is using wrap.", 14},
      {NULL, " is ripping level  tiles off.", 28},
      {NULL, "  Get a [unclosed ending", 23},
      {NULL, " starts pulling up é.", 20}}},
    {"{\"ctx_a\":\"[header] How to plant [title] Choose a spot. [step] Dig [substeps] "
     "deep.\",\"ctx_b\":\"\",\"activity_label\":\"Home and Garden\",\"endings\":[\"is using "
     "wrap.\",\"is ripping  level   tiles off.\",\"[substeps] Get a [unclosed ending\",\"starts "
     "[x]pulling[y] up é.\"],\"label\":\"0\"}",
     0,
     {{"Home and Garden: How to plant. Choose a spot. Dig deep.", " is using wrap.", 14},
      {NULL, " is ripping level  tiles off.", 28},
      {NULL, "  Get a [unclosed ending", 23},
      {NULL, " starts pulling up é.", 20}}},
    {"{\"ctx_a\":\"  Leading spaces\",\"ctx_b\":\"THE McDonald's IN NYC\",\"activity_label\":\"  "
     "Label \",\"endings\":[\"is using wrap.\",\"is ripping  level   tiles off.\",\"[substeps] Get "
     "a [unclosed ending\",\"starts [x]pulling[y] up é.\"],\"label\":\"1\"}",
     1,
     {{"Label :  Leading spaces The mcdonald's in nyc", " is using wrap.", 14},
      {NULL, " is ripping level  tiles off.", 28},
      {NULL, "  Get a [unclosed ending", 23},
      {NULL, " starts pulling up é.", 20}}},
    {"{\"ctx_a\":\"ctx a\",\"ctx_b\":\"ÉCOLE ÄÖÜ ŠŽ\",\"activity_label\":\"Ünïcode — "
     "“quotes”\",\"endings\":[\"is using wrap.\",\"is ripping  level   tiles off.\",\"[substeps] "
     "Get a [unclosed ending\",\"starts [x]pulling[y] up é.\"],\"label\":\"2\"}",
     2,
     {{"Ünïcode — “quotes”: ctx a École äöü šž", " is using wrap.", 14},
      {NULL, " is ripping level  tiles off.", 28},
      {NULL, "  Get a [unclosed ending", 23},
      {NULL, " starts pulling up é.", 20}}},
    {"{\"ctx_a\":\"ends in bracket\",\"ctx_b\":\"then "
     "[step]\",\"activity_label\":\"L\",\"endings\":[\" a [title] b\",\" [title]x\",\"a\\n[b\\nc] "
     "d\",\"[a [b] c] e\"],\"label\":\"0\"}",
     0,
     {{"L: ends in bracket Then", "  a. b", 4},
      {NULL, "  x", 1},
      {NULL, "  a\n[b\nc] d", 9},
      {NULL, "   c] e", 5}}},
    {"{\"ctx_a\":\"a  b   c    "
     "d\",\"ctx_b\":\"éa\",\"activity_label\":\"L\",\"endings\":[\"tab\\tend\\t\","
     "\"\302\240nbsp\302\240\",\"x\343\200\200y\343\200\200\",\"  two\"],\"label\":\"1\"}",
     1,
     {{"L: a b  c  d Éa", " tab\tend", 7},
      {NULL, " nbsp", 4},
      {NULL, " x\343\200\200y", 3},
      {NULL, " two", 3}}},
    {"{\"ctx_a\":\"a [title][title] b\",\"ctx_b\":\"ÖL  "
     "x\",\"activity_label\":\"L\",\"endings\":[\"x\",\"yy\",\"zzz\",\"ü\"],\"label\":\"3\"}",
     3,
     {{"L: a. b Öl x", " x", 1}, {NULL, " yy", 2}, {NULL, " zzz", 3}, {NULL, " ü", 1}}},
    /* ARC */
    {"{\"question\":\"Which gas?\",\"choices\":{\"text\":[\"oxygen\",\"carbon dioxide\",\" "
     "spaced\",\"naïve ü\"],\"label\":[\"A\",\"B\",\"C\",\"D\"]},\"answerKey\":\"B\"}",
     1,
     {{"Question: Which gas?\nAnswer:", " oxygen", 6},
      {NULL, " carbon dioxide", 14},
      {NULL, "  spaced", 7},
      {NULL, " naïve ü", 7}}},
    {"{\"question\":\"Digits?\",\"choices\":{\"text\":[\"one\",\"two\",\"three\",\"four\"],"
     "\"label\":[\"1\",\"2\",\"3\",\"4\"]},\"answerKey\":\"3\"}",
     2,
     {{"Question: Digits?\nAnswer:", " one", 3},
      {NULL, " two", 3},
      {NULL, " three", 5},
      {NULL, " four", 4}}},
    {"{\"question\":\"Five\\nlines "
     "\\\"quoted\\\"\",\"choices\":{\"text\":[\"a\",\"b\",\"c\",\"d\",\"{'e'}\"],\"label\":[\"A\","
     "\"B\",\"C\",\"D\",\"E\"]},\"answerKey\":\"E\"}",
     4,
     {{"Question: Five\nlines \"quoted\"\nAnswer:", " a", 1},
      {NULL, " b", 1},
      {NULL, " c", 1},
      {NULL, " d", 1},
      {NULL, " {'e'}", 5}}},
    {"{\"question\":\"\",\"choices\":{\"text\":[\"tab\\t\",\"\\nline\",\"\302\240x\",\"y\"],"
     "\"label\":[\"A\",\"B\",\"C\",\"D\"]},\"answerKey\":\"D\"}",
     3,
     {{"Question: \nAnswer:", " tab\t", 4},
      {NULL, " \nline", 5},
      {NULL, " \302\240x", 2},
      {NULL, " y", 1}}},
    /* ARC, as in its archive */
    {"{\"question\":{\"stem\":\"Digits?\",\"choices\":[{\"text\":\"one\",\"label\":\"1\"},{"
     "\"text\":\"two\",\"label\":\"2\"},{\"text\":\"three\",\"label\":\"3\"},{\"text\":\"four\","
     "\"label\":\"4\"}]},\"answerKey\":\"3\"}",
     2,
     {{"Question: Digits?\nAnswer:", " one", 3},
      {NULL, " two", 3},
      {NULL, " three", 5},
      {NULL, " four", 4}}},
    {"{\"question\":{\"stem\":\"Unicode ½ °C — "
     "水\",\"choices\":[{\"text\":\"½\",\"label\":\"A\"},{\"text\":\"水の\",\"label\":\"B\"},{"
     "\"text\":\"😀😀\",\"label\":\"C\"},{\"text\":\"é\",\"label\":\"D\"}]},\"answerKey\":\"D\"}",
     3,
     {{"Question: Unicode ½ °C — 水\nAnswer:", " ½", 1},
      {NULL, " 水の", 2},
      {NULL, " 😀😀", 2},
      {NULL, " é", 2}}},
    /* PIQA */
    {"{\"goal\":\"How do I ready a guinea pig cage?\",\"sol1\":\"Provide it with "
     "bedding.\",\"sol2\":\" Provide  it\\nwith jeans.\",\"label\":0}",
     0,
     {{"Question: How do I ready a guinea pig cage?\nAnswer:", " Provide it with bedding.", 24},
      {NULL, "  Provide  it\nwith jeans.", 24}}},
    {"{\"goal\":\"To fight Ivan Drago, \",\"sol1\":\"Drink out of a "
     "jug'.\",\"sol2\":\"\\\"Quote\\\\\\\" é\",\"label\":1}",
     1,
     {{"Question: To fight Ivan Drago, \nAnswer:", " Drink out of a jug'.", 20},
      {NULL, " \"Quote\\\" é", 10}}},
    {"{\"goal\":\"x\302\240\",\"sol1\":\"1\",\"sol2\":\"22\",\"label\":0}",
     0,
     {{"Question: x\302\240\nAnswer:", " 1", 1}, {NULL, " 22", 2}}},
    /* WinoGrande */
    {"{\"sentence\":\"Sarah was a better surgeon than Maria so _ always got the easier "
     "cases.\",\"option1\":\"Sarah\",\"option2\":\"Maria\",\"answer\":\"2\"}",
     1,
     {{"Sarah was a better surgeon than Maria so Sarah", " always got the easier cases.", 46},
      {"Sarah was a better surgeon than Maria so Maria", " always got the easier cases.", 46}}},
    {"{\"sentence\":\"The _ doesn't fit in _ it.  \",\"option1\":\"trophy "
     "\",\"option2\":\"suitcase\",\"answer\":\"1\"}",
     0,
     {{"The trophy", "  doesn't fit in _ it.", 11}, {"The suitcase", " doesn't fit in _ it.", 12}}},
    {"{\"sentence\":\"Then _, he left\",\"option1\":\"Ann\",\"option2\":\"the "
     "man\302\240\",\"answer\":\"2\"}",
     1,
     {{"Then Ann", " , he left", 8}, {"Then the man", "\302\240 , he left", 13}}},
    {"{\"sentence\":\"_x\",\"option1\":\" \",\"option2\":\"B\",\"answer\":\"1\"}",
     0,
     {{"", "  x", 1}, {"B", " x", 1}}},
    /* MMLU */
    {"{\"question\":\"This question refers to the "
     "following.\\n\\\"x\\\"\",\"subject\":\"high_school_us_history\",\"choices\":[\"a\",\"b "
     "c\",\"d'e\",\"é\"],\"answer\":2}",
     2,
     {{"The following are multiple choice questions (with answers) about high school us "
       "history.\n\nThis question refers to the following.\n\"x\"\nA. a\nB. b c\nC. d'e\nD. "
       "é\nAnswer:",
       " A", 1},
      {NULL, " B", 1},
      {NULL, " C", 1},
      {NULL, " D", 1}}},
    {"{\"question\":\"  strip me \\n\",\"subject\":\"high_school_us_history\",\"choices\":[\"\",\" "
     " \",\"[x]\",\"水\"],\"answer\":0}",
     0,
     {{"The following are multiple choice questions (with answers) about high school us "
       "history.\n\nstrip me\nA. \nB.   \nC. [x]\nD. 水\nAnswer:",
       " A", 1},
      {NULL, " B", 1},
      {NULL, " C", 1},
      {NULL, " D", 1}}},
};
enum { ROWS_COUNT = sizeof ROWS / sizeof *ROWS };

static void expect_text(const char *text, size_t size, const char *expected, int row, int choice) {
    cr_expect(size == strlen(expected) && memcmp(text, expected, size) == 0,
              "row %d, choice %d: \"%.*s\" instead of \"%s\"", row, choice, (int)size, text,
              expected);
}

/* Opens a file of these rows. */
static int open_rows(struct question_set *set, const char *const *rows, int count) {
    const char *path = in_folder("rows.jsonl");
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    for (int i = 0; i < count; i++) fprintf(file, "%s\n", rows[i]);
    cr_assert_eq(fclose(file), 0);
    error.text[0] = '\0';
    return questions_open(set, path, &error);
}

Test(question_rows, texts_equal_those_of_lm_evaluation_harness) {
    struct question_set set;
    const char *rows[ROWS_COUNT];
    for (int i = 0; i < ROWS_COUNT; i++) rows[i] = ROWS[i].row;
    SUCCEEDS(open_rows(&set, rows, ROWS_COUNT));
    cr_assert_eq(arrlen(set.questions), ROWS_COUNT);
    for (int i = 0; i < ROWS_COUNT; i++) {
        const struct question *question = &set.questions[i];
        cr_expect_eq(question->answer, ROWS[i].answer, "row %d", i);
        cr_expect_eq(question->line, (size_t)i + 1);
        int count = 0;
        while (count < CHOICES_MAX && ROWS[i].choices[count].continuation) count++;
        cr_assert_eq(question->count, count, "row %d: %d choices", i, question->count);
        for (int j = 0; j < count; j++) {
            const struct choice *choice = &question->choices[j];
            const char *context = ROWS[i].choices[j].context;
            if (!context) context = ROWS[i].choices[0].context;
            expect_text(choice->context, choice->context_size, context, i, j);
            expect_text(choice->continuation, choice->continuation_size,
                        ROWS[i].choices[j].continuation, i, j);
            cr_expect_eq(choice->characters, ROWS[i].choices[j].characters, "row %d, choice %d", i,
                         j);
        }
    }
    questions_close(&set);
}

static void expect_refused(const char *row, const char *pattern) {
    struct question_set set;
    cr_expect_eq(open_rows(&set, &row, 1), -1, "%s", row);
    cr_expect_null(set.questions);
    expect_match(error.text, "rows.jsonl:1: ");
    expect_match(error.text, pattern);
}

#define ENDINGS(list, label) \
    "{\"ctx_a\":\"a\",\"activity_label\":\"l\",\"endings\":" list ",\"label\":" label "}"
#define ARC(choices, key) "{\"question\":\"q\",\"choices\":" choices ",\"answerKey\":" key "}"
#define WINO(sentence, answer) \
    "{\"sentence\":\"" sentence "\",\"option1\":\"x\",\"option2\":\"y\",\"answer\":" answer "}"
#define MMLU(choices, answer) \
    "{\"question\":\"q\",\"subject\":\"s\",\"choices\":" choices ",\"answer\":" answer "}"

Test(question_rows, a_missing_ctx_b_is_empty) {
    struct question_set set;
    const char *row = ENDINGS("[\"x\",\"y\"]", "\"1\"");
    SUCCEEDS(open_rows(&set, &row, 1));
    const struct choice *choice = &set.questions[0].choices[1];
    expect_text(choice->context, choice->context_size, "l: a", 0, 1);
    questions_close(&set);
}

/* Each opening bracket without its end was searched for to the end of the text. */
Test(question_rows, many_open_brackets_take_linear_time, .timeout = 20) {
    enum { BRACKETS = 2000000 };
    struct question_set set;
    char *row = NULL;
    static const char begin[] = "{\"ctx_a\":\"", end[] = "\",\"endings\":[\"[x]y\",\"[z\"],"
                                                         "\"activity_label\":\"l\",\"label\":0}";
    memcpy(arraddnptr(row, sizeof begin - 1), begin, sizeof begin - 1);
    memset(arraddnptr(row, BRACKETS), '[', BRACKETS);
    memcpy(arraddnptr(row, sizeof end), end, sizeof end);
    const char *rows = row;
    SUCCEEDS(open_rows(&set, &rows, 1));
    cr_expect_eq(set.questions[0].choices[0].context_size, BRACKETS + strlen("l: "));
    cr_expect_str_eq(set.questions[0].choices[0].continuation, " y");
    cr_expect_str_eq(set.questions[0].choices[1].continuation, " [z");
    questions_close(&set);
    arrfree(row);
}

/* Each choice has a copy of the context, here 100 MB of a row of 1 MB. */
Test(question_rows, choices_times_context_are_limited) {
    enum { CONTEXT = 1000000, CHOICES = 100 };
    char *row = NULL;
    static const char begin[] = "{\"context\":\"", middle[] = "\",\"answer\":0,\"choices\":[\"x\"",
                      choice[] = ",\"x\"", end[] = "]}";
    memcpy(arraddnptr(row, sizeof begin - 1), begin, sizeof begin - 1);
    memset(arraddnptr(row, CONTEXT), 'a', CONTEXT);
    memcpy(arraddnptr(row, sizeof middle - 1), middle, sizeof middle - 1);
    for (int i = 1; i < CHOICES; i++)
        memcpy(arraddnptr(row, sizeof choice - 1), choice, sizeof choice - 1);
    memcpy(arraddnptr(row, sizeof end), end, sizeof end);
    expect_refused(row, "context before each of its choices makes more than 64 MiB");
    arrfree(row);
}

Test(question_rows, bad_rows) {
    expect_refused(ENDINGS("[\"x\",\"[y]\"]", "1"), "choice 2 is empty");
    expect_refused(ENDINGS("[\"x\"]", "0"), "at least two choices, and this one has 1");
    expect_refused(ENDINGS("[\"x\",\"y\"]", "\"\""), "\"label\" is not a whole number from 0 to 1");
    expect_refused(ENDINGS("[\"x\",null]", "1"), "\"endings\" is not an array of strings");
    expect_refused(ENDINGS("{}", "1"),
                   "\"endings\" is not an array. Rows of HellaSwag have the fields ctx_a, endings");
    expect_refused(ARC("{\"text\":[\"x\",\"y\"],\"label\":[\"A\",\"B\"]}", "\"C\""),
                   "\"answerKey\" is not the label of a choice: \"C\"");
    expect_refused(ARC("{\"text\":[\"x\",\"y\"],\"label\":[\"A\"]}", "\"A\""),
                   "\"choices\" is not a text and a label for each choice");
    expect_refused(ARC("{\"text\":[\"x\",\"y\"],\"label\":[\"A\",\"B\",\"C\"]}", "\"A\""),
                   "a label for each choice");
    expect_refused(ARC("{\"text\":[\"x\",\"y\"]}", "\"A\""), "there is no \"label\"");
    expect_refused(ARC("[\"x\",\"y\"]", "\"A\""), "there is no \"text\"");
    expect_refused("{\"question\":{\"stem\":\"q\",\"choices\":[\"x\"]},\"answerKey\":\"A\"}",
                   "a label for each choice");
    expect_refused("{\"goal\":\"g\",\"sol1\":\"x\",\"label\":0}", "there is no \"sol2\"");
    expect_refused("{\"goal\":\"g\",\"sol1\":\"x\",\"sol2\":\"y\",\"label\":2}", "from 0 to 1");
    expect_refused(WINO("no blank", "1"), "\"sentence\" has no \"_\"");
    expect_refused(WINO("a _ ", "1"), "nothing follows");
    expect_refused(WINO("a _ b", "0"), "from 1 to 2");
    expect_refused(WINO("a _ b", "\"\""), "from 1 to 2");
    expect_refused(MMLU("[\"a\",\"b\",\"c\"]", "0"), "\"choices\" is not an array of four strings");
    expect_refused(MMLU("[\"a\",\"b\",\"c\",1]", "0"), "an array of strings");
    expect_refused(MMLU("[\"a\",\"b\",\"c\",\"d\"]", "4"), "from 0 to 3");
    expect_refused("{\"question\":\"q\",\"choices\":[\"a\",\"b\"],\"answer\":0}",
                   "not those of a known row.*HellaSwag: .*ARC: .*PIQA: .*WinoGrande: .*MMLU: ");
}
