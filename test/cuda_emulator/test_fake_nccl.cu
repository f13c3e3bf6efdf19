/* Several devices, and mistakes that the fake NCCL must report. Sums between ranks are tested
 * through kernels/comm/nccl.h; here a communicator of one rank is enough. */
#ifndef __CUDACC__
#include "test/cuda_emulator/test_emulator.h"

static __global__ void nothing_kernel() {}

void test_devices() {
    int count = 0, device = -1;
    cudaDeviceProp first, second;
    cudaStream_t stream;
    setenv("CUDA_EMULATOR_DEVICES", "4", 1);
    setenv("CUDA_VISIBLE_DEVICES", "3,1", 1);
    CHECK(cudaGetDeviceCount(&count) == cudaSuccess && count == 2);
    CHECK(cudaSetDevice(2) == cudaErrorInvalidDevice);
    cudaGetLastError();
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(cudaGetDevice(&device) == cudaSuccess && device == 1);
    CHECK(cudaGetDeviceProperties(&first, 0) == cudaSuccess && first.pciBusID == 3);
    CHECK(cudaGetDeviceProperties(&second, 1) == cudaSuccess && second.pciBusID == 1);
    CHECK(memcmp(&first.uuid, &second.uuid, sizeof first.uuid) != 0);
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    LAUNCH(nothing_kernel, 1, 32, 0, stream); /* a stream of another device */
    CHECK(cudaGetLastError() == cudaErrorInvalidConfiguration);
    CHECK(strstr(cuda_emulator_failure(), "a stream of another device"));
    CHECK(cudaStreamDestroy(stream) == cudaSuccess);
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK(cudaGetDeviceCount(&count) == cudaErrorNoDevice && count == 0);
    cudaGetLastError();
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("CUDA_EMULATOR_DEVICES");
}

#ifdef WITH_NCCL
#include <nccl.h>

#include "test/cuda_emulator/fake_nccl.h"

/* Each mistake ends its communicator, so each case gets its own. */
struct alone {
    ncclComm_t comm;
    cudaStream_t stream;
    buffer<float> data;
    long mistakes; /* before */
};

enum { ALONE_COUNT = 64 };

static alone open_alone() {
    alone a;
    ncclUniqueId id;
    a.mistakes = fake_nccl_counts()->mistakes;
    CHECK(ncclGetUniqueId(&id) == ncclSuccess);
    CHECK(ncclCommInitRank(&a.comm, 1, id, 0) == ncclSuccess);
    CHECK(cudaStreamCreateWithFlags(&a.stream, cudaStreamNonBlocking) == cudaSuccess);
    a.data = make_buffer<float>(ALONE_COUNT);
    for (int i = 0; i < ALONE_COUNT; i++) a.data.host[i] = (float)i;
    upload(a.data);
    return a;
}

static void close_alone(const alone *a, bool mistaken) {
    CHECK(fake_nccl_counts()->mistakes == a->mistakes + mistaken);
    CHECK(cudaStreamDestroy(a->stream) == cudaSuccess);
    drop(a->data);
    cudaGetLastError();
}

static ncclResult_t gather(const alone *a, float *from, float *to, size_t count,
                           cudaStream_t stream) {
    return ncclAllGather(from, to, count * sizeof(float), ncclInt8, a->comm, stream);
}

static void test_alone() {
    alone a = open_alone();
    float *data = a.data.device;
    CHECK(ncclGroupStart() == ncclSuccess);
    CHECK(ncclReduceScatter(data, data, 32, ncclFloat32, ncclSum, a.comm, a.stream) == ncclSuccess);
    CHECK(ncclReduce(data + 32, data + 32, 32, ncclFloat32, ncclSum, 0, a.comm, a.stream) ==
          ncclSuccess);
    CHECK(ncclGroupEnd() == ncclSuccess);
    if (!SEES_MISSING_WAITS) {
        download(a.data); /* does not wait, so it reads poison */
        for (int i = 0; i < ALONE_COUNT; i++) CHECK(isnan(a.data.host[i]));
    }
    CHECK(cudaStreamSynchronize(a.stream) == cudaSuccess);
    download(a.data);
    for (int i = 0; i < ALONE_COUNT; i++) CHECK(a.data.host[i] == (float)i);
    CHECK(ncclCommDestroy(a.comm) == ncclSuccess);
    close_alone(&a, false);
}

