/* How threads wait for each other. */
#pragma once

/* Has threads that wait spin for 50 microseconds and then sleep, so that a program on the same
 * cores costs a run its share of them and no more. GNU OpenMP by itself spins for many
 * milliseconds; the time that a thread spins away is missing when it has work. It reads the length
 * from the environment before main() and has no call for it, so this sets GOMP_SPINCOUNT and
 * executes the program once more, with the same arguments. Does nothing if the environment says
 * already how to wait (OMP_WAIT_POLICY, GOMP_SPINCOUNT), if the program cannot be executed, or if
 * clang compiled it, whose OpenMP is another.
 *
 * To be called first in main(). */
void cpu_wait_politely(char **argv);
