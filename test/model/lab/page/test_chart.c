/* Charts: well-formed SVG whose shapes stand where the numbers say. The plot is PLOT_HEIGHT high
 * and ends at RIGHT, which the tests read off the grid. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "model/lab/page/chart_print.h"
#include "test/model/lab/page/markup.h"

static struct chart_series series[CHART_SERIES_MAX];
static struct chart chart;

static void set_up(void) {
    memset(series, 0, sizeof series);
    chart = (struct chart){.title = "title", .series = series};
}

static void tear_down(void) {
    free(printed);
}

TestSuite(chart, .init = set_up, .fini = tear_down);

static void add(const char *label, const double *x, const double *y, int count,
                enum chart_style style) {
    series[chart.series_count] =
        (struct chart_series){label, x, y, count, style, chart.series_count};
    chart.series_count++;
}

static const char *print(void) {
    FILE *out = printed_begin();
    chart_print(out, &chart);
    printed_end(out);
    expect_well_formed(printed);
    cr_expect_eq(occurrences(printed, "nan"), 0);
    cr_expect_eq(occurrences(printed, "inf"), 0);
    return printed;
}

static int count_of(const char *part) {
    return occurrences(printed, part);
}

/* The plot, from the first grid line (the bottom) and the last (the top). */
static struct plot { double left, right, top, bottom; } plot(void) {
    struct plot plot = {0};
    static const char grid[] = "class=\"grid\" d=\"M";
    const char *at = strstr(printed, grid);
    cr_assert_not_null(at);
    cr_assert_eq(sscanf(at + strlen(grid), "%lf %lfH%lf", &plot.left, &plot.bottom, &plot.right),
                 3);
    for (; at; at = strstr(at + 1, grid))
        cr_assert_eq(sscanf(at + strlen(grid), "%*f %lfH", &plot.top), 1);
    return plot;
}

/* The path of the nth line. */
static const char *line(int nth) {
    static char path[100000];
    const char *at = strstr(printed, "<svg class=\"chart\""); /* behind the legend */
    for (int i = 0; i <= nth; i++) {
        at = strstr(at, "<path class=\"line");
        cr_assert_not_null(at);
        at = strstr(at, " d=\"") + 4;
    }
    cr_assert_lt(strcspn(at, "\""), sizeof path);
    snprintf(path, sizeof path, "%.*s", (int)strcspn(at, "\""), at);
    return path;
}

/* The smallest and largest y of a path (downwards), and how many points it has. */
static int extent(const char *path, double *highest, double *lowest) {
    int count = 0;
    *highest = INFINITY;
    *lowest = -INFINITY;
    for (; (path = strpbrk(path, "ML")); path++, count++) {
        double y;
        cr_assert_eq(sscanf(path + 1, "%*f %lf", &y), 1);
        *highest = fmin(*highest, y);
        *lowest = fmax(*lowest, y);
    }
    return count;
}

Test(chart, a_line_goes_where_its_numbers_say) {
    double x[] = {0, 5, 10}, y[] = {0, 10, 5}, x0, y0, x1, y1, x2, y2;
    add("one", x, y, 3, CHART_LINE);
    print();
    struct plot p = plot();
    cr_assert_eq(sscanf(line(0), "M%lf %lfL%lf %lfL%lf %lf", &x0, &y0, &x1, &y1, &x2, &y2), 6);
    cr_expect_float_eq(x0, p.left, 0.06);
    cr_expect_float_eq(y0, p.bottom, 0.06);
    cr_expect_float_eq(x1, (p.left + p.right) / 2, 0.06);
    cr_expect_float_eq(y1, p.top, 0.06);
    cr_expect_float_eq(x2, p.right, 0.06);
    cr_expect_float_eq(y2, (p.top + p.bottom) / 2, 0.06);
    cr_expect_eq(count_of("<path class=\"line\""), 2, "the line, and its picture in the legend");
    cr_expect_eq(count_of(">10</text>"), 2);
}

Test(chart, words) {
    double x[] = {1, 2}, y[] = {3, 4};
    add("a <b> & \"c\"", x, y, 2, CHART_LINE);
    chart.title = "<title> & more";
    chart.x_label = "steps < 5";
    chart.y_label = "loss & co";
    print();
    cr_expect_eq(count_of("<figcaption>&lt;title&gt; &amp; more</figcaption>"), 1);
    cr_expect_eq(count_of("<title>&lt;title&gt; &amp; more</title>"), 1);
    cr_expect_eq(count_of("role=\"img\""), 1);
    cr_expect_eq(count_of(">steps &lt; 5</text>"), 1);
    cr_expect_eq(count_of(">loss &amp; co</text>"), 1);
    cr_expect_eq(count_of("<span>a &lt;b&gt; &amp; &quot;c&quot;</span>"), 1);
    cr_expect_eq(count_of("<li>"), 1);
}

