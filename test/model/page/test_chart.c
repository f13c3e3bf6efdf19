/* Charts by gnuplot: the drawing, untrusted text, and a missing gnuplot. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/page/chart.h"
#include "test/model/page/markup.h"

enum { POINTS = 5 };

static const double steps[POINTS] = {1, 2, 3, 4, 5};
static struct chart_series series[2];
static struct chart chart;

/* Chart of one or two series of values over steps 1, 2, ... */
static void set_chart(const double *first, const double *second) {
    const double *both[] = {first, second};
    chart = (struct chart){.title = "A <title>", .series = series};
    for (int i = 0; i < 2 && both[i]; i++)
        series[chart.series_count++] = (struct chart_series){
            .label = i ? "two" : "one", .x = steps, .y = both[i], .count = POINTS, .colour = i};
}

static void print(enum page_form form) {
    struct page page;
    FILE *out = printed_begin();
    page_begin(&page, form, "A page", "of charts");
    chart_print(&page, &chart);
    page_end(&page, out);
    printed_end(out);
    if (form != PAGE_HTML) return;
    cut_style();
    expect_well_formed(printed);
}

/* Returns how often a command, M (move) or L (line), occurs in the SVG paths of this colour. */
static int count_in_lines(const char *colour, char letter) {
    int count = 0;
    for (const char *at = printed; (at = strstr(at, colour)); at++) {
        const char *path = strstr(at, " d='");
        if (!path || path - at > 60) continue;
        for (path += 4; *path != '\''; path++) count += *path == letter;
    }
    return count;
}

static const char first_colour[] = "stroke='rgb(  0, 103, 163)'";

Test(chart, page_has_title_legend_and_curves) {
    static const double one[POINTS] = {1, 2, 3, 4, 5}, two[POINTS] = {5, 4, 3, 2, 1};
    if (chart_problem()) return;
    set_chart(one, two);
    print(PAGE_HTML);
    cr_expect_eq(occurrences(printed, "<figcaption>A &lt;title&gt;</figcaption>"), 1);
    cr_expect_eq(occurrences(printed, "<title>A &lt;title&gt;</title>"), 1);
    cr_expect_eq(occurrences(printed, "<text>one</text>"), 1);
    cr_expect_eq(occurrences(printed, "<text>two</text>"), 1);
    cr_expect_eq(count_in_lines(first_colour, 'L'), POINTS - 1 + 1, "and the legend");
}

Test(chart, missing_values_break_a_line) {
    static const double gap[POINTS] = {1, 2, NAN, 4, 5};
    if (chart_problem()) return;
    set_chart(gap, NULL);
    print(PAGE_HTML);
    cr_expect_eq(count_in_lines(first_colour, 'L'), 2 + 1);
}

Test(chart, nothing_finite) {
    static const double nothing[POINTS] = {NAN, NAN, INFINITY, NAN, NAN};
    if (chart_problem()) return;
    set_chart(nothing, NULL);
    print(PAGE_HTML);
    cr_expect_eq(occurrences(printed, "no finite value"), 1);
    cr_expect_eq(occurrences(printed, "<svg"), 0);
}

Test(chart, every_kind_of_axis_and_style) {
    static const double values[POINTS] = {1024, 2048, 0.5, 0, 4}, same[POINTS] = {3, 3, 3, 3, 3};
    if (chart_problem()) return;
    for (int kind = 0; kind < 16; kind++) {
        set_chart(kind & 4 ? same : values, NULL);
        chart.power_of_two_y = kind % 4 == 1;
        chart.log_y = kind % 4 == 2;
        chart.zero_y = kind % 4 == 3;
        chart.steps = kind & 8;
        chart.shaded_to = 2;
        chart.shaded = "it's";
        print(PAGE_HTML);
        cr_expect_eq(occurrences(printed, "<svg"), 1, "%d", kind);
        cr_expect_eq(occurrences(printed, "it’s"), 1);
    }
}

Test(chart, spikes_of_many_points_stay) {
    enum { MANY = 100000 };
    double *x = malloc(MANY * sizeof *x), *y = malloc(MANY * sizeof *y);
    cr_assert(x && y);
    if (chart_problem()) return;
    for (int i = 0; i < MANY; i++) x[i] = i, y[i] = i == 50021 ? 1000 : i % 2;
    set_chart(steps, NULL);
    series[0] = (struct chart_series){.label = "many", .x = x, .y = y, .count = MANY};
    print(PAGE_HTML);
    cr_expect_lt(printed_size, 50000u);
    cr_expect_not_null(strstr(printed, "1000<"), "the axis reaches the spike");
    free(x);
    free(y);
}

/* Labels that are commands of gnuplot or of a shell are not executed. */
Test(chart, text_from_outside_is_text) {
    static const char *const labels[] = {"it's", "'; system 'touch /tmp/chart-was-here'; plot '",
                                         "`touch /tmp/chart-was-here`", "a\nexit",
                                         "%s \\n {^a} <b&"};
    static const char *const expected[] = {"it’s", "’; system ’touch /tmp/chart-was-here’; plot ’",
                                           "`touch /tmp/chart-was-here`", "a?exit",
                                           "%s \\n {^a} <b&"};
    if (chart_problem()) return;
    for (size_t i = 0; i < sizeof labels / sizeof *labels; i++) {
        set_chart(steps, steps);
        series[0].label = chart.x_label = labels[i];
        print(PAGE_HTML);
        print(PAGE_TEXT);
        cr_expect_not_null(strstr(printed, expected[i]), "%s", printed);
        cr_expect_neq(access("/tmp/chart-was-here", F_OK), 0);
    }
}

Test(chart, as_text) {
    if (chart_problem()) return;
    set_chart(steps, NULL);
    print(PAGE_TEXT);
    cr_expect_not_null(strstr(printed, "A <title>\n"));
    cr_expect_leq(occurrences(printed, "\n"), 1 + 2 + 16);
    for (const char *line = printed; *line; line = strchr(line, '\n') + 1)
        cr_expect_leq(strcspn(line, "\n"), 80u);
}

Test(chart, without_gnuplot_a_sentence) {
    setenv("PATH", "/nowhere", 1);
    cr_expect_not_null(strstr(chart_problem(), "because gnuplot is not installed"));
    set_chart(steps, NULL);
    print(PAGE_TEXT);
    cr_expect_str_eq(printed, "A page: of charts\n");
}
