#include "model/page/chart_print.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/util/printed.h"
#include "model/page/gnuplot.h"
#include "model/page/page.h"

/* Size of the picture and height of a line of text, in pixels. */
enum { WIDTH = 480, HEIGHT = 280, LINE = 18 };

/* Colours of Okabe and Ito (2008), distinguishable with any colour vision, darkened for a white
 * background. The markers serve readers and printers without colours. */
static const struct series_style {
    const char *colour, *marker;
    int point; /* gnuplot's number of the marker */
} series_styles[CHART_SERIES_MAX] = {
    {"#0067a3", "●", 7},  {"#c95000", "■", 5},  {"#008a63", "▲", 9}, {"#b0558d", "◆", 13},
    {"#a87400", "▼", 11}, {"#2f9bd6", "⬟", 15}, {"#5f666d", "○", 6}, {"#7c7a00", "□", 4},
};

/* ---- gnuplot commands */

/* Writes a single-quoted gnuplot string, which has no escapes except a doubled quote. */
static void print_quoted(FILE *out, const char *text) {
    putc('\'', out);
    for (; *text; text++) {
        if (*text == '\'') putc('\'', out);
        putc(iscntrl((unsigned char)*text) ? '?' : *text, out);
    }
    putc('\'', out);
}

static void print_setting(FILE *out, const char *name, const char *text) {
    fprintf(out, "%s ", name);
    print_quoted(out, text ? text : "");
    putc('\n', out);
}

struct range {
    double from, to; /* from > to: no value */
};

static bool is_shown(const struct chart *chart, double y) {
    return fabs(y) < 1e300 && (y > 0 || !(chart->log_y || chart->power_of_two_y));
}

/* Sets the range of the shown values on each axis. */
static void find_ranges(struct range *x, struct range *y, const struct chart *chart) {
    *x = *y = (struct range){INFINITY, -INFINITY};
    assert(chart->series_count <= CHART_SERIES_MAX);
    for (int i = 0; i < chart->series_count; i++) {
        const struct chart_series *series = &chart->series[i];
        double beside = series->style == CHART_BARS ? 0.5 : 0;
        assert(series->colour >= 0 && series->colour < CHART_SERIES_MAX);
        for (int j = 0; j < series->count; j++) {
            x->from = fmin(x->from, series->x[j] - beside);
            x->to = fmax(x->to, series->x[j] + beside);
            if (!is_shown(chart, series->y[j])) continue;
            y->from = fmin(y->from, series->y[j]);
            y->to = fmax(y->to, series->y[j]);
        }
    }
    if (x->from == x->to) *x = (struct range){x->from - 1, x->to + 1};
}

static void print_point(FILE *out, const struct chart *chart, double x, double y) {
    if (is_shown(chart, y)) fprintf(out, "%.10g %.10g\n", x, y);
    else fprintf(out, "%.10g NaN\n", x);
}

/* True if the line is broken before and after point i. */
static bool is_alone(const struct chart *chart, const struct chart_series *series, int i) {
    return (i == 0 || !is_shown(chart, series->y[i - 1])) &&
           (i == series->count - 1 || !is_shown(chart, series->y[i + 1]));
}

/* Prints, of each group of `together` points, the smallest, the largest, and one that breaks the
 * line. An isolated point becomes a line of length `dot`. */
static void print_points(FILE *out, const struct chart *chart, const struct chart_series *series,
                         int together, double dot) {
    for (int from = 0; from < series->count; from += together) {
        int low = -1, high = -1, broken = -1;
        for (int i = from; i < from + together && i < series->count; i++) {
            double y = series->y[i];
            if (!is_shown(chart, y)) broken = i;
            else if (low < 0) low = high = i;
            else if (y < series->y[low]) low = i;
            else if (y > series->y[high]) high = i;
        }
        int first = low < high ? low : high, second = low < high ? high : low;
        if (first >= 0) print_point(out, chart, series->x[first], series->y[first]);
        if (second > first) print_point(out, chart, series->x[second], series->y[second]);
        else if (first >= 0 && is_alone(chart, series, first))
            print_point(out, chart, series->x[first] + dot, series->y[first]);
        if (broken >= 0) print_point(out, chart, series->x[broken], NAN);
    }
}

