/* Several ranks, each with an emulated GPU, over the fake NCCL. */
#if defined EMULATED && defined WITH_NCCL
#include "kernels/comm/nccl.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "data/util/progress.h"
#include "kernels/collectives.h"
#include "test/cuda_emulator/control.h"
#include "test/cuda_emulator/fake_cublaslt.h"
#include "test/cuda_emulator/fake_nccl.h"
#include "test/kernels/gpu_ranks.h"

enum { INVALID_ARGUMENT = 4, SYSTEM_ERROR = 2, REMOTE_ERROR = 6 }; /* ncclResult_t */

/* ---- correct use */

struct shape {
    enum dtype dtype;
    int64_t count;
};

static void there_and_back(const struct ranks *ranks, const void *given) {
    const struct shape *shape = given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, shape->dtype, shape->count);
    for (int salt = 0; salt < 3; salt++) {
        gpu_array_load(&be, 0, &a, ranks->rank, salt);
        uint64_t ticket = collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
        collectives_wait(be.collectives, ticket);
        gpu_array_read(&be, &a);
        gpu_array_check_own(ranks, &a, salt);
        ticket = collectives_all_gather(be.collectives, a.device, dtype_bytes(a.dtype), a.count);
        collectives_wait(be.collectives, ticket);
        gpu_array_read(&be, &a);
        gpu_array_check_all(ranks, &a, salt);
    }
    RANK_CHECK(ranks, strncmp(be.collectives->description, "NCCL 2.", 7) == 0);
    gpu_array_free(&be, &a);
    gpu_rank_close(&be, ranks);
}

Test(nccl, sums_reach_their_owners_and_all) {
    static const int64_t counts[] = {1, 127, 128, 256, 257, 383, 384, 512, 1000, 4096, 10007};
    for (int size = 2; size <= 4; size++)
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
            for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
                struct shape shape = {(enum dtype)dtype, counts[i]};
                cr_assert_eq(forked_ranks(size, there_and_back, &shape), 0,
                             "%d ranks, dtype %d, count %d", size, dtype, (int)counts[i]);
            }
}

/* Kernels before and after, on the same and on other memory. */
static void amid_kernels(const struct ranks *ranks, const void *given) {
    enum { COUNT = 3000 };
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array masters = gpu_array_make(&be, DTYPE_F32, COUNT);
    struct gpu_array gradients = gpu_array_make(&be, DTYPE_BF16, COUNT);
    struct gpu_array sums = gpu_array_make(&be, DTYPE_F32, COUNT);
    struct tensor from = {masters.device, DTYPE_F32, 1, {COUNT}};
    struct tensor to = {gradients.device, DTYPE_BF16, 1, {COUNT}};
    struct tensor out = {sums.device, DTYPE_F32, 1, {COUNT}};
    for (int salt = 0; salt < 2; salt++) {
        gpu_array_load(&be, salt, &masters, ranks->rank, salt);
        OP(&be, cast, .out = &to, .in = &from);
        uint64_t ticket =
            collectives_reduce_scatter(be.collectives, to.data, to.dtype, tensor_count(&to));
        OP(&be, clear, .data = from.data, .bytes = tensor_bytes(&from));
        collectives_wait(be.collectives, ticket);
        OP(&be, cast, .out = &out, .in = &to);
        ticket = collectives_all_gather(be.collectives, out.data, sizeof(float), COUNT);
        OP(&be, clear, .data = to.data, .bytes = tensor_bytes(&to));
        collectives_wait(be.collectives, ticket);
        gpu_array_read(&be, &sums);
        gpu_array_check_all(ranks, &sums, salt);
    }
    gpu_array_free(&be, &masters);
    gpu_array_free(&be, &gradients);
    gpu_array_free(&be, &sums);
    gpu_rank_close(&be, ranks);
}

Test(nccl, operations_overlap_with_traffic) {
    for (int size = 2; size <= 3; size++) cr_assert_eq(forked_ranks(size, amid_kernels, NULL), 0);
}

