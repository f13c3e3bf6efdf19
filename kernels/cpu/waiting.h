/* Waiting policy of OpenMP threads. */
#pragma once

/* Makes waiting threads spin for 50 microseconds and then sleep, so that a program on the same
 * cores costs a run only its share of them. GNU OpenMP by default spins for many milliseconds, and
 * takes that time from threads that have work. It reads the length from the environment before
 * main() and has no call for it, so this sets GOMP_SPINCOUNT and executes the program once more,
 * with the same arguments. Does nothing if the environment already sets a policy (OMP_WAIT_POLICY,
 * GOMP_SPINCOUNT), if the program cannot be executed, or if clang compiled it, whose OpenMP is
 * different.
 *
 * Must be called first in main(). */
void cpu_limit_spinning(char **argv);
