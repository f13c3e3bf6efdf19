/* Growing arrays without memory, and the seed of hash tables. */
#include <stb/stb_ds.h>

#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/util/hash.h"

Test(stb_ds, out_of_memory_ends_the_program) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        char *list = NULL;
        arrsetcap(list, (size_t)1 << 47); /* the whole address space */
        _exit(2);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) != 2, "status %#x", (unsigned)status);
}

Test(stb_ds, hash_tables_have_a_random_seed) {
    cr_expect_eq(hash_multiplier % 2, 1);
    cr_expect_neq(hash_multiplier, UINT64_C(0x9e3779b97f4a7c15));
}
