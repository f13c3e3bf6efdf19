#include "kernels/backend.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "data/util/host_memory.h"
#include "kernels/arena.h"
#include "kernels/open/backend_open.h"
#include "kernels/ranks.h"
#include "test/device.h"
#ifdef EMULATED
#include "test/cuda_emulator/control.h"
#endif

static struct backend open_cpu(int threads) {
    struct backend be;
    struct error error;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){DEVICE_CPU, .threads = threads}, &error),
        0, "%s", error.text);
    return be;
}

Test(backend, cpu_is_described) {
    struct backend be = open_cpu(3);
    cr_assert_str_eq(be.device.name, "cpu");
    cr_assert_eq(be.device.threads, 3);
    cr_assert(be.device.description[0]);
    cr_assert_eq(be.failure.text[0], 0);
    backend_close(&be);
    be = open_cpu(0); /* all cores */
    cr_assert_geq(be.device.threads, 1);
    backend_close(&be);
}

static struct backend open_here(void) {
    struct backend be;
    struct error error;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){.device = test_device()}, &error), 0,
        "%s", error.text);
    return be;
}

/* It needs tensor cores for TF32. */
Test(backend, gpus_before_sm_80_lack_the_delta_rule) {
    struct backend be = open_here();
    cr_expect(be.device.delta_rule);
    backend_close(&be);
#ifdef EMULATED
    if (!test_emulated()) return;
    cuda_emulator_capability(75);
    be = open_here();
    cr_expect_not(be.device.delta_rule);
    backend_close(&be);
#endif
}