/* More operations in flight than there are events, waited for late and in reverse. */
static void many_tickets(const struct ranks *ranks, const void *given) {
    enum { ARRAYS = 600, COUNT = 768 };
    (void)given;
    struct backend be;
    static struct gpu_array arrays[ARRAYS];
    uint64_t tickets[ARRAYS];
    gpu_rank_open(&be, ranks);
    for (int i = 0; i < ARRAYS; i++) arrays[i] = gpu_array_make(&be, DTYPE_F16, COUNT);
    for (int i = 0; i < ARRAYS; i++) {
        gpu_array_load(&be, i % 2, &arrays[i], ranks->rank, i);
        tickets[i] = collectives_reduce_scatter(be.collectives, arrays[i].device, DTYPE_F16, COUNT);
        RANK_CHECK(ranks, tickets[i] > (i ? tickets[i - 1] : 0));
    }
    collectives_wait(be.collectives, 0);
    collectives_wait(be.collectives, tickets[ARRAYS - 2]);
    gpu_array_read(&be, &arrays[ARRAYS - 2]);
    gpu_array_check_own(ranks, &arrays[ARRAYS - 2], ARRAYS - 2);
    collectives_wait(be.collectives, tickets[ARRAYS - 1]);
    for (int i = ARRAYS - 1; i >= 0; i--) {
        collectives_wait(be.collectives, tickets[i]);
        gpu_array_read(&be, &arrays[i]);
        gpu_array_check_own(ranks, &arrays[i], i);
    }
    for (int i = 0; i < ARRAYS; i++) gpu_array_free(&be, &arrays[i]);
    gpu_rank_close(&be, ranks);
}

Test(nccl, tickets_wait_for_earlier_operations) {
    cr_assert_eq(forked_ranks(2, many_tickets, NULL), 0);
}

/* One rank reads a result while the others wait for it: no rank blocks it. */
static void look_alone(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 500);
    gpu_array_load(&be, 0, &a, ranks->rank, 0);
    collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
    uint64_t ticket = collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    if (ranks->rank == 1) {
        collectives_wait(be.collectives, ticket);
        gpu_array_read(&be, &a);
        gpu_array_check_all(ranks, &a, 0);
    }
    ranks_barrier(ranks);
    gpu_rank_close(&be, ranks); /* with work that no rank waited for */
}

Test(nccl, ranks_may_poll_at_different_times) {
    cr_assert_eq(forked_ranks(3, look_alone, NULL), 0);
}

/* No elements: returns a ticket all the same. */
static void nothing(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1);
    uint64_t first = collectives_reduce_scatter(be.collectives, a.device, a.dtype, 0);
    uint64_t second = collectives_all_gather(be.collectives, a.device, 4, 0);
    RANK_CHECK(ranks, first > 0 && second > first);
    collectives_wait(be.collectives, second);
    gpu_array_free(&be, &a);
    gpu_rank_close(&be, ranks);
}

Test(nccl, no_elements) {
    cr_assert_eq(forked_ranks(2, nothing, NULL), 0);
}

static void alone(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    RANK_CHECK(ranks, be.collectives == &collectives_alone);
    gpu_rank_close(&be, ranks);
}

Test(nccl, one_rank_needs_none) {
    cr_assert_eq(forked_ranks(1, alone, NULL), 0);
}

/* ---- errors */

static void check_failure(const struct ranks *ranks, const struct backend *be, const char *text) {
    bool found = strstr(be->failure.text, text) != NULL;
    if (!found) fprintf(stderr, "not \"%s\" but \"%s\"\n", text, be->failure.text);
    RANK_CHECK(ranks, found);
}

struct failing {
    const char *function;
    int nth;
    const char *text;
};

/* Rank 0 meets an error and aborts; no NCCL function is called after that. The others detect it
 * when the result never arrives. */
