/* gnuplot as a child process, without the user's settings. */
#pragma once

/* Returns a sentence that explains why gnuplot cannot be used, or NULL if it works. The test run is
 * made once per process. */
const char *gnuplot_problem(void);

/* Runs the script. Returns the standard output of gnuplot, to be freed; NULL if it failed. */
char *gnuplot_draw(const char *script);
