
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/matmul/matmul_blocks.h"
#include "kernels/cuda/matmul/matmul_plan.h"
extern "C" {
#include "data/util/host_memory.h"
#include "kernels/collectives.h"
#include "kernels/cuda/backend/cuda_backend.h"
}

#define X(name)
#define S(name)                                                                   \
    static void plan_##name(struct backend *be, const struct name##_args *args) { \
        backend_workspace(be, cuda_##name##_scratch(be, args));                   \
    }
OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S

static const struct operations run_operations = {
#define X(name) cuda_##name,
    OPERATIONS(X)
#undef X
};

static const struct operations plan_operations = {
#define X(name) none_##name,
#define S(name) plan_##name,
    OPERATIONS_BY_SCRATCH(X, S)
#undef X
#undef S
};

bool cuda_failed(struct backend *be, cudaError_t status, const char *what) {
    if (status == cudaErrorMemoryAllocation && !be->failure.text[0])
        fail(&be->failure,
             "CUDA: %s: out of memory\nthe GPU has no memory left for kernels that are loaded "
             "when they are first used: lower train.micro_batch_size (and raise "
             "train.grad_accum_steps), or end other programs on this GPU (nvidia-smi lists them)",
             what);
    if (status != cudaSuccess && !be->failure.text[0])
        fail(&be->failure, "CUDA: %s: %s", what, cudaGetErrorString(status));
    return be->failure.text[0] != 0;
}

void *cuda_driver_function(const char *name) {
    void *found = NULL;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    cudaError_t status =
        cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
    cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
    if (status == cudaSuccess && result == cudaDriverEntryPointSuccess) return found;
    cudaGetLastError();
    return NULL;
}

bool cuda_shared(struct backend *be, const void *kernel, size_t bytes, const char *what) {
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (status == cudaSuccess)
        status = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                      cudaSharedmemCarveoutMaxShared);
    return !cuda_failed(be, status, what);
}

void cuda_launched(struct backend *be, const char *what) {
    cuda_failed(be, cudaGetLastError(), what);
}

/* ---- memory */

static size_t cuda_available(struct backend *be) {
    size_t free_bytes = 0, total = 0;
    cuda_failed(be, cudaMemGetInfo(&free_bytes, &total), "asking for free memory");
    return free_bytes;
}

/* Memory is allocated before step 0 only, so the query after each allocation costs little. */
static void *cuda_allocate(struct backend *be, size_t bytes) {
    struct cuda_state *cuda = cuda_state(be);
    void *memory = NULL;
    if (cudaMalloc(&memory, bytes ? bytes : 1) != cudaSuccess) {
        cudaGetLastError(); /* the caller reports it */
        return NULL;
    }
    size_t left = cuda_available(be), used = 0;
    if (left < cuda->free_at_open) used = cuda->free_at_open - left;
    if (used > cuda->peak_bytes) cuda->peak_bytes = used;
    return memory;
}

static size_t cuda_peak_bytes(struct backend *be) {
    return cuda_state(be)->peak_bytes;
}

static void cuda_release(struct backend *be, void *memory) {
    cuda_state(be)->releases++;
    cudaFree(memory);
}

/* ---- waiting */

/* Waits for an event of the compute stream. With several ranks it polls for their failures too,
 * since an operation whose neighbour has died never ends: returns false then, with be->failure
 * set. */
static bool await(struct backend *be, cudaEvent_t event, const char *what) {
    enum { POLL_US = 50, FAILURE_POLLS = 1000 }; /* 50 ms between polls for failures */
    const struct timespec pause = {0, POLL_US * 1000};
    const struct collectives *c = be->collectives;
    if (!c || c->ranks->size == 1) return !cuda_failed(be, cudaEventSynchronize(event), what);
    cudaError_t status = cudaEventQuery(event);
    for (int i = 0; status == cudaErrorNotReady; i++) {
        cudaGetLastError(); /* not an error, but recorded as one by the runtime */
        if (i % FAILURE_POLLS == 0 && collectives_failed(c)) return false;
        nanosleep(&pause, NULL);
        status = cudaEventQuery(event);
    }
    return !cuda_failed(be, status, what);
}

