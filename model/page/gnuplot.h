/* gnuplot as a child process, started without a shell and without the settings of the user. */
#pragma once

/* Returns why gnuplot cannot be used, as a sentence, or NULL if it works. Tries it once. */
const char *gnuplot_problem(void);

/* Returns what gnuplot writes to its standard output when it runs the script, to be freed. NULL
 * with errno if it did not start, with errno 0 if it failed. */
char *gnuplot_draw(const char *script);