static void print_axes(FILE *out, const struct chart *chart, const struct range *x,
                       const struct range *y) {
    fprintf(out, "set xrange [%.10g:%.10g]\n", x->from, x->to);
    if (x->to - x->from < 8) fprintf(out, "set xtics 1\n");
    if (chart->power_of_two_y)
        fprintf(out, "set logscale y 2\nset format y '2^%%L'\nset yrange [%.10g:%.10g]\n",
                exp2(floor(log2(y->from) - 0.01)), exp2(ceil(log2(y->to) + 0.01)));
    else if (chart->log_y && y->to > 10 * y->from) fprintf(out, "set logscale y\n");
    else if (chart->zero_y) fprintf(out, "set yrange [*<0:0<*]\n");
}

/* Each label is on a separate line above the plot, so that it covers no other label or curve. */
static void print_marks(FILE *out, const struct chart *chart, const struct range *x, double line) {
    double third = (x->to - x->from) / 3, height = 1 + line / 2;
    for (int i = 0; i < chart->mark_count; i++) {
        const struct chart_mark *mark = &chart->marks[i];
        double from = fmax(mark->from, x->from), to = fmin(mark->to, x->to), at = (from + to) / 2;
        const char *align = "center";
        if (from > to) continue;
        if (at < x->from + third) at = from, align = "left";
        else if (at > x->to - third) at = to, align = "right";
        fprintf(out,
                "set object rectangle from %.10g, graph 0 to %.10g, graph %.3f behind "
                "fillcolor rgb '%s' fillstyle solid noborder\nset label ",
                from, to, height, i % 2 ? "#eceef0" : "#dfe2e5");
        print_quoted(out, mark->label);
        fprintf(out, " at %.10g, graph %.3f %s\n", at, height, align);
        height += line;
    }
}

static void print_curve(FILE *out, const struct chart *chart, int i, bool legend) {
    const struct chart_series *series = &chart->series[i];
    const struct series_style *style = &series_styles[series->colour];
    /* Markers of several lines are staggered, so that equal lines stay visible. */
    fprintf(out, "%s $points%d with ", i ? "," : "plot", i);
    if (series->style == CHART_BARS) fprintf(out, "boxes fillstyle solid");
    else if (series->style == CHART_STEPS) fprintf(out, "steps");
    else if (legend || chart->series_count == 1) fprintf(out, "lines");
    else
        fprintf(out, "linespoints pointtype %d pointsize 0.5 pointinterval %d", style->point,
                series->count * (5 + i) / 40 + 1);
    if (legend) {
        fprintf(out, " title ");
        print_quoted(out, series->label);
    } else fprintf(out, " linewidth 1.4 linecolor rgb '%s' notitle", style->colour);
}

/* Returns the output of gnuplot for a chart `columns` columns wide, to be freed; or NULL with a
 * sentence in *problem. */