/* Waits for the operations called before. */
static bool await_compute(struct backend *be, const char *what) {
    struct cuda_state *cuda = cuda_state(be);
    cuda_failed(be, cudaEventRecord(cuda->settled, cuda->compute), what);
    return await(be, cuda->settled, what);
}

/* A copy from or to memory that is not pinned waits within the runtime, where nothing polls, so
 * several ranks wait before. */
static void copy_and_wait(struct backend *be, void *to, const void *from, size_t bytes,
                          const char *what) {
    struct cuda_state *cuda = cuda_state(be);
    bool several = be->collectives && be->collectives->ranks->size > 1;
    if (several && !await_compute(be, what)) return;
    cuda_failed(be, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, cuda->compute), what);
    await_compute(be, what);
}

/* Optimizer state may be in pinned host memory, so cudaMemcpyDefault infers the direction. */
static void cuda_upload(struct backend *be, void *to, const void *host, size_t bytes) {
    copy_and_wait(be, to, host, bytes, "copying to the device");
}

static void cuda_download(struct backend *be, void *host, const void *from, size_t bytes) {
    copy_and_wait(be, host, from, bytes, "copying from the device");
}

/* Buffers of batches and results are below this size: every run needs them. */
static const size_t LARGE_PIN = (size_t)64 << 20;

/* The system cannot swap or move pinned memory, so some must stay free. Each rank of this machine
 * may pin an equal share of what was free before any did. */
static bool may_pin(const struct cuda_state *cuda, size_t bytes) {
    size_t share = cuda->may_pin / (size_t)cuda->ranks_here;
    size_t left = share > cuda->pinned_bytes ? share - cuda->pinned_bytes : 0;
    return bytes < LARGE_PIN || (bytes <= left && bytes <= host_memory_pinnable());
}

/* Allocates pinned memory. With unified addressing, which all 64-bit systems have, it is mapped:
 * kernels access it over the link by the same pointer. */
static void *cuda_host_allocate(struct backend *be, size_t bytes) {
    struct cuda_state *cuda = cuda_state(be);
    void *memory = NULL;
    if (!may_pin(cuda, bytes)) return NULL;
    if (cudaMallocHost(&memory, bytes ? bytes : 1) == cudaSuccess) {
        int free_pin = 0;
        while (free_pin < CUDA_PINS && cuda->pins[free_pin].memory) free_pin++;
        if (bytes >= LARGE_PIN) cuda->pinned_bytes += bytes;
        if (bytes >= LARGE_PIN && free_pin < CUDA_PINS)
            cuda->pins[free_pin].memory = memory, cuda->pins[free_pin].bytes = bytes;
        return memory;
    }
    cudaGetLastError();
    return NULL;
}

static void cuda_host_release(struct backend *be, void *memory) {
    struct cuda_state *cuda = cuda_state(be);
    await_compute(be, "waiting for the device");
    cuda->releases++;
    cudaFreeHost(memory);
    for (int i = 0; memory && i < CUDA_PINS; i++) {
        if (cuda->pins[i].memory != memory) continue;
        cuda->pinned_bytes -= cuda->pins[i].bytes;
        cuda->pins[i].memory = NULL;
    }
}

/* ---- transfers during a step, on a stream of their own, without waiting */

/* The last readers of this slot's memory were queued before the other slot was sent, so the copy
 * waits for that event. Waiting for all work queued so far would serialize copy and compute. */
static void cuda_send(struct backend *be, int slot, void *to, const void *host, size_t bytes) {
    struct cuda_state *cuda = cuda_state(be);
    const char *what = "sending a batch";
    int other = 1 - slot;
    cuda_failed(be, cudaStreamWaitEvent(cuda->copy, cuda->begun[other], 0), what);
    cuda_failed(be, cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, cuda->copy), what);
    cuda_failed(be, cudaEventRecord(cuda->sent[slot], cuda->copy), what);
    cuda_failed(be, cudaEventRecord(cuda->begun[slot], cuda->compute), what);
    cuda_failed(be, cudaStreamWaitEvent(cuda->compute, cuda->sent[slot], 0), what);
}

