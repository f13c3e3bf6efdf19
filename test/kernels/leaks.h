/* Leaks that AddressSanitizer finds in tests fail the run.
 *
 * Criterion takes no notice of the status with which the process of a test ends, which is when
 * leaks are looked for, but it counts a process that is killed then. The runner's own leaks are not
 * looked for: its thread of time limits can still own an entry. */
#ifndef TEST_KERNELS_LEAKS_H
#define TEST_KERNELS_LEAKS_H

/* Runs the framework's main and returns its status. */
int leaks_run(int (*framework)(int, char **), int argc, char **argv);

#endif