static void fail_at(const struct ranks *ranks, const void *given) {
    const struct failing *failing = given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    cuda_emulator_quiet(1);
    fake_nccl_quiet(1);
    if (ranks->rank == 0) fake_nccl_fail(failing->function, failing->nth, SYSTEM_ERROR);
    gpu_array_load(&be, 0, &a, ranks->rank, 0);
    uint64_t first = collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
    collectives_wait(be.collectives, first);
    uint64_t ticket = collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    collectives_wait(be.collectives, ticket);
    backend_download(&be, a.host, a.device, gpu_array_bytes(&a));
    RANK_CHECK(ranks, be.failure.text[0]);
    if (ranks->rank == 0) {
        check_failure(ranks, &be, failing->text);
        check_failure(ranks, &be, "unhandled system error: planned by the test");
        long calls = fake_nccl_counts()->calls;
        ticket = collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
        RANK_CHECK(ranks, ticket == 0);
        collectives_wait(be.collectives, ticket);
        RANK_CHECK(ranks, fake_nccl_counts()->calls == calls);
        RANK_CHECK(ranks, fake_nccl_counts()->mistakes == 0);
    }
    collectives_wait(be.collectives, first);
    RANK_CHECK(ranks, fake_nccl_counts()->aborted == 1 && fake_nccl_counts()->alive == 0);
    gpu_array_free(&be, &a);
    backend_close(&be);
    RANK_CHECK(ranks, fake_nccl_counts()->aborted == 1 && fake_nccl_counts()->alive == 0);
}