Test(chart, bars_have_no_legend) {
    double x[] = {1, 2}, y[] = {3, 4};
    add(NULL, x, y, 2, CHART_BARS);
    print();
    cr_expect_eq(count_of("legend"), 0);
}

Test(chart, what_is_not_finite_breaks_the_line) {
    double x[] = {1, 2, 3, 4, 5, 6, 7}, y[] = {1, 2, NAN, 3, INFINITY, 4, 5};
    add("one", x, y, 7, CHART_LINE);
    print();
    cr_expect_eq(occurrences(line(0), "M"), 3);
    cr_expect_eq(occurrences(line(0), "L"), 2);
    cr_expect_eq(count_of("class=\"dot\""), 1, "the point between two breaks");
}

Test(chart, what_is_not_positive_breaks_a_logarithmic_line) {
    double x[] = {1, 2, 3, 4, 5}, y[] = {1, 10, 0, 100, 1000};
    add("one", x, y, 5, CHART_LINE);
    chart.log_y = true;
    print();
    cr_expect_eq(occurrences(line(0), "M"), 2);
    cr_expect_eq(occurrences(line(0), "L"), 2);
    struct plot p = plot();
    double first, second;
    cr_assert_eq(sscanf(line(0), "M%*f %lfL%*f %lf", &first, &second), 2);
    cr_expect_float_eq(first, p.bottom, 0.06);
    cr_expect_float_eq(second, p.bottom + (p.top - p.bottom) / 3, 0.06);
}

Test(chart, powers_of_two) {
    double x[] = {1, 2, 3}, y[] = {65536, 32768, 65536};
    add("scale", x, y, 3, CHART_STEPS);
    chart.power_of_two_y = true;
    print();
    cr_expect_eq(count_of(">2<tspan dy=\"-.4em\" font-size=\".78em\">16</tspan>"), 1);
    cr_expect_eq(count_of(">2<tspan dy=\"-.4em\" font-size=\".78em\">15</tspan>"), 1);
    cr_expect_eq(occurrences(line(0), "L"), 0);
    cr_expect_eq(occurrences(line(0), "H"), 2);
    cr_expect_eq(occurrences(line(0), "V"), 2);
}

Test(chart, the_axis_includes_zero_if_asked) {
    double x[] = {1, 2}, y[] = {100, 101};
    add("one", x, y, 2, CHART_LINE);
    print();
    cr_expect_eq(count_of("\">0</text>"), 0);
    chart.zero_y = true;
    print();
    cr_expect_eq(count_of("\">0</text>"), 1);
}

Test(chart, thinned_out_without_losing_a_spike) {
    enum { COUNT = 100000 };
    static double x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = i;
        y[i] = 5 + 0.1 * sin(i);
    }
    y[31234] = 10;
    y[76543] = 0;
    add("one", x, y, COUNT, CHART_LINE);
    print();
    struct plot p = plot();
    double highest, lowest;
    int count = extent(line(0), &highest, &lowest);
    cr_expect(count > 300 && count < 1000, "%d points", count);
    cr_expect_float_eq(highest, p.top, 0.06);
    cr_expect_float_eq(lowest, p.bottom, 0.06);
    cr_expect_lt(strlen(printed), 40000u);
}

Test(chart, thinned_out_lines_go_from_left_to_right) {
    enum { COUNT = 5000 };
    static double x[COUNT], y[COUNT];
    for (int i = 0; i < COUNT; i++) {
        x[i] = i;
        y[i] = i % 7 == 3 ? NAN : cos(i * 0.37);
    }
    add("one", x, y, COUNT, CHART_LINE);
    print();
    double before = -1, at;
    for (const char *path = line(0); (path = strpbrk(path, "ML")); path++) {
        cr_assert_eq(sscanf(path + 1, "%lf", &at), 1);
        cr_assert_geq(at, before);
        before = at;
    }
    cr_expect_gt(occurrences(line(0), "M"), 300, "as many breaks as the picture can show");
    cr_expect_lt(occurrences(line(0), "M"), 500);
}

