/* File of the fp8 amax history. Rows go to the slots of their steps, and only valid amaxes are
 * accepted. */
#include <criterion/criterion.h>

#include <math.h>
#include <stb/stb_ds.h>
#include <string.h>

#include "model/io/amax_history.h"
#include "test/scratch.h"

enum { COUNT = 12 };

static void write_rows(const float *rows, int64_t length) {
    struct stored_file *files = NULL;
    SUCCEEDS(amax_history_write(rows, length, COUNT, folder, &files, &error));
    cr_expect(arrlen(files) == 1 && strcmp(files->name, AMAX_HISTORY_NAME) == 0);
    arrfree(files);
}

TestSuite(amax_history, .init = make_folder, .fini = remove_folder);

/* Every row holds its step number: the last steps remain, whatever the lengths. */
Test(amax_history, rows_of_the_last_steps) {
    static const int64_t lengths[] = {1, 3, 4, 7};
    for (int a = 0; a < 4; a++)
        for (int64_t step = 0; step < 12; step++) {
            int64_t saved = lengths[a];
            float rows[7 * COUNT] = {0}, history[7 * COUNT];
            for (int64_t at = step - 1; at >= 0 && at >= step - saved; at--)
                for (int i = 0; i < COUNT; i++)
                    rows[at % saved * COUNT + i] = (float)(100 * at + i + 1);
            write_rows(rows, saved);
            for (int b = 0; b < 4; b++) {
                int64_t length = lengths[b], last = saved < length ? saved : length;
                SUCCEEDS(amax_history_read(history, length, COUNT, in_folder(AMAX_HISTORY_NAME),
                                           step, &error));
                float expected[7 * COUNT] = {0};
                for (int64_t at = step - 1; at >= 0 && at >= step - last; at--)
                    for (int i = 0; i < COUNT; i++)
                        expected[at % length * COUNT + i] = (float)(100 * at + i + 1);
                cr_expect_arr_eq(history, expected, (size_t)(length * COUNT) * sizeof *history,
                                 "%d of %d rows before step %d", (int)length, (int)saved,
                                 (int)step);
            }
        }
}

Test(amax_history, only_magnitudes) {
    static const float wrong[] = {-1, INFINITY, NAN};
    for (int i = 0; i < 3; i++) {
        float rows[2 * COUNT] = {0}, history[2 * (COUNT + 3)];
        rows[COUNT + 5] = wrong[i];
        write_rows(rows, 2);
        cr_expect_eq(amax_history_read(history, 2, COUNT, in_folder(AMAX_HISTORY_NAME), 2, &error),
                     -1);
        cr_expect(strstr(error.text, AMAX_HISTORY_NAME ": ") && strstr(error.text, "magnitude"),
                  "%s", error.text);
        cr_expect_eq(
            amax_history_read(history, 2, COUNT + 3, in_folder(AMAX_HISTORY_NAME), 2, &error), -1);
        cr_expect(strstr(error.text, "not the history"), "%s", error.text);
    }
}