static void cuda_sent(struct backend *be, int slot) {
    await(be, cuda_state(be)->sent[slot], "sending a batch");
}

static void cuda_fetch(struct backend *be, int slot, void *host, const void *from, size_t bytes) {
    struct cuda_state *cuda = cuda_state(be);
    const char *what = "fetching the state of a step";
    cuda_failed(be, cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, cuda->compute),
                what);
    cuda_failed(be, cudaEventRecord(cuda->fetched[slot], cuda->compute), what);
}

static void cuda_fetched(struct backend *be, int slot) {
    await(be, cuda_state(be)->fetched[slot], "fetching the state of a step");
}

/* ---- copies in lanes, each on a stream of its own: on that of the batches, a batch would wait for
 * the copies of the step before. While a graph is recorded, the first event makes the stream part
 * of the recording, and the wait for the last copy ends that. */

static void cuda_copy(struct backend *be, struct copy_slot slot, void *to, const void *from,
                      size_t bytes) {
    struct cuda_state *cuda = cuda_state(be);
    struct cuda_lane *lane = &cuda->lanes[slot.lane];
    const cudaEvent_t begun = lane->begun[slot.slot], copied = lane->copied[slot.slot];
    const char *what = "copying a layer between host and device";
    cuda_failed(be, cudaEventRecord(begun, cuda->compute), what);
    cuda_failed(be, cudaStreamWaitEvent(lane->stream, begun, 0), what);
    cuda_failed(be, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lane->stream), what);
    cuda_failed(be, cudaEventRecord(copied, lane->stream), what);
}

static void cuda_copied(struct backend *be, struct copy_slot slot) {
    struct cuda_state *cuda = cuda_state(be);
    cuda_failed(be, cudaStreamWaitEvent(cuda->compute, cuda->lanes[slot.lane].copied[slot.slot], 0),
                "waiting for a copied layer");
}

/* ---- snapshots of the state, copied during training in pieces, so that a step's fetch waits for
 * one piece at most */

static void cuda_snapshot(struct backend *be, const struct transfer *transfers, int count) {
    const size_t PIECE = (size_t)16 << 20;
    struct cuda_state *cuda = cuda_state(be);
    const char *what = "copying the state for a checkpoint";
    cuda_failed(be, cudaEventRecord(cuda->snapshot_begun, cuda->compute), what);
    cuda_failed(be, cudaStreamWaitEvent(cuda->snapshot, cuda->snapshot_begun, 0), what);
    for (int i = 0; i < count; i++) {
        char *to = (char *)transfers[i].host;
        const char *from = (const char *)transfers[i].from;
        for (size_t at = 0; at < transfers[i].bytes; at += PIECE) {
            size_t left = transfers[i].bytes - at;
            cuda_failed(be,
                        cudaMemcpyAsync(to + at, from + at, left < PIECE ? left : PIECE,
                                        cudaMemcpyDefault, cuda->snapshot),
                        what);
        }
    }
    cuda_failed(be, cudaEventRecord(cuda->snapshot_taken, cuda->snapshot), what);
}

/* Costs nothing if there is no snapshot, or it has been taken. */
static void cuda_snapshot_guard(struct backend *be) {
    struct cuda_state *cuda = cuda_state(be);
    cuda_failed(be, cudaStreamWaitEvent(cuda->compute, cuda->snapshot_taken, 0),
                "waiting for a copy of the state");
}

static bool cuda_snapshot_ready(struct backend *be, bool wait) {
    struct cuda_state *cuda = cuda_state(be);
    const char *what = "copying the state for a checkpoint";
    cudaError_t status = cudaSuccess;
    if (wait) await(be, cuda->snapshot_taken, what);
    else status = cudaEventQuery(cuda->snapshot_taken);
    if (status == cudaErrorNotReady) {
        cudaGetLastError(); /* not an error, but recorded as one by the runtime */
        return false;
    }
    cuda_failed(be, status, what);
    return true;
}

/* ---- opening and closing */

/* Scratch for a chunk of logits is a 64th of the memory. Each chunk reads and writes the gradient
 * of the head once more: 0.3 GB for a 50k vocabulary of 768 in fp32, 0.1 ms on an H100, and adds
 * four launches. Beyond 2 GiB, which hold 20000 rows in 16 bit, larger chunks gain nothing. */
