/* One rank opens the NCCL that is here and sends its own sums to itself: the only use of the real
 * library that a machine with one GPU allows. */
#ifdef WITH_CUDA
#include "kernels/comm/nccl.h"

#include <criterion/criterion.h>
#include <string.h>

#include "kernels/collectives.h"
#include "kernels/open/backend_open.h"
#include "test/device.h"

enum { COUNT = 1000 };

Test(nccl_one_rank, keeps_what_it_adds_and_gathers) {
    struct backend_options options = {.device = test_device()};
    struct backend be;
    struct error error = {""};
    float sent[COUNT], got[COUNT];
    if (options.device == DEVICE_CPU) cr_skip_test("NCCL is for GPUs");
    cr_assert_eq(backend_open(&be, &options, &error), 0, "%s", error.text);
    if (nccl_collectives_open(&be, &ranks_alone, &error)) {
        backend_close(&be);
        cr_skip_test("%s", error.text); /* no libnccl, or none when built */
    }
    float *data = backend_allocate(&be, sizeof sent);
    for (int i = 0; i < COUNT; i++) sent[i] = (float)i - 0.5f;
    backend_send(&be, 0, data, sent, sizeof sent);
    uint64_t ticket = collectives_reduce_scatter(be.collectives, data, DTYPE_F32, COUNT);
    collectives_wait(be.collectives, ticket);
    ticket = collectives_all_gather(be.collectives, data, sizeof *data, COUNT);
    collectives_wait(be.collectives, ticket);
    backend_fetch(&be, 0, got, data, sizeof got);
    backend_fetched(&be, 0);
    cr_assert(memcmp(got, sent, sizeof sent) == 0);
    cr_assert(strncmp(be.collectives->description, "NCCL 2.", 7) == 0);
    backend_release(&be, data);
    backend_close(&be);
    cr_assert(be.failure.text[0] == 0, "%s", be.failure.text);
}
#endif
