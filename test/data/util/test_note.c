/* Notes: lines of 80 columns, and names of programs as they are installed. */
#include <criterion/criterion.h>

#include <errno.h>
#include <stdlib.h>

#include "data/util/note.h"
#include "data/util/program_names.h"
#include "data/util/random.h"
#include "test/notes.h"

TestSuite(note);

/* Expects what note() prints, with its breaks. */
#define EXPECT_NOTE(expected, ...)                          \
    do {                                                    \
        char *printed = NULL;                               \
        size_t size;                                        \
        FILE *out = open_memstream(&printed, &size);        \
        note(out, __VA_ARGS__);                             \
        fclose(out);                                        \
        cr_expect_str_eq(printed, expected, "%s", printed); \
        free(printed);                                      \
    } while (0)

static void expect_note(const char *prefix, const char *text, const char *expected) {
    EXPECT_NOTE(expected, prefix, "%s", text);
}

/* Lines of exactly 80 columns, and one more; a word longer than a line stays whole. */
Test(note, long_lines_are_broken_between_words) {
    const char *digits = "1234567890123456789012345678901234567890123456789012345678901234567890";
    char text[400], expected[400];
    snprintf(text, sizeof text, "abc %s ef", digits);
    snprintf(expected, sizeof expected, "note: abc %s\n    ef\n", digits);
    expect_note("note", text, expected);
    snprintf(text, sizeof text, "abcd %s ef", digits);
    snprintf(expected, sizeof expected, "note: abcd\n    %s ef\n", digits);
    expect_note("note", text, expected);
    snprintf(text, sizeof text, "abc de %s", digits);
    snprintf(expected, sizeof expected, "train: abc de\n    %s\n", digits);
    expect_note("train", text, expected);
    snprintf(text, sizeof text, "%s%s a", digits, digits);
    snprintf(expected, sizeof expected, "note: %s%s\n    a\n", digits, digits);
    expect_note("note", text, expected);
    expect_note("note", "", "note: \n");
}

/* A command moves to a line of its own if it does not fit, and is longer than a line if need be. */
Test(note, commands_are_not_broken) {
    const char *long_path = "/tmp/1234567890/1234567890/1234567890/1234567890/1234567890";
    char text[400], expected[400];
    snprintf(text, sizeof text, "no model\nmake it: ./train --export DIR --merge --from %s\nor not",
             long_path);
    snprintf(expected, sizeof expected,
             "train: no model\n  make it:\n    ./train --export DIR --merge --from %s\n  or not\n",
             long_path);
    expect_note("train", text, expected);
    snprintf(text, sizeof text, "fetch it: scripts/get_model.sh a/b %s, which puts it there",
             long_path);
    snprintf(expected, sizeof expected,
             "note: fetch it:\n    scripts/get_model.sh a/b %s,\n    which puts it there\n",
             long_path);
    expect_note("note", text, expected);
    snprintf(text, sizeof text, "convert %s: python3 scripts/questions.py FILE; (./train --help x)",
             long_path);
    snprintf(expected, sizeof expected,
             "note: convert %s:\n    python3 scripts/questions.py FILE; (./train --help x)\n",
             long_path);
    expect_note("note", text, expected);
    snprintf(text, sizeof text, "%s and ./compare. The words after a name at the end of a sentence",
             long_path);
    snprintf(expected, sizeof expected,
             "note: %s and ./compare.\n    The words after a name at the end of a sentence\n",
             long_path);
    expect_note("note", text, expected);
    snprintf(text, sizeof text, "%s ./compare: 1 2 3 4 5 6 7 8 9", long_path);
    snprintf(expected, sizeof expected, "note: %s ./compare: 1 2\n    3 4 5 6 7 8 9\n", long_path);
    expect_note("note", text, expected);
}

Test(note, line_breaks_are_kept) {
    expect_note("train", "there is no x\nmake it\n\n  --set a=b \\\n  --set c=d",
                "train: there is no x\n  make it\n\n    --set a=b \\\n    --set c=d\n");
}

/* Bytes of a character are one column, and control characters are shown as '?'. */
Test(note, columns_are_characters) {
    char text[200] = "", expected[200];
    for (int i = 0; i < 74; i++) strcat(text, "\xc3\xbc");
    snprintf(expected, sizeof expected, "note: %s\n    a\n", text);
    strcat(text, " a");
    expect_note("note", text, expected);
    expect_note("note", "a\x1b[2Jb\xff", "note: a?[2Jb?\n");
}

/* For random texts: no line is longer than 80 columns, none could take the next word, and without
 * breaks and indents it is the text again. */
Test(note, random_texts) {
    for (uint64_t seed = 0; seed < 300; seed++) {
        struct notes notes;
        char text[2000] = "x", expected[2100], *lines;
        for (uint64_t word = 0; strlen(text) < 1500; word++) {
            const uint64_t random = random_bits(1, seed, word);
            strcat(text, random % 23 == 0 ? "\n" : " ");
            for (uint64_t i = 0; i <= random / 23 % 30; i++) strcat(text, "y");
        }
        FILE *out = notes_open(&notes);
        note(out, "warning", "%s", text);
        fflush(out);
        lines = strdup(notes.text);
        notes_close(&notes);
        snprintf(expected, sizeof expected, "warning: %s\n", text);
        cr_expect_str_eq(notes.text, expected);
        for (char *at = lines, *end; (end = strchr(at, '\n')); at = end + 1) {
            const size_t length = (size_t)(end - at);
            cr_expect_leq(length, 80u, "%s", at);
            if (strncmp(end, "\n    ", 5) != 0) continue;
            cr_expect_gt(length + 1 + strcspn(end + 5, " \n"), 80u, "it fits: %s", at);
        }
        free(lines);
    }
}