static const size_t CHUNK_SHARE = 64, CHUNK_BYTES_MAX = (size_t)2 << 30;

/* Memory that the driver takes after the plan. Both are reserves, not measurements. A graph has
 * 1000 nodes with 4 KiB of parameters, the most that a kernel documents. Apart from graphs:
 *     128 MiB  machine code of kernels, loaded when they are first launched; all of PyTorch's take
 *              380 MB (its pull request 86509)
 *      32 MiB  rounding of 16 allocations to 2 MiB, the granularity of device memory that
 *              cuMemGetAllocationGranularity documents
 *       9 MiB  heap and printf buffer of kernels: defaults of cudaLimitMallocHeapSize and
 *              cudaLimitPrintfFifoSize
 * nccl.cu adds that of NCCL. */
static const size_t GRAPH_RESERVE = (size_t)4 << 20;
static const size_t CONTEXT_RESERVE = (size_t)(128 + 32 + 9) << 20;

static bool cuda_multiplies_blocks(const struct backend *be, const struct quantize_format *format) {
    return cuda_blocks_mode(cuda_state(be)->major, format, false) != PRODUCT_UNSCALED;
}

static const char *cuda_fallback(const struct backend *be, int index) {
    return cuda_products_fallback(cuda_state(be)->products, index);
}

static void close_lane(struct cuda_lane *lane) {
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        if (lane->begun[slot]) cudaEventDestroy(lane->begun[slot]);
        if (lane->copied[slot]) cudaEventDestroy(lane->copied[slot]);
    }
    if (lane->stream) cudaStreamDestroy(lane->stream);
}

static void cuda_close(struct backend *be) {
    struct cuda_state *cuda = cuda_state(be);
    cuda_graphs_close(cuda);
    if (cuda->products) {
        cuda_matmul_discard_plans(cuda->products);
        cuda_products_close(cuda->products);
    }
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        if (cuda->begun[slot]) cudaEventDestroy(cuda->begun[slot]);
        if (cuda->sent[slot]) cudaEventDestroy(cuda->sent[slot]);
        if (cuda->fetched[slot]) cudaEventDestroy(cuda->fetched[slot]);
    }
    for (int i = 0; i < COPY_LANES; i++) close_lane(&cuda->lanes[i]);
    if (cuda->settled) cudaEventDestroy(cuda->settled);
    if (cuda->snapshot_begun) cudaEventDestroy(cuda->snapshot_begun);
    if (cuda->snapshot_taken) cudaEventDestroy(cuda->snapshot_taken);
    if (cuda->snapshot) cudaStreamDestroy(cuda->snapshot);
    if (cuda->copy) cudaStreamDestroy(cuda->copy);
    if (cuda->compute) cudaStreamDestroy(cuda->compute);
    free(cuda);
}

static void open_lane(struct backend *be, struct cuda_lane *lane, unsigned flags) {
    const char *what = "making streams";
    cuda_failed(be, cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking), what);
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        cuda_failed(be, cudaEventCreateWithFlags(&lane->begun[slot], flags), what);
        cuda_failed(be, cudaEventCreateWithFlags(&lane->copied[slot], flags), what);
    }
}

static void open_streams(struct backend *be) {
    struct cuda_state *cuda = cuda_state(be);
    const char *what = "making streams";
    unsigned flags = cudaEventDisableTiming | cudaEventBlockingSync; /* a waiting host sleeps */
    cuda_failed(be, cudaStreamCreateWithFlags(&cuda->compute, cudaStreamNonBlocking), what);
    cuda_failed(be, cudaStreamCreateWithFlags(&cuda->copy, cudaStreamNonBlocking), what);
    cuda_failed(be, cudaStreamCreateWithFlags(&cuda->snapshot, cudaStreamNonBlocking), what);
    cuda_failed(be, cudaEventCreateWithFlags(&cuda->settled, flags), what);
    cuda_failed(be, cudaEventCreateWithFlags(&cuda->snapshot_begun, flags), what);
    cuda_failed(be, cudaEventCreateWithFlags(&cuda->snapshot_taken, flags), what);
    for (int slot = 0; slot < BACKEND_SLOTS; slot++) {
        cudaEvent_t *events[] = {&cuda->begun[slot], &cuda->sent[slot], &cuda->fetched[slot]};
        for (int i = 0; i < 3; i++)
            cuda_failed(be, cudaEventCreateWithFlags(events[i], flags), what);
    }
    for (int i = 0; i < COPY_LANES; i++) open_lane(be, &cuda->lanes[i], flags);
}

