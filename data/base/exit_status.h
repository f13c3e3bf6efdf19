/* How our programs end, and what functions that are a whole command return. */
#ifndef DATA_BASE_EXIT_STATUS_H
#define DATA_BASE_EXIT_STATUS_H

/* Exit statuses; 130 and 143 follow the shell's 128 + signal. */
enum { EXIT_DONE = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_SIGNAL = 128 };

#endif