static void test_wrong_calls() {
    alone a = open_alone();
    CHECK(gather(&a, a.data.device, a.data.device + 1, 32, a.stream) == ncclInvalidUsage);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true); /* overlapping out of place */
    a = open_alone();
    CHECK(gather(&a, a.data.device, a.data.device, ALONE_COUNT + 1, a.stream) ==
          ncclInvalidArgument);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true); /* beyond the allocation */
    a = open_alone();
    CHECK(ncclBroadcast(a.data.device, a.data.device, 8, ncclInt8, 1, a.comm, a.stream) ==
          ncclInvalidArgument);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true); /* a root that is no rank */
    a = open_alone();
    CHECK(ncclReduce(a.data.device, a.data.device, 8, ncclFloat32, ncclMax, 0, a.comm, a.stream) ==
          ncclInvalidArgument);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true); /* not a sum */
    long mistakes = fake_nccl_counts()->mistakes;
    CHECK(ncclGroupEnd() == ncclInvalidUsage);
    CHECK(fake_nccl_counts()->mistakes == mistakes + 1);
}

static void test_wrong_device() {
    setenv("CUDA_EMULATOR_DEVICES", "2", 1);
    alone a = open_alone();
    CHECK(cudaSetDevice(1) == cudaSuccess);
    CHECK(gather(&a, a.data.device, a.data.device, 8, a.stream) == ncclInvalidUsage);
    CHECK(cudaSetDevice(0) == cudaSuccess);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true);
    unsetenv("CUDA_EMULATOR_DEVICES");
}

static void test_wrong_ends() {
    alone a = open_alone();
    CHECK(gather(&a, a.data.device, a.data.device, 8, a.stream) == ncclSuccess);
    CHECK(ncclCommDestroy(a.comm) == ncclInvalidUsage);
    close_alone(&a, true); /* while an operation is in flight */
    a = open_alone();
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    CHECK(gather(&a, a.data.device, a.data.device, 8, a.stream) == ncclInvalidArgument);
    close_alone(&a, true); /* used afterwards */
    a = open_alone();
    fake_nccl_fail("ncclAllGather", 1, ncclSystemError);
    CHECK(gather(&a, a.data.device, a.data.device, 8, a.stream) == ncclSystemError);
    CHECK(gather(&a, a.data.device, a.data.device, 8, a.stream) == ncclInvalidUsage);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true); /* used after an error */
}

/* The target of an operation is written before the stream has done it. */
static void test_touched() {
    alone a = open_alone();
    ncclResult_t later;
    CHECK(gather(&a, a.data.device, a.data.device, ALONE_COUNT, a.stream) == ncclSuccess);
    CHECK(cudaMemset(a.data.device + 5, 0, sizeof(float)) == cudaSuccess);
    CHECK(cudaStreamSynchronize(a.stream) == cudaErrorLaunchFailure);
    CHECK(ncclCommGetAsyncError(a.comm, &later) == ncclSuccess && later == ncclInvalidUsage);
    CHECK(ncclCommAbort(a.comm) == ncclSuccess);
    close_alone(&a, true);
}

void test_fake_nccl() {
    fake_nccl_quiet(1);
    test_alone();
    test_wrong_calls();
    test_wrong_device();
    test_wrong_ends();
    if (!SEES_MISSING_WAITS) test_touched();
    CHECK(fake_nccl_counts()->alive == 0);
    fake_nccl_quiet(0);
}
#else
void test_fake_nccl() {}
#endif
#endif
