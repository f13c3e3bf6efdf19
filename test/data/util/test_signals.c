/* Signals as flags. */
#include "data/util/signals.h"

#include <criterion/criterion.h>

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { STACK_BYTES = 512 * 1024, OWN_BYTES = 512, UNTOUCHED = 0xa5 };

/* Returns how far below this function's frame a signal to this thread reaches, in bytes. */
static __attribute__((noinline)) size_t depth_of_signal(uint8_t *stack, int number) {
    size_t size = (size_t)((uint8_t *)__builtin_frame_address(0) - OWN_BYTES - stack), lowest = 0;
    memset(stack, UNTOUCHED, size);
    pthread_kill(pthread_self(), number);
    while (lowest < size && stack[lowest] == UNTOUCHED) lowest++;
    return size - lowest;
}

static void *catch_one(void *stack) {
    const volatile sig_atomic_t *stop = signals_catch();
    depth_of_signal(stack, SIGURG); /* the first call also resolves the symbol */
    size_t ignored = depth_of_signal(stack, SIGURG);
    size_t caught = depth_of_signal(stack, SIGINT);
    cr_expect_eq(*stop, SIGINT);
    cr_expect_eq(caught, ignored, "%zu bytes of the interrupted code's stack, ignored: %zu", caught,
                 ignored);
    return NULL;
}

/* Memory below the interrupted code's stack pointer need not be a stack. */
Test(signals, handler_leaves_the_stack_alone) {
    void *stack = NULL;
    cr_assert_eq(posix_memalign(&stack, 4096, STACK_BYTES), 0);
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    cr_assert_eq(pthread_attr_setstack(&attributes, stack, STACK_BYTES), 0);
    cr_assert_eq(pthread_create(&thread, &attributes, catch_one, stack), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    free(stack);
}

/* They never end the program, however often they come, and the flag holds the first. */
Test(signals, hangups_and_closed_pipes_may_repeat) {
    signal(SIGHUP, SIG_DFL); /* the tests may have been started by nohup */
    signal(SIGPIPE, SIG_DFL);
    const volatile sig_atomic_t *stop = signals_catch();
    for (int i = 0; i < 3; i++) raise(SIGHUP), raise(SIGPIPE);
    raise(SIGTERM);
    cr_expect_eq(*stop, SIGHUP, "signal %d", (int)*stop);
}

Test(signals, signals_ignored_by_nohup_stay_ignored) {
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    const volatile sig_atomic_t *stop = signals_catch();
    raise(SIGHUP);
    raise(SIGPIPE);
    signals_catch_waiting();
    raise(SIGHUP);
    cr_expect_eq(signals_wait(-1), 0);
    cr_expect_eq(*stop, 0, "signal %d", (int)*stop);
}

/* A program that does not poll the flag, for example in an endless loop, can still be ended. */
Test(signals, a_second_signal_ends_a_program_that_holds_the_first) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        const volatile sig_atomic_t *stop = signals_catch_waiting();
        raise(SIGTERM);
        if (*stop != SIGTERM || signals_wait(-1) != SIGTERM) _exit(1);
        raise(SIGTERM);
        _exit(2);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM, "status %#x", (unsigned)status);
}

static void *raise_one(void *unused) {
    (void)unused;
    raise(SIGTERM);
    return NULL;
}

Test(signals, a_signal_to_any_thread_ends_the_wait) {
    int ends[2];
    pthread_t thread;
    cr_assert_eq(pipe(ends), 0);
    signals_catch_waiting();
    alarm(20);
    cr_assert_eq(pthread_create(&thread, NULL, raise_one, NULL), 0);
    cr_expect_eq(signals_wait(ends[0]), SIGTERM);
    pthread_join(thread, NULL);
}
