#include "model/page/chart.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/util/printed.h"
#include "data/util/utf8.h"
#include "model/page/escape.h"

/* ---- gnuplot as a child process */

enum { COMMAND_NOT_FOUND = 127 }; /* exit status of a shell */

/* Runs gnuplot on a script, without the user's settings. Returns its exit status and sets *picture,
 * which is to be freed. */
static int run_gnuplot(char **picture, const char *script) {
    int file = memfd_create("script", 0), status = EXIT_FAILURE;
    size_t length = strlen(script), room = 0;
    char command[80];
    *picture = NULL;
    snprintf(command, sizeof command, "exec gnuplot --default-settings /dev/fd/%d 2>/dev/null",
             file);
    if (file >= 0 && write(file, script, length) == (ssize_t)length) {
        FILE *output = popen(command, "r");
        bool drawn = output && getdelim(picture, &room, '\0', output) > 0;
        if (output) status = pclose(output);
        status = WIFEXITED(status) && (drawn || WEXITSTATUS(status)) ? WEXITSTATUS(status)
                                                                     : EXIT_FAILURE;
    }
    if (file >= 0) close(file);
    return status;
}

const char *chart_problem(void) {
    static int status = -1;
    char *picture = NULL;
    if (status < 0) status = run_gnuplot(&picture, "set terminal svg\nplot 0\n");
    free(picture);
    return status == 0                   ? NULL
           : status == COMMAND_NOT_FOUND ? "There are no charts because gnuplot is not installed "
                                           "(package gnuplot-nox or gnuplot)."
                                         : "There are no charts because gnuplot failed.";
}

/* ---- scripts */

/* Size of a picture on a page and height of a line of its text, in pixels; size in a terminal, in
 * characters. */
enum { WIDTH = 480, HEIGHT = 260, LINE = 18, TEXT_WIDTH = PAGE_WIDTH, TEXT_HEIGHT = 14 };

/* Colours of Okabe and Ito (2008), distinguishable with any colour vision, darkened for a white
 * background, and gnuplot's numbers of markers, for readers and printers without colours. */
static const struct series_style {
    const char *colour;
    int marker;
} series_styles[CHART_SERIES_MAX] = {
    {"#0067a3", 7},  {"#c95000", 5},  {"#008a63", 9}, {"#b0558d", 13},
    {"#a87400", 11}, {"#2f9bd6", 15}, {"#5f666d", 6}, {"#7c7a00", 4},
};

/* Prints a command with a single-quoted string. It has no escapes except a doubled quote, which
 * fails at the beginning, so a quote becomes an apostrophe. */
static void print_quoted(FILE *out, const char *command, const char *text) {
    char *masked = strdup(text ? text : "");
    if (!masked) end_out_of_memory();
    fprintf(out, "%s '", command);
    for (const char *at = utf8_mask(masked); *at; at++)
        if (*at == '\'') fputs("’", out);
        else putc(iscntrl((unsigned char)*at) ? '?' : *at, out);
    putc('\'', out);
    free(masked);
}

static bool is_shown(const struct chart *chart, double y) {
    return fabs(y) < 1e300 && (y > 0 || !(chart->log_y || chart->power_of_two_y));
}

/* Prints, of each group of `together` points, the smallest, the largest, and one that breaks the
 * line. */
static void print_points(FILE *out, const struct chart *chart, const struct chart_series *series,
                         int together) {
    for (int from = 0; from < series->count; from += together) {
        int low = -1, high = -1, broken = -1;
        for (int i = from; i < from + together && i < series->count; i++) {
            double y = series->y[i];
            if (!is_shown(chart, y)) broken = i;
            else if (low < 0 || y < series->y[low]) low = i;
            if (is_shown(chart, y) && (high < 0 || y > series->y[high])) high = i;
        }
        int first = low < high ? low : high, second = low < high ? high : low;
        if (first >= 0) fprintf(out, "%.10g %.10g\n", series->x[first], series->y[first]);
        if (second > first) fprintf(out, "%.10g %.10g\n", series->x[second], series->y[second]);
        if (broken >= 0) fprintf(out, "%.10g NaN\n", series->x[broken]);
    }
}

/* Returns the smallest and the largest shown value; from > to if there is none. */
struct range {
    double from, to;
};
static struct range range_of(const struct chart *chart) {
    struct range range = {INFINITY, -INFINITY};
    for (int i = 0; i < chart->series_count; i++)
        for (int k = 0; k < chart->series[i].count; k++) {
            double y = chart->series[i].y[k];
            if (!is_shown(chart, y)) continue;
            range.from = fmin(range.from, y);
            range.to = fmax(range.to, y);
        }
    return range;
}

static void print_axes(FILE *out, const struct chart *chart, struct range y) {
    fputs("set autoscale xfix\n", out);
    if (chart->power_of_two_y)
        fprintf(out, "set logscale y 2\nset format y '2^%%L'\nset yrange [%.10g:%.10g]\n",
                exp2(floor(log2(y.from) - 0.01)), exp2(ceil(log2(y.to) + 0.01)));
    else if (chart->log_y && y.to > 10 * y.from) fprintf(out, "set logscale y\n");
    else if (chart->zero_y) fprintf(out, "set yrange [*<0:0<*]\n");
    print_quoted(out, "set xlabel", chart->x_label);
    print_quoted(out, "\nset ylabel", chart->y_label);
    putc('\n', out);
}