/* True if the machine has no GPU, or no NVIDIA driver. Every other error means that there is one
 * that does not work. */
static bool has_no_gpu(cudaError_t status) {
    int driver = 0;
    if (status == cudaSuccess || status == cudaErrorNoDevice) return true;
    return status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess &&
           driver == 0;
}

/* Returns what to do about an error that the device reports when it is opened. */
static const char *device_remedy(cudaError_t status) {
    switch ((int)status) {
    case cudaErrorInsufficientDriver:
        return "install a newer driver, or rebuild this program with an older CUDA toolkit";
    case cudaErrorSystemNotReady:
        return "start the fabric manager (systemctl start nvidia-fabricmanager) and see that "
               "nvidia-smi -q reports its state as completed";
    case cudaErrorDevicesUnavailable:
        return "another process uses this GPU exclusively (nvidia-smi lists it): end it, or set "
               "nvidia-smi -c DEFAULT, or choose another GPU with CUDA_VISIBLE_DEVICES";
    case cudaErrorMemoryAllocation:
        return "other processes fill this GPU's memory (nvidia-smi lists them): end them, or "
               "choose another GPU with CUDA_VISIBLE_DEVICES";
    case cudaErrorSystemDriverMismatch:
        return "the driver was updated while its module was loaded: restart the machine";
    case cudaErrorStubLibrary: return "remove the toolkit's folder of stubs from LD_LIBRARY_PATH";
    case cudaErrorCompatNotSupportedOnDevice:
        return "remove the cuda-compat package, or its folder from LD_LIBRARY_PATH";
    }
    return "run nvidia-smi; if it fails too, load the driver again (modprobe nvidia-uvm) or "
           "restart the machine";
}

/* Writes the message of a device that cannot be opened. */
static int fail_device(struct error *error, cudaError_t status) {
    int driver = 0;
    char detail[64] = "";
    cudaGetLastError(); /* clears the error */
    if (has_no_gpu(status))
        return fail(error, "device \"cuda\": there is no %s here\nuse --device cpu",
                    status == cudaErrorInsufficientDriver ? "NVIDIA driver" : "GPU");
    if (status == cudaErrorInsufficientDriver && cudaDriverGetVersion(&driver) == cudaSuccess)
        snprintf(detail, sizeof detail, "; it supports CUDA %d.%d, this program needs %d.%d",
                 driver / 1000, driver / 10 % 100, CUDART_VERSION / 1000,
                 CUDART_VERSION / 10 % 100);
    return fail(error,
                "device \"cuda\": there is a GPU, but it cannot be used: error %d (%s): %s%s\n"
                "%s; or use --device cpu",
                (int)status, cudaGetErrorName(status), cudaGetErrorString(status), detail,
                device_remedy(status));
}

/* True if the program has no machine code for the device, nor PTX that its driver compiles. */
static bool lacks_code(cudaError_t status) {
    return status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction ||
           status == cudaErrorInvalidPtx || status == cudaErrorUnsupportedPtxVersion;
}

/* Exists only to check that there is machine code for the device. */
static __global__ void probe_kernel(void) {}