static ssize_t count_write(void *writes, const char *bytes, size_t size) {
    (void)bytes;
    ++*(int *)writes;
    return (ssize_t)size;
}

/* So that messages of several processes do not mix. */
Test(note, a_message_is_one_write) {
    int writes = 0;
    char text[3000];
    FILE *out = fopencookie(&writes, "w", (cookie_io_functions_t){.write = count_write});
    setvbuf(out, NULL, _IONBF, 0);
    note(out, "train", "there is no %s\nmake it", "x");
    cr_expect_eq(writes, 1);
    for (size_t i = 0; i < sizeof text; i++) text[i] = i % 7 ? 'x' : ' ';
    note(out, "train", "%.*s", (int)sizeof text, text);
    cr_expect_eq(writes, 2);
    fclose(out);
    cr_expect_eq(writes, 2);
}

Test(note, errors_are_cleared_and_no_stream_discards) {
    struct notes notes;
    struct error error = {"a"};
    note(NULL, "note", "%s", "lost");
    note_error(notes_open(&notes), "warning", &error);
    cr_expect_eq(notes_close(&notes), 1);
    cr_expect_str_eq(notes.text, "warning: a\n");
    cr_expect_str_eq(error.text, "");
    cr_expect_eq(fail_memory(&error, "%d tokens", 7), -1);
    cr_expect_str_eq(error.text, "out of memory for 7 tokens\nfree memory and try again");
}

/* ---- names */

static void expect_help(const char *program, const char *text, const char *expected) {
    char *printed = NULL, name[40];
    size_t size;
    snprintf(name, sizeof name, "%s", program);
    program_invocation_short_name = name;
    FILE *out = open_memstream(&printed, &size);
    help_print(out, text);
    fclose(out);
    cr_expect_str_eq(printed, expected, "%s: %s", program, printed);
    free(printed);
}

Test(note, names_as_they_are_built) {
    const char *text = "./train --from ./x, ./prepare, ./compare and scripts/rows.py\n";
    expect_help("train", text, text);
    expect_help("", text, text);
}

Test(note, names_as_they_are_installed) {
    char folder[PATH_MAX], expected[PATH_MAX + 60];
    expect_help("mantissa-train", "./train --from ./x, ./prepare and ./compare\n",
                "mantissa-train --from ./x, mantissa-prepare and mantissa-compare\n");
    expect_help("mantissa-compare", "", "");
    expect_help("mantissa-train", "for ./train: see (./compare).",
                "for mantissa-train: see (mantissa-compare).");
    cr_assert_eq(program_folder(folder), 0);
    snprintf(expected, sizeof expected, "use %sscripts/rows.py FILE | mantissa-prepare -", folder);
    expect_help("mantissa-train", "use scripts/rows.py FILE | ./prepare -", expected);
}

/* The names count as what is printed: 80 columns, which ./train would not fill. */
/* The names count as what is printed: 80 columns, which ./train would not fill. Commands under them
 * stay whole. */
Test(note, lines_have_room_for_installed_names) {
    program_invocation_short_name = "mantissa-train";
    EXPECT_NOTE("note: 123456789 123456789 123456789 123456789 123456789 12345678 "
                "mantissa-train,\n    mantissa-train\n",
                "note",
                "123456789 123456789 123456789 123456789 123456789 12345678 ./train, ./train");
    EXPECT_NOTE("note: 123456789 123456789 123456789 123456789 123456789 123456789 1\n"
                "    mantissa-train\n",
                "note", "123456789 123456789 123456789 123456789 123456789 123456789 1 ./train");
    EXPECT_NOTE("note: 123456789 123456789 123456789 123456789 123456789\n"
                "    mantissa-train --help all\n",
                "note", "123456789 123456789 123456789 123456789 123456789 ./train --help all");
    const char *path = "/tmp/123456789/123456789/123456789/123456789/123456789";
    char folder[PATH_MAX], expected[PATH_MAX + 100];
    cr_assert_eq(program_folder(folder), 0);
    snprintf(expected, sizeof expected, "note: fetch it:\n    %sscripts/get_model.sh a b %s\n",
             folder, path);
    EXPECT_NOTE(expected, "note", "fetch it: scripts/get_model.sh a b %s", path);
}

Test(note, other_paths_are_unchanged) {
    static const char *const texts[] = {"../train_x.bin", "./training.json", "./train.json: none",
                                        "a/./train",      "x./train ",       "./train/x",
                                        "my/scripts/a.py"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        expect_help("mantissa-train", texts[i], texts[i]);
    program_invocation_short_name = "mantissa-train";
    const char *user = "scripts/nothing ./train (./compare)";
    char expected[200], named[PROGRAM_TEXT_MAX];
    struct error error;
    snprintf(expected, sizeof expected, "note: there is no %s; mantissa-train\n", user);
    EXPECT_NOTE(expected, "note", "there is no %s; ./train", user);
    fail(&error, "there is no %s; ./train", user);
    snprintf(expected, sizeof expected, "there is no %s; mantissa-train", user);
    cr_expect_str_eq(error.text, expected);
    snprintf(expected, sizeof expected, "train: there is no %s; mantissa-train\n", user);
    EXPECT_NOTE(expected, "train", "%s", error.text);
    cr_expect_str_eq(program_format(named, "100 %% of ./train"), "100 %% of mantissa-train");
    cr_expect_str_eq(program_text(named, "100 % of ./train"), "100 % of mantissa-train");
}