static char *draw_chart(const struct chart *chart, const char *settings, int columns, bool legend,
                        const char **problem) {
    struct range x, y;
    struct printed script;
    char title[200];
    find_ranges(&x, &y, chart);
    *problem = "Nothing to draw: there is no finite value.";
    if (y.from > y.to) return NULL;
    if (printed_open(&script)) abort();
    FILE *out = script.out;
    fprintf(out, "set encoding utf8\n%s\n", settings);
    for (int i = 0; i < chart->series_count; i++) {
        fprintf(out, "$points%d << END\n", i);
        print_points(out, chart, &chart->series[i], chart->series[i].count / columns + 1,
                     (x.to - x.from) / 200);
        fprintf(out, "END\n");
    }
    print_axes(out, chart, &x, &y);
    print_setting(out, "set xlabel", chart->x_label);
    if (!legend) print_setting(out, "set ylabel", chart->y_label);
    if (!legend) print_marks(out, chart, &x, LINE / (double)HEIGHT * 1.3);
    if (legend) {
        snprintf(title, sizeof title, "%s%s%s", chart->title, chart->y_label ? ": " : "",
                 chart->y_label ? chart->y_label : "");
        print_setting(out, "set title", title);
    }
    for (int i = 0; i < chart->series_count; i++) print_curve(out, chart, i, legend);
    if (printed_close(&script)) abort();
    char *picture = gnuplot_draw(script.text);
    free(script.text);
    *problem = "gnuplot failed.";
    return picture;
}

/* ---- SVG */

static void print_legend(FILE *out, const struct chart *chart) {
    fprintf(out, "<ul class=\"legend\">\n");
    for (int i = 0; i < chart->series_count; i++) {
        const struct series_style *style = &series_styles[chart->series[i].colour];
        fprintf(out, "<li><b style=\"color:%s\">%s</b><span>", style->colour, style->marker);
        page_names(out, chart->series[i].label);
        fprintf(out, "</span></li>\n");
    }
    fprintf(out, "</ul>\n");
}

/* Replaces gnuplot's output up to the end of <desc>, and removes its titles of curves, which
 * browsers would show as tooltips. */
static void print_svg(FILE *out, const struct chart *chart, const char *picture) {
    static const char last[] = "</desc>";
    const char *body = strstr(picture, last);
    fprintf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH,
            HEIGHT);
    page_text(out, chart->title);
    fprintf(out, "</title>");
    body = body ? body + strlen(last) : "</svg>\n";
    for (const char *title; (title = strstr(body, "<title>")); body = strchr(title, '\n'))
        fwrite(body, 1, (size_t)(title - body), out);
    fprintf(out, "%s", body);
}

void chart_print(FILE *out, const struct chart *chart) {
    const char *problem;
    char settings[400];
    if (gnuplot_problem()) return;
    snprintf(settings, sizeof settings,
             "set terminal svg size %d,%d dynamic rounded noenhanced font 'sans-serif,12'\n"
             "set tmargin %d\nset border 3 linecolor rgb '#5b636b'\nset tics nomirror\n"
             "set boxwidth 0.9\nset grid ytics linetype 1 linecolor rgb '#e0e3e6'",
             WIDTH, HEIGHT, chart->mark_count ? 1 + chart->mark_count : 1);
    char *picture = draw_chart(chart, settings, WIDTH, false, &problem);
    fprintf(out, "<figure>\n<figcaption>");
    page_text(out, chart->title);
    fprintf(out, "</figcaption>\n");
    if (picture && chart->series[0].label) print_legend(out, chart);
    if (picture) print_svg(out, chart, picture);
    else page_paragraph(out, "%s", problem);
    fprintf(out, "</figure>\n");
    free(picture);
}

/* ---- text */

void chart_print_text(FILE *out, const struct chart *chart, int width, int height) {
    const char *problem;
    char settings[200], *picture, *rest, *line;
    if (gnuplot_problem()) return;
    snprintf(settings, sizeof settings,
             "set terminal dumb size %d,%d mono noenhanced\nset colorsequence classic\n"
             "set key above left horizontal Left reverse samplen 2",
             width, height);
    rest = picture = draw_chart(chart, settings, width, true, &problem);
    if (!picture) fprintf(out, "%s: %s\n", chart->title, problem);
    while (rest && (line = strsep(&rest, "\n\f"))) {
        size_t length = strlen(line);
        while (length && line[length - 1] == ' ') length--;
        if (length) fprintf(out, "%.*s\n", (int)length, line);
    }
    free(picture);
}