Test(nccl, errors_end_it) {
    static const struct failing all[] = {
        {"ncclGroupStart", 1, "NCCL: adding gradients"},
        {"ncclReduceScatter", 1, "NCCL: adding gradients"},
        {"ncclReduce", 1, "NCCL: adding gradients"},
        {"ncclGroupEnd", 1, "NCCL: adding gradients"},
        {"ncclCommGetAsyncError", 1, "NCCL: waiting for other ranks"},
        {"ncclGroupStart", 2, "NCCL: spreading weights"},
        {"ncclAllGather", 1, "NCCL: spreading weights"},
        {"ncclBroadcast", 1, "NCCL: spreading weights"},
        {"ncclGroupEnd", 2, "NCCL: spreading weights"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        cr_assert_eq(forked_ranks(2, fail_at, &all[i]), 0, "%s", all[i].function);
}

/* Failures that appear only while operations run. */
static void fail_under_way(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    uint64_t ticket = collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    RANK_CHECK(ranks, be.failure.text[0] == 0);
    fake_nccl_fail_later(REMOTE_ERROR);
    collectives_wait(be.collectives, ticket);
    check_failure(ranks, &be, "NCCL: waiting for other ranks: remote process exited");
    RANK_CHECK(ranks, fake_nccl_counts()->aborted == 1 && fake_nccl_counts()->mistakes == 0);
    backend_close(&be);
    RANK_CHECK(ranks, fake_nccl_counts()->alive == 0 && fake_nccl_counts()->mistakes == 0);
}

Test(nccl, late_errors_are_reported) {
    cr_assert_eq(forked_ranks(2, fail_under_way, NULL), 0);
}

/* Errors that appear while the host already waits for a result that never comes. */
enum trouble { NETWORK, OTHER_RANK, CLOSING, TROUBLES };

static void meet_trouble(const struct ranks *ranks, struct backend *be, enum trouble what,
                         const struct gpu_array *a) {
    uint64_t ticket = collectives_all_gather(be->collectives, a->device, sizeof(float), a->count);
    if (what == NETWORK) fake_nccl_fail("ncclCommGetAsyncError", 3, REMOTE_ERROR);
    collectives_wait(be->collectives, ticket);
    RANK_CHECK(ranks, !be->failure.text[0]);
    ranks_barrier(ranks);
    if (what == CLOSING) return;
    backend_fetch(be, 0, a->host, a->device, gpu_array_bytes(a));
    backend_fetched(be, 0);
    check_failure(ranks, be, "NCCL: waiting for other ranks: remote process");
    RANK_CHECK(ranks, fake_nccl_counts()->aborted == 1);
}

static void fail_while_waiting(const struct ranks *ranks, const void *given) {
    enum trouble what = *(const enum trouble *)given;
    struct backend be;
    const double begun = progress_clock();
    gpu_rank_open(&be, ranks);
    fake_nccl_patience(40);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    if (ranks->rank == 0) {
        meet_trouble(ranks, &be, what, &a);
    } else {
        ranks_barrier(ranks);
        if (what != NETWORK) fail(&be.failure, "CUDA: planned by the test");
        RANK_CHECK(ranks, what == NETWORK || collectives_failed(be.collectives));
    }
    ranks_barrier(ranks);
    backend_close(&be);
    RANK_CHECK(ranks, progress_clock() - begun < 30);
    RANK_CHECK(ranks, fake_nccl_counts()->mistakes == 0 && fake_nccl_counts()->alive == 0);
}

Test(nccl, errors_are_polled_while_the_host_waits) {
    for (enum trouble what = 0; what < TROUBLES; what++)
        cr_assert_eq(forked_ranks(2, fail_while_waiting, &what), 0, "%d", (int)what);
}

/* ---- a rank that hangs */

enum { QUEUE = 1024 }; /* launches that the host may be ahead of the emulated GPU */
static const char limit[] = "0.2";

/* The place of the host of rank 0 when rank 1 does not answer. */
enum host_place { IN_LAUNCH, IN_FETCH, IN_CLOSE, HOST_PLACES };

struct hang {
    enum host_place place;
    int errors;     /* where ranks print */
    long *launches; /* of rank 0, shared with the test */
};

static void launch_forever(struct backend *be, const struct gpu_array *a, long *launches) {
    const struct tensor data = {a->device, DTYPE_F32, 1, {a->count}};
    for (;; ++*launches) OP(be, cast, .out = &data, .in = &data);
}

static void meet_silence(const struct ranks *ranks, const void *given) {
    const struct hang *hang = given;
    struct ranks own = *ranks;
    struct backend be;
    own.errors = hang->errors;
    setenv("MANTISSA_NCCL_TIMEOUT", limit, 1);
    gpu_rank_open(&be, &own);
    fake_nccl_patience(1000);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    ranks_barrier(ranks);
    if (ranks->rank == 1) ranks_barrier(ranks); /* until rank 0 ends all ranks */
    uint64_t ticket = collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    if (hang->place == IN_CLOSE) backend_close(&be);
    collectives_wait(be.collectives, ticket);
    if (hang->place == IN_LAUNCH) launch_forever(&be, &a, hang->launches);
    backend_fetch(&be, 0, a.host, a.device, gpu_array_bytes(&a));
    backend_fetched(&be, 0);
}

static void hang_at(enum host_place place) {
    int ends[2];
    char said[1024];
    long *launches =
        mmap(NULL, sizeof *launches, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(pipe(ends) == 0 && launches != MAP_FAILED);
    struct hang hang = {place, ends[1], launches};
    cr_assert_eq(forked_ranks(2, meet_silence, &hang), 2);
    close(ends[1]);
    ssize_t length = read(ends[0], said, sizeof said - 1);
    said[length > 0 ? length : 0] = 0;
    cr_assert(strstr(said, "train: rank 0: NCCL: spreading weights: other ranks have not answered "
                           "for 0.2 seconds (operation 1)\n"),
              "%d: \"%s\"", (int)place, said);
    cr_assert(strstr(said, "MANTISSA_NCCL_TIMEOUT=SECONDS\n"), "%s", said);
    if (place == IN_LAUNCH)
        cr_assert(*launches > QUEUE - 8 && *launches <= QUEUE, "%ld launches", *launches);
    munmap(launches, sizeof *launches);
    close(ends[0]);
}

Test(nccl, a_rank_that_hangs_ends_all_wherever_the_host_is) {
    for (enum host_place place = 0; place < HOST_PLACES; place++) hang_at(place);
}

/* Rank 0 is busy for longer than others may wait, as with samples, the timing of matmuls or the
 * manifest of a checkpoint. The others wait for it on the host, with and without an operation that
 * all ranks have called. */
static void work_alone(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    setenv("MANTISSA_NCCL_TIMEOUT", limit, 1);
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 500);
    struct gpu_array other = gpu_array_make(&be, DTYPE_F32, 500);
    const struct tensor scratch = {other.device, DTYPE_F32, 1, {other.count}};
    for (int salt = 0; salt < 2; salt++) {
        gpu_array_load(&be, 0, &a, ranks->rank, salt);
        collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
        uint64_t ticket = collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
        collectives_wait(be.collectives, ticket);
        ranks_barrier(ranks);
        if (salt == 0) gpu_array_read(&be, &a);
        for (double begun = progress_clock(); ranks->rank == 0 && progress_clock() - begun < 1;)
            OP(&be, cast, .out = &scratch, .in = &scratch);
        ranks_barrier(ranks);
        if (salt == 1) gpu_array_read(&be, &a);
        gpu_array_check_all(ranks, &a, salt);
    }
    gpu_array_free(&be, &a);
    gpu_array_free(&be, &other);
    gpu_rank_close(&be, ranks);
}

Test(nccl, a_rank_may_be_busy_alone) {
    cr_assert_eq(forked_ranks(3, work_alone, NULL), 0);
}

static void fail_elsewhere(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    fail(&be.failure, "CUDA: planned by the test");
    RANK_CHECK(ranks, collectives_reduce_scatter(be.collectives, a.device, a.dtype, 1000) == 0);
    RANK_CHECK(ranks, strcmp(be.failure.text, "CUDA: planned by the test") == 0);
    RANK_CHECK(ranks, fake_nccl_counts()->aborted == 1 && fake_nccl_counts()->mistakes == 0);
    backend_close(&be);
    RANK_CHECK(ranks, fake_nccl_counts()->alive == 0 && fake_nccl_counts()->mistakes == 0);
}

Test(nccl, other_failures_of_the_device_end_it) {
    cr_assert_eq(forked_ranks(2, fail_elsewhere, NULL), 0);
}

/* ---- the fake NCCL reports ranks whose calls differ */

enum disorder { ANOTHER_ORDER, ANOTHER_COUNT, ANOTHER_DTYPE, MISSING, DEAD };

static void disagree(const struct ranks *ranks, const void *given) {
    enum disorder what = *(const enum disorder *)given;
    bool odd = ranks->rank == 1;
    struct backend be;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1024);
    cuda_emulator_quiet(1);
    fake_nccl_patience(0.3);
    fake_nccl_quiet(1);
    uint64_t ticket = 0;
    if (odd && what == ANOTHER_ORDER)
        collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    if (!odd || what < MISSING)
        ticket = collectives_reduce_scatter(be.collectives, a.device,
                                            odd && what == ANOTHER_DTYPE ? DTYPE_BF16 : DTYPE_F32,
                                            odd && what == ANOTHER_COUNT ? 512 : 1024);
    if (!odd && what == ANOTHER_ORDER)
        collectives_all_gather(be.collectives, a.device, sizeof(float), a.count);
    collectives_wait(be.collectives, ticket);
    if (odd && what == DEAD) return;
    if (ticket) backend_download(&be, a.host, a.device, gpu_array_bytes(&a));
    if (ticket) RANK_CHECK(ranks, be.failure.text[0] && fake_nccl_counts()->mistakes == 1);
    if (what != DEAD) ranks_barrier(ranks);
    backend_close(&be);
}

Test(nccl, ranks_that_do_not_do_the_same_are_noticed) {
    for (enum disorder what = ANOTHER_ORDER; what <= DEAD; what++)
        cr_assert_eq(forked_ranks(2, disagree, &what), 0, "%d", (int)what);
}

/* ---- opening */

/* GPUs that a launcher may give the ranks: the GPUs of the machine, and those visible to each
 * rank (NULL: all). The expected result is a message, or NULL. */
struct place {
    const char *machine, *visible[3];
    enum device device;
    const char *text;
};

static void open_in(const struct ranks *ranks, const void *given) {
    const struct place *place = given;
    const char *visible = place->visible[ranks->rank];
    struct backend be;
    struct error error = {""};
    setenv("CUDA_EMULATOR_DEVICES", place->machine, 1);
    if (visible) setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    int status = gpu_rank_try(&be, ranks, place->device, &error);
    if (place->text) {
        bool found = strstr(error.text, place->text) != NULL;
        if (!found) fprintf(stderr, "not \"%s\" but \"%s\"\n", place->text, error.text);
        RANK_CHECK(ranks, status == -1 && found);
        RANK_CHECK(ranks, fake_nccl_counts()->alive == 0 && fake_nccl_counts()->mistakes == 0);
        return;
    }
    RANK_CHECK(ranks, status == 0 && be.device.kind == BACKEND_CUDA);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    gpu_array_load(&be, 0, &a, ranks->rank, 0);
    collectives_reduce_scatter(be.collectives, a.device, a.dtype, a.count);
    collectives_wait(be.collectives, collectives_all_gather(be.collectives, a.device, 4, a.count));
    gpu_array_read(&be, &a);
    gpu_array_check_all(ranks, &a, 0);
    gpu_array_free(&be, &a);
    gpu_rank_close(&be, ranks);
}

Test(nccl, each_rank_takes_a_gpu_of_its_own) {
    static const struct place places[] = {
        {"3", {NULL, NULL, NULL}, DEVICE_CUDA, NULL},
        {"5", {NULL, NULL, NULL}, DEVICE_AUTO, NULL},
        {"3", {"0", "1", "2"}, DEVICE_CUDA, NULL}, /* one each */
        {"3", {"2", "0", "1"}, DEVICE_AUTO, NULL},
        {"6", {"0,1", "2,3", "4,5"}, DEVICE_CUDA, NULL}, /* several each */
        {"3", {"2,1,0", "2,1,0", "2,1,0"}, DEVICE_CUDA, NULL},
        {"2",
         {NULL, NULL, NULL},
         DEVICE_CUDA,
         "ranks 0 and 2 would share a GPU: there are 3 "
         "ranks on that machine, and rank 2 sees 2 GPUs"},
        {"1",
         {NULL, NULL, NULL},
         DEVICE_AUTO,
         "ranks 0 and 1 would share a GPU: there are 3 "
         "ranks on that machine, and rank 1 sees 1 GPU;"},
        {"3", {"0", "1", "1"}, DEVICE_CUDA, "ranks 1 and 2 would share a GPU"},
        {"3", {"0", "1", ""}, DEVICE_CUDA, "rank 2: device \"cuda\": there is no GPU here"},
        {"3", {"", "1", "2"}, DEVICE_AUTO, "device \"cuda\": there is no GPU here"},
        {"0", {NULL, NULL, NULL}, DEVICE_CUDA, "device \"cuda\": there is no GPU here"},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        cr_assert_eq(forked_ranks(3, open_in, &places[i]), 0, "place %d", (int)i);
}

/* Rank 0 cannot begin: all ranks get the error. */
static void no_id(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    struct error error = {""};
    setenv("CUDA_EMULATOR_DEVICES", "2", 1);
    fake_nccl_fail("ncclGetUniqueId", 1, INVALID_ARGUMENT);
    RANK_CHECK(ranks, gpu_rank_try(&be, ranks, DEVICE_CUDA, &error) == -1);
    RANK_CHECK(ranks, strstr(error.text, "NCCL: opening: invalid argument") != NULL);
}

Test(nccl, opening_fails_on_all) {
    cr_assert_eq(forked_ranks(2, no_id, NULL), 0);
}

/* A rank that cannot connect fails alone and ends all, because nothing can interrupt the others
 * in NCCL. */
static void no_connection(const struct ranks *ranks, const void *given) {
    (void)given;
    struct backend be;
    struct error error = {""};
    setenv("CUDA_EMULATOR_DEVICES", "2", 1);
    freopen("/dev/null", "w", stderr);
    fake_nccl_patience(0.5);
    if (ranks->rank == 1) fake_nccl_fail("ncclCommInitRank", 1, SYSTEM_ERROR);
    if (gpu_rank_try(&be, ranks, DEVICE_CUDA, &error)) ranks_abort(ranks, 1);
}

Test(nccl, a_rank_that_cannot_connect_ends_all) {
    cr_assert_eq(forked_ranks(2, no_connection, NULL), 2);
}

/* The memory of connections is taken before the plan; if the user connects late, the plan reserves
 * it. NCCL's stream has priority. */
static void connect(const struct ranks *ranks, const void *given) {
    const char *chosen = given;
    struct backend be;
    if (chosen) setenv("NCCL_RUNTIME_CONNECT", chosen, 1);
    else unsetenv("NCCL_RUNTIME_CONNECT");
    bool late = chosen && strcmp(chosen, "0") != 0;
    gpu_rank_open(&be, ranks);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 1000);
    size_t before = backend_available(&be);
    collectives_wait(be.collectives, collectives_all_gather(be.collectives, a.device, 4, a.count));
    gpu_array_read(&be, &a);
    size_t taken = before - backend_available(&be);
    RANK_CHECK(ranks, taken == (late ? FAKE_NCCL_CONNECTION : 0));
    RANK_CHECK(ranks, taken <= be.device.library_bytes);
    RANK_CHECK(ranks, fake_nccl_counts()->connected_late == late);
    RANK_CHECK(ranks, (be.device.library_bytes > (size_t)512 << 20) == late);
    RANK_CHECK(ranks, fake_nccl_counts()->priority < 0);
    gpu_array_free(&be, &a);
    gpu_rank_close(&be, ranks);
}

Test(nccl, connections_are_in_the_memory_plan) {
    for (int i = 0; i < 3; i++)
        cr_assert_eq(forked_ranks(2, connect, (const char *[]){NULL, "0", "1"}[i]), 0);
}

/* Transfers occupy few multiprocessors, and matmuls are chosen for the others. The emulated GPU has
 * 4, half of which are left. `given` is the number of machines. */
static void multiply(const struct ranks *ranks, const void *given) {
    struct ranks own = *ranks;
    struct backend be;
    own.local_size = ranks->size / *(const int *)given;
    gpu_rank_open(&be, &own);
    struct gpu_array a = gpu_array_make(&be, DTYPE_F32, 64 * 64);
    const struct tensor matrix = {a.device, DTYPE_F32, 2, {64, 64}};
    struct gpu_array out = gpu_array_make(&be, DTYPE_F32, 64 * 64);
    const struct tensor product = {out.device, DTYPE_F32, 2, {64, 64}};
    const int blocks = ranks->size == 1 ? 0 : own.local_size == ranks->size ? 8 : 16;
    backend_plan_begin(&be);
    OP(&be, matmul, .out = &product, .a = &matrix, .b = &matrix);
    RANK_CHECK(ranks, backend_plan_end(&be, &(struct error){""}) == 0);
    gpu_array_load(&be, 0, &a, ranks->rank, 0);
    OP(&be, matmul, .out = &product, .a = &matrix, .b = &matrix);
    gpu_array_read(&be, &out);
    RANK_CHECK(ranks, fake_nccl_counts()->most_blocks == blocks);
    RANK_CHECK(ranks, fake_cublaslt_counts()->target == (blocks ? 2 : 0));
    gpu_array_free(&be, &a);
    gpu_array_free(&be, &out);
    gpu_rank_close(&be, &own);
}

Test(nccl, matmuls_leave_multiprocessors_to_transfers) {
    cr_assert_eq(forked_ranks(1, multiply, &(int){1}), 0);
    cr_assert_eq(forked_ranks(2, multiply, &(int){1}), 0);
    cr_assert_eq(forked_ranks(2, multiply, &(int){2}), 0);
}

/* The user's choice of an algorithm is respected. */
static void algorithm(const struct ranks *ranks, const void *given) {
    const char *chosen = given;
    struct backend be;
    if (chosen) setenv("NCCL_ALGO", chosen, 1);
    else unsetenv("NCCL_ALGO");
    gpu_rank_open(&be, ranks);
    RANK_CHECK(ranks, strcmp(getenv("NCCL_ALGO"), chosen ? chosen : "Ring") == 0);
    gpu_rank_close(&be, ranks);
}

Test(nccl, algorithm_is_fixed) {
    cr_assert_eq(forked_ranks(2, algorithm, NULL), 0);
    cr_assert_eq(forked_ranks(2, algorithm, "Tree"), 0);
}

#else
typedef int nothing_to_test;
#endif