static int find_device(struct backend *be, int gpu, struct error *error) {
    struct cuda_state *cuda = cuda_state(be);
    cudaDeviceProp properties;
    cudaFuncAttributes attributes;
    int devices = 0;
    cudaError_t status = cudaGetDeviceCount(&devices);
    bool found = status == cudaSuccess && devices > 0;
    if (found) status = cudaSetDevice(gpu);
    if (found && status == cudaSuccess) status = cudaGetDeviceProperties(&properties, gpu);
    if (!found || status != cudaSuccess) {
        fail_device(error, status);
        return !found && has_no_gpu(status) ? RESULT_NONE : RESULT_FAILED;
    }
    cuda->major = properties.major;
    cuda->minor = properties.minor;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->shared_bytes = properties.sharedMemPerBlockOptin;
    cuda->memory_bytes = properties.totalGlobalMem;
    be->device.chunk_bytes = properties.totalGlobalMem / CHUNK_SHARE;
    if (be->device.chunk_bytes > CHUNK_BYTES_MAX) be->device.chunk_bytes = CHUNK_BYTES_MAX;
    snprintf(be->device.description, sizeof be->device.description, "%.200s (sm_%d%d, %zu GiB)",
             properties.name, cuda->major, cuda->minor, properties.totalGlobalMem >> 30);
    status = cudaFuncGetAttributes(&attributes, probe_kernel);
    if (status == cudaSuccess) return 0;
    cudaGetLastError();
    if (!lacks_code(status)) {
        fail_device(error, status);
        return RESULT_FAILED;
    }
    return fail(error,
                "device \"cuda\": this program was not built for %s\n"
                "rebuild it with make CUDA_ARCH=%d%d, or use --device cpu",
                be->device.description, cuda->major, cuda->minor);
}

static const struct device_functions cuda_functions = {
    .allocate = cuda_allocate,
    .available = cuda_available,
    .release = cuda_release,
    .upload = cuda_upload,
    .download = cuda_download,
    .host_allocate = cuda_host_allocate,
    .host_release = cuda_host_release,
    .send = cuda_send,
    .sent = cuda_sent,
    .fetch = cuda_fetch,
    .fetched = cuda_fetched,
    .copy = cuda_copy,
    .copied = cuda_copied,
    .snapshot = cuda_snapshot,
    .snapshot_guard = cuda_snapshot_guard,
    .snapshot_ready = cuda_snapshot_ready,
    .graph = cuda_graph_run,
    .peak_bytes = cuda_peak_bytes,
    .multiplies_blocks = cuda_multiplies_blocks,
    .fallback = cuda_fallback,
    .close = cuda_close,
};

static void fill(struct backend *be) {
    struct backend_description *device = &be->device;
    device->kind = BACKEND_CUDA;
    device->name = "cuda";
    device->computes[DTYPE_F32] = device->computes[DTYPE_F16] = device->native[DTYPE_F16] = true;
    device->computes[DTYPE_BF16] = device->native[DTYPE_BF16] = cuda_state(be)->major >= 8;
    device->delta_rule = cuda_state(be)->major >= 8; /* it multiplies in TF32 */
    device->native_8_bit = cuda_has_8_bit(cuda_state(be));
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++)
        device->square_share[dtype] = cuda_square_share((enum dtype)dtype);
    device->steps_ahead = 1;
    device->library_bytes = CONTEXT_RESERVE;
    device->link = 25e9; /* PCI Express 4.0 with 16 lanes, as measured by copies of pinned memory */
    be->functions = &cuda_functions;
    be->op = be->run = &run_operations;
    be->plan = &plan_operations;
}

int cuda_backend_open(struct backend *be, const struct backend_options *options,
                      struct error *error) {
    memset(be, 0, sizeof *be);
    be->state = calloc(1, sizeof(struct cuda_state));
    if (!be->state) return fail_memory(error, "the state of a GPU");
    int failed = find_device(be, options->gpu, error);
    if (!failed) {
        fill(be);
        open_streams(be);
        cuda_state(be)->uses_graphs = options->graphs;
        be->device.graph_bytes = options->graphs ? GRAPH_RESERVE : 0;
        cuda_state(be)->without_wgmma = options->without_wgmma;
        cuda_state(be)->tf32 = options->tf32;
        cuda_state(be)->ranks_here = options->ranks ? options->ranks->local_size : 1;
        cuda_state(be)->may_pin = host_memory_pinnable();
        cuda_state(be)->free_at_open = cuda_available(be);
        failed = be->failure.text[0] ? -1 : 0;
        if (failed) fail(error, "%s", be->failure.text);
    }
    if (!failed) failed = cuda_products_open(be, options, error);
    if (failed) cuda_close(be);
    return failed;
}
