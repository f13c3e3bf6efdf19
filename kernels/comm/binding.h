/* Binds a process to the cores beside its GPU, and so its memory, which the system takes from the
 * NUMA node of the core that writes it first. On a machine with two sockets, copies from the other
 * socket's memory share the link between them. */
#pragma once

#include <stdbool.h>

/* Reads which cores are beside the PCI device of this address ("0000:3B:00.0") from `sysfs` (the
 * folder /sys) and binds the calling thread, and threads that it starts later, to those of them
 * that it may already use. Returns false and changes nothing if the machine does not show them, or
 * if the launcher or the user has bound the process to other cores. */
bool binding_near(const char *address, const char *sysfs);
