/* Growing arrays without memory. */
#include <stb/stb_ds.h>

#include <criterion/criterion.h>
#include <sys/wait.h>
#include <unistd.h>

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