Test(chart, no_ticks_between_whole_x) {
    double whole[] = {1, 2, 3}, parts[] = {1, 2.5, 3}, y[] = {1, 2, 3};
    add("one", whole, y, 3, CHART_LINE);
    chart.x_label = "x";
    print();
    cr_expect_eq(count_of("\"middle\">"), 3 + 1);
    series[0].x = parts;
    print();
    cr_expect_eq(count_of("\"middle\">"), 5 + 1);
}

Test(chart, few_points_are_all_drawn) {
    static double x[400], y[400];
    for (int i = 0; i < 400; i++) x[i] = i, y[i] = i % 3;
    add("one", x, y, 400, CHART_LINE);
    double highest, lowest;
    print();
    cr_expect_eq(extent(line(0), &highest, &lowest), 400);
}

Test(chart, a_single_point_is_seen) {
    double x = 5, y = 3;
    for (enum chart_style style = CHART_LINE; style <= CHART_STEPS; style++) {
        chart.series_count = 0;
        add("one", &x, &y, 1, style);
        print();
        struct plot p = plot();
        double px, py;
        const char *dot = strrchr(printed, '(');
        cr_assert_not_null(dot);
        cr_assert_eq(sscanf(dot, "(%lf %lf)", &px, &py), 2);
        cr_expect_float_eq(px, (p.left + p.right) / 2, 1);
        cr_expect_float_eq(py, (p.top + p.bottom) / 2, 30);
    }
}

Test(chart, odd_values) {
    double x[] = {-1e30, 0, 1e30}, y[] = {1e30, -1e30, 1e-30}, flat[] = {7, 7, 7};
    add("one", x, y, 3, CHART_LINE);
    print();
    add("two", x, flat, 3, CHART_LINE);
    print();
    double far[] = {-1.7e308, 1.7e308, 0};
    series[0].x = series[1].x = (double[]){-1.7e308, 0, 1.7e308};
    series[0].y = far;
    print();
    chart.log_y = true;
    print();
}

Test(chart, nothing_to_draw) {
    double x[] = {1, 2}, y[] = {NAN, INFINITY}, negative[] = {-1, 0};
    print();
    cr_expect_eq(count_of("Nothing to draw"), 1);
    cr_expect_eq(count_of("<svg"), 0);
    add("one", x, y, 2, CHART_LINE);
    add("two", x, y, 0, CHART_LINE);
    print();
    cr_expect_eq(count_of("Nothing to draw"), 1);
    series[0].y = negative;
    chart.log_y = true;
    print();
    cr_expect_eq(count_of("Nothing to draw"), 1);
    chart.log_y = false;
    print();
    cr_expect_eq(count_of("Nothing to draw"), 0);
}

Test(chart, eight_series_differ_in_colour_and_marker) {
    static double x[60], y[8][60];
    char label[8][20], colour[40];
    for (int k = 0; k < 8; k++) {
        for (int i = 0; i < 60; i++) x[i] = i, y[k][i] = 5; /* one on the other */
        snprintf(label[k], sizeof label[k], "run %d", k);
        add(label[k], x, y[k], 60, CHART_LINE);
    }
    print();
    cr_expect_eq(count_of("<li>"), 8);
    for (int k = 0; k < 8; k++) {
        snprintf(colour, sizeof colour, "class=\"s%d\"", k);
        cr_expect_eq(count_of(colour), 3, "line, markers and legend of %d", k);
    }
    /* No marker hides another. */
    for (const char *at = printed; (at = strstr(at, "translate(")); at++) {
        char place[40];
        snprintf(place, sizeof place, "%.*s", (int)strcspn(at, ")"), at);
        if (strcmp(place, "translate(14.0 6.0") != 0) cr_expect_eq(count_of(place), 1, "%s", place);
    }
    cr_expect_geq(count_of("class=\"dot\""), 8 * 5);
}

Test(chart, one_line_has_no_markers) {
    double x[] = {1, 2, 3}, y[] = {1, 2, 3};
    add("one", x, y, 3, CHART_LINE);
    print();
    cr_expect_eq(count_of("class=\"dot\""), 0);
}

/* ---- bars */

struct bar {
    double x, y, width, height;
};