/* Every operation has a function in each table. */
Test(backend, tables_are_full) {
    struct backend be = open_cpu(1);
#define X(name)                     \
    cr_assert(be.run->name, #name); \
    cr_assert(be.plan->name, #name);
    OPERATIONS(X)
#undef X
    backend_close(&be);
}

Test(backend, planning_switches_the_table) {
    struct backend be = open_cpu(1);
    struct error error;
    cr_assert_eq(be.op, be.run);
    backend_plan_begin(&be);
    cr_assert_eq(be.op, be.plan);
    cr_assert_null(backend_workspace(&be, 1000));
    cr_assert_null(backend_workspace(&be, 100));
    cr_assert_eq(backend_plan_end(&be, &error), 0);
    cr_assert_eq(be.op, be.run);
    cr_assert_geq(be.workspace_bytes, 1000);
    memset(backend_workspace(&be, 1000), 1, be.workspace_bytes);
    backend_plan_begin(&be); /* a second planning pass, with more work */
    backend_workspace(&be, 100000);
    cr_assert_eq(backend_plan_end(&be, &error), 0);
    memset(backend_workspace(&be, 100000), 1, 100000);
    backend_close(&be);
}

static void take_some(struct backend *be) {
    memset(backend_workspace(be, 1000), 1, 1000);
}

static void take_too_much(struct backend *be) {
    backend_workspace(be, 1001);
}

static void run_unplanned(struct backend *be) {
    enum { N = 200, C = 8 };
    static float table[C], sum[C], dout[N * C];
    static const int32_t tokens[N] = {0};
    OP(be, embedding_backward, .dtoken_table = &(struct tensor){table, DTYPE_F32, 2, {1, C}},
       .dposition_table = &(struct tensor){sum, DTYPE_F32, 2, {1, C}},
       .dout = &(struct tensor){dout, DTYPE_F32, 2, {N, C}}, .tokens = tokens, .sequence_length = 1,
       .token_scale = 1);
}

/* Runs in a process of its own, with 1000 bytes planned. */
static bool aborts(void (*body)(struct backend *be)) {
    int status;
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        struct error error;
        struct backend be = open_cpu(1);
        backend_plan_begin(&be);
        backend_workspace(&be, 1000);
        if (backend_plan_end(&be, &error) || !freopen("/dev/null", "w", stderr)) _exit(1);
        body(&be);
        _exit(0);
    }
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

Test(backend, scratch_that_was_not_planned_ends_the_program) {
    cr_assert_not(aborts(take_some));
    cr_assert(aborts(take_too_much));
    cr_assert(aborts(run_unplanned));
}

/* AddressSanitizer ends the program on absurd sizes before the allocator can refuse them. */
#ifndef __SANITIZE_ADDRESS__
Test(backend, too_much_memory_is_an_error) {
    struct backend be = open_here();
    struct error error = {0};
    backend_plan_begin(&be);
    backend_workspace(&be, SIZE_MAX / 4);
    cr_assert_eq(backend_plan_end(&be, &error), -1);
    cr_assert(strstr(error.text, "memory"), "%s", error.text);
    cr_assert_null(backend_allocate(&be, SIZE_MAX / 4));
    cr_assert_null(backend_host_allocate(&be, SIZE_MAX / 4));
    cr_assert_str_eq(be.failure.text, "", "a refusal is the caller's to report");
    backend_close(&be);
}
#endif

Test(backend, memory) {
    struct backend be = open_here();
    const char text[] = "there and back";
    char copy[sizeof text];
    void *memory = backend_allocate(&be, sizeof text);
    cr_assert_eq((uintptr_t)memory % ARENA_ALIGNMENT, 0);
    backend_upload(&be, memory, text, sizeof text);
    backend_download(&be, copy, memory, sizeof copy);
    cr_assert_str_eq(copy, text);
#ifndef EMULATED /* a real GPU's free memory also changes with the tests that run beside this one \
                  */
    if (test_device() == DEVICE_CPU)
#endif
        cr_assert_geq(backend_peak_bytes(&be), sizeof text);
    backend_release(&be, memory);
    backend_close(&be);
}

Test(backend, a_device_that_is_not_there_is_an_error) {
    struct backend be;
    struct error error = {0};
    if (backend_open(&be, &(const struct backend_options){.device = DEVICE_CUDA}, &error) == 0)
        backend_close(&be);
    else cr_assert(strstr(error.text, "cuda") || strstr(error.text, "CUDA"), "%s", error.text);
}

#ifdef EMULATED
/* Opens a device while a variable of test/cuda_emulator/control.h is set, in this process only. */
static int open_with(enum device device, const char *name, const char *value, struct error *error) {
    struct backend be;
    setenv(name, value, 1);
    int status = backend_open(&be, &(const struct backend_options){.device = device}, error);
    int kind = status ? status : (int)be.device.kind;
    if (status == 0) backend_close(&be);
    unsetenv(name);
    return kind;
}

/* Only a machine without a GPU or without a driver trains on the CPU by itself. */
Test(backend, auto_takes_the_cpu_only_without_a_gpu) {
    static const struct {
        const char *name, *value;
        bool absent;
        const char *says[2];
    } machines[] = {
        {"CUDA_EMULATOR_DEVICES", "0", true, {"there is no GPU here", "use --device cpu"}},
        {"CUDA_VISIBLE_DEVICES", "", true, {"there is no GPU here", "use --device cpu"}},
        {"CUDA_EMULATOR_DRIVER", "0", true, {"there is no NVIDIA driver", "use --device cpu"}},
        {"CUDA_EMULATOR_DRIVER", "11080", false, {"supports CUDA 11.8", "newer driver"}},
        {"CUDA_EMULATOR_BROKEN", "802", false, {"error 802", "fabric manager"}},
        {"CUDA_EMULATOR_BROKEN", "46", false, {"error 46", "another process"}},
        {"CUDA_EMULATOR_BROKEN", "999", false, {"error 999", "nvidia-smi"}},
    };
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct error asked = {""}, automatic = {""};
        const char *name = machines[i].name, *value = machines[i].value;
        cr_expect_eq(open_with(DEVICE_CUDA, name, value, &asked), -1, "%s=%s", name, value);
        cr_expect_eq(open_with(DEVICE_AUTO, name, value, &automatic),
                     machines[i].absent ? (int)BACKEND_CPU : -1, "%s=%s", name, value);
        for (int j = 0; j < 2; j++)
            cr_expect(strstr(asked.text, machines[i].says[j]), "%s", asked.text);
        if (!machines[i].absent) cr_expect_str_eq(automatic.text, asked.text);
    }
}

/* Requests more than may be pinned, although it is available. Buffers that every run needs are
 * always allowed. */
Test(backend, pinned_memory_leaves_some_free) {
    struct backend be = open_here();
    size_t available = host_memory_available(), most = host_memory_pinnable();
    cr_assert_lt(most, available);
    cr_expect(most == 0 || available - most >= (size_t)2 << 30);
    cr_expect_null(backend_host_allocate(&be, available - ((size_t)1 << 30)));
    void *small = backend_host_allocate(&be, 1 << 20);
    cr_expect_not_null(small);
    cr_expect_str_empty(be.failure.text);
    backend_host_release(&be, small);
    backend_close(&be);
}

static struct backend open_as_rank(const struct ranks *ranks) {
    struct error error;
    struct backend be;
    cr_assert_eq(
        backend_open(&be, &(const struct backend_options){.device = DEVICE_CUDA, .ranks = ranks},
                     &error),
        0, "%s", error.text);
    return be;
}

/* This rank's share holds one allocation of 64 MiB, again and again. */
Test(backend, released_memory_may_be_pinned_again) {
    const size_t bytes = (size_t)64 << 20;
    struct ranks ranks = {.size = 1, .local_size = (int)(host_memory_pinnable() / (bytes * 3 / 2))};
    struct backend be = open_as_rank(&ranks);
    for (int i = 0; i < 2; i++) {
        void *memory = backend_host_allocate(&be, bytes);
        cr_expect_not_null(memory);
        cr_expect_null(backend_host_allocate(&be, bytes));
        backend_host_release(&be, memory);
    }
    backend_close(&be);
}

/* Ranks of one machine share what may be pinned. */
Test(backend, ranks_share_pinned_memory) {
    struct ranks ranks = {.size = 1, .local_size = 1 << 20};
    struct backend be = open_as_rank(&ranks);
    cr_expect_null(backend_host_allocate(&be, (size_t)64 << 20));
    backend_close(&be);
}
#endif
