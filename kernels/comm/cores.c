#include "kernels/comm/cores.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cores that a rank may run on, and their machine. */
struct rank_cores {
    char system[48]; /* boot id of the kernel: ranks with the same one share its cores */
    cpu_set_t cores;
};

static void find_cores(struct rank_cores *rank_cores) {
    memset(rank_cores, 0, sizeof *rank_cores);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file && !fgets(rank_cores->system, sizeof rank_cores->system, file))
        rank_cores->system[0] = 0;
    if (file) fclose(file);
    /* More cores than the set can hold: one thread, unless the user sets more. */
    if (sched_getaffinity(0, sizeof rank_cores->cores, &rank_cores->cores))
        CPU_ZERO(&rank_cores->cores);
}

int ranks_cores(const struct ranks *ranks) {
    struct rank_cores own, *all = malloc((size_t)ranks->size * sizeof *all);
    double share = 0;
    if (!all) {
        ranks_abort(ranks, 1);
        return 1;
    }
    find_cores(&own);
    ranks_gather(ranks, all, &own, sizeof own);
    for (size_t core = 0; core < CPU_SETSIZE; core++) {
        int sharing = 0;
        if (!CPU_ISSET(core, &own.cores)) continue;
        for (int rank = 0; rank < ranks->size; rank++)
            if (strcmp(all[rank].system, own.system) == 0 && CPU_ISSET(core, &all[rank].cores))
                sharing++;
        share += 1.0 / sharing;
    }
    free(all);
    return share < 1 ? 1 : (int)(share + 1e-6);
}