static struct bar bar(int nth) {
    struct bar bar;
    const char *at = strstr(printed, "<svg class=\"chart\"");
    for (int i = 0; i <= nth; i++) {
        at = strstr(at + 1, "<rect class=\"bar");
        cr_assert_not_null(at);
    }
    cr_assert_eq(sscanf(strstr(at, " x=\""), " x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"",
                        &bar.x, &bar.y, &bar.width, &bar.height),
                 4);
    return bar;
}

Test(chart, bars_stand_on_the_axis) {
    double x[] = {-2, 0, 1}, y[] = {4, 10, NAN};
    add(NULL, x, y, 3, CHART_BARS);
    print();
    struct plot p = plot();
    double unit = (p.right - p.left) / 4; /* from -2.5 to 1.5 */
    cr_expect_eq(count_of("<rect class=\"bar"), 2);
    for (int i = 0; i < 2; i++) {
        struct bar one = bar(i);
        cr_expect_float_eq(one.y + one.height, p.bottom, 0.03);
        cr_expect_float_eq(one.width, 0.9 * unit, 0.02);
    }
    cr_expect_float_eq(bar(0).height, 0.4 * (p.bottom - p.top), 0.1);
    cr_expect_float_eq(bar(1).y, p.top, 0.1);
    cr_expect_float_eq(bar(0).x, p.left + 0.05 * unit, 0.1);
    cr_expect_float_eq(bar(1).x - bar(0).x, 2 * unit, 0.1);
}

Test(chart, a_histogram_of_exponents) {
    double x[57], y[57];
    for (int i = 0; i < 57; i++) x[i] = i - 40, y[i] = 1;
    add(NULL, x, y, 57, CHART_BARS);
    print();
    cr_expect_eq(count_of("<rect class=\"bar"), 57);
    cr_expect_eq(count_of("\">\u221240</text>"), 1);
    cr_expect_eq(count_of("\">10</text>"), 1);
}

/* ---- marks */

Test(chart, marks) {
    double x[] = {0, 100}, y[] = {0, 1}, from, width;
    struct chart_mark marks[] = {
        {20, 40, "a <band>"}, {80, 300, "to the end"}, {200, 300, "beyond"}};
    add("one", x, y, 2, CHART_LINE);
    chart.marks = marks;
    chart.mark_count = 3;
    print();
    struct plot p = plot();
    double unit = (p.right - p.left) / 100;
    const char *band = strstr(printed, "<rect class=\"band\"");
    cr_assert_eq(
        sscanf(band, "<rect class=\"band\" x=\"%lf\" y=\"%*f\" width=\"%lf\"", &from, &width), 2);
    cr_expect_float_eq(from, p.left + 20 * unit, 0.1);
    cr_expect_float_eq(width, 20 * unit, 0.1);
    band = strstr(band + 1, "<rect class=\"band\"");
    cr_assert_eq(
        sscanf(band, "<rect class=\"band\" x=\"%lf\" y=\"%*f\" width=\"%lf\"", &from, &width), 2);
    cr_expect_float_eq(from + width, p.right, 0.1, "cut off at the end of the axis");
    cr_expect_eq(count_of("\"band\""), 2);
    cr_expect_eq(count_of(">a &lt;band&gt;</text>"), 1);
    cr_expect_eq(count_of("beyond"), 0);
}

/* Labels are within the picture, above the plot, and none on another. */
Test(chart, labels_of_marks_do_not_overlap) {
    enum { MARKS = 12 };
    double x[] = {0, 100}, y[] = {0, 1};
    struct chart_mark marks[MARKS];
    for (int i = 0; i < MARKS; i++)
        marks[i] = (struct chart_mark){i * i * 0.8, i * i * 0.8 + 1, "a label of some width"};
    add("one", x, y, 2, CHART_LINE);
    chart.y_label = "y";
    chart.marks = marks;
    chart.mark_count = MARKS;
    print();
    double width = 8 * 21, at[MARKS], row[MARKS];
    const char *text = printed;
    for (int i = 0; i < MARKS; i++) {
        text = strstr(text, ">a label of") + 1;
        const char *start = text;
        while (*start != '<') start--;
        cr_assert_eq(sscanf(start, "<text x=\"%lf\" y=\"%lf\"", &at[i], &row[i]), 2);
        cr_expect(at[i] >= width / 2 && at[i] <= 480 - width / 2);
        cr_expect(row[i] > 20 && row[i] < plot().top);
        for (int j = 0; j < i; j++)
            cr_expect(row[i] != row[j] || fabs(at[i] - at[j]) >= width, "%d and %d", i, j);
    }
}