static void print_curve(FILE *out, const struct chart *chart, int i, bool html) {
    const struct chart_series *series = &chart->series[i];
    const struct series_style *style = &series_styles[series->colour];
    assert(series->colour >= 0 && series->colour < CHART_SERIES_MAX);
    fprintf(out, "%s $points%d with ", i ? "," : "plot", i);
    if (chart->steps || !html) fprintf(out, chart->steps ? "steps" : "lines");
    else /* markers are staggered, so that equal lines stay visible */
        fprintf(out, "linespoints pointtype %d pointsize 0.5 pointinterval %d", style->marker,
                series->count * (5 + i) / 40 + 1);
    if (html) fprintf(out, " linewidth 1.4 linecolor rgb '%s'", style->colour);
    print_quoted(out, " title", series->label);
}

static void print_script(FILE *out, const struct chart *chart, struct range y, bool html) {
    fprintf(out, "set encoding utf8\nset key above left horizontal Left reverse samplen 2\n");
    if (html)
        fprintf(out,
                "set terminal svg size %d,%d dynamic rounded noenhanced font 'sans-serif,12'\n"
                "set border 3 linecolor rgb '#5b636b'\nset tics nomirror\n"
                "set grid ytics linetype 1 linecolor rgb '#e0e3e6'\n",
                WIDTH, HEIGHT + LINE * chart->series_count);
    else
        fprintf(out, "set terminal dumb size %d,%d mono noenhanced\nset colorsequence classic\n",
                TEXT_WIDTH, TEXT_HEIGHT + chart->series_count);
    for (int i = 0; i < chart->series_count; i++) {
        fprintf(out, "$points%d << END\n", i);
        print_points(out, chart, &chart->series[i],
                     chart->series[i].count / (html ? WIDTH : TEXT_WIDTH) + 1);
        fprintf(out, "END\n");
    }
    print_axes(out, chart, y);
    if (html && chart->shaded_to > 0) {
        fprintf(out,
                "set object rectangle from graph 0, graph 0 to %.10g, graph 1 behind "
                "fillcolor rgb '#dfe2e5' fillstyle solid noborder\n",
                chart->shaded_to);
        print_quoted(out, "set label", chart->shaded);
        fprintf(out, " at graph 0.01, graph 0.05\n");
    }
    for (int i = 0; i < chart->series_count; i++) print_curve(out, chart, i, html);
}

/* Returns the output of gnuplot, to be freed; or NULL with a sentence in *problem. */
static char *draw(const struct chart *chart, bool html, const char **problem) {
    struct range y = range_of(chart);
    struct printed script;
    *problem = "Nothing to draw: there is no finite value.";
    if (y.from > y.to) return NULL;
    if (printed_open(&script)) end_out_of_memory();
    print_script(script.out, chart, y, html);
    if (printed_close(&script)) end_out_of_memory();
    char *picture;
    int status = run_gnuplot(&picture, script.text);
    free(script.text);
    *problem = "gnuplot failed.";
    if (status == 0) return picture;
    free(picture);
    return NULL;
}

/* Prints our own <svg> element instead of gnuplot's output up to the end of <desc>, which names a
 * document type and the program. Leaves out its titles of curves, which browsers would show as
 * tooltips. */
static void print_svg(FILE *out, const struct chart *chart, const char *picture) {
    static const char last[] = "</desc>";
    const char *body = strstr(picture, last);
    fprintf(out, "<svg class=\"chart\" viewBox=\"0 0 %d %d\" role=\"img\">\n<title>", WIDTH,
            HEIGHT + LINE * chart->series_count);
    escape_html(out, chart->title, false);
    fprintf(out, "</title>");
    body = body ? body + strlen(last) : "</svg>\n";
    for (const char *title; (title = strstr(body, "<title>")); body = strchr(title, '\n'))
        fwrite(body, 1, (size_t)(title - body), out);
    fputs(body, out);
}

static void print_lines(FILE *out, char *picture) {
    for (char *line; (line = strsep(&picture, "\n\f"));) {
        size_t length = strlen(line);
        while (length && line[length - 1] == ' ') length--;
        if (length) fprintf(out, "%.*s\n", (int)length, line);
    }
}

void chart_print(const struct page *page, const struct chart *chart) {
    const char *problem;
    FILE *out = page->printed.out;
    bool html = page->form == PAGE_HTML;
    if (page->form == PAGE_MARKDOWN || chart_problem()) return;
    char *picture = draw(chart, html, &problem);
    if (html) {
        fprintf(out, "<figure>\n<figcaption>");
        escape_html(out, chart->title, true);
        fprintf(out, "</figcaption>\n");
    } else fprintf(out, "\n%s\n", chart->title);
    if (!picture) page_paragraph(page, problem);
    else if (html) print_svg(out, chart, picture);
    else print_lines(out, picture);
    if (html) fprintf(out, "</figure>\n");
    free(picture);
}
