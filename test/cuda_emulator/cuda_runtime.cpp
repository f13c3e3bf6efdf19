/* Remaining runtime API: errors and the device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test/cuda_emulator/fibers.h"
#include "test/cuda_emulator/limits.h"

namespace emu {

cudaError_t last_error;
static bool quiet;
static int device_set;

static int first_capability() {
    const char *asked = getenv("CUDA_EMULATOR_SM");
    return asked ? atoi(asked) : 90;
}
static int sm = first_capability();

cudaError_t runtime_error(cudaError_t error, const char *what) {
    if (!quiet) fprintf(stderr, "cuda_emulator: %s\n", what);
    last_error = error;
    return error;
}

bool must_fail(const char *call) {
    static const char *const wanted = getenv("CUDA_EMULATOR_FAIL");
    static long left = wanted && strchr(wanted, ':') ? atol(strchr(wanted, ':') + 1) : 0;
    size_t length = strlen(call);
    if (!wanted || strncmp(wanted, call, length) != 0 || wanted[length] != ':') return false;
    return --left == 0;
}

/* ---- several devices, see control.h */

enum { DEVICES_MAX = 64 };

static int machine_devices() {
    const char *count = getenv("CUDA_EMULATOR_DEVICES");
    int devices = count ? atoi(count) : 1;
    return devices < DEVICES_MAX ? devices : DEVICES_MAX;
}

/* Fills in the machine's number of each device that this process can see. Returns how many. */
static int visible_devices(int numbers[DEVICES_MAX]) {
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0, all = machine_devices();
    for (int i = 0; i < all && !list; i++) numbers[count++] = i;
    while (list && *list && count < DEVICES_MAX) {
        char *end;
        long number = strtol(list, &end, 10);
        if (end == list || number < 0 || number >= all)
            break; /* like CUDA, stop at the first invalid entry */
        numbers[count++] = (int)number;
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

/* Error that the test has chosen for this call. */
static cudaError_t broken(bool selecting) {
    const char *wanted = getenv("CUDA_EMULATOR_BROKEN");
    cudaError_t error = wanted ? (cudaError_t)atoi(wanted) : cudaSuccess;
    return selecting == (error == cudaErrorDevicesUnavailable) ? error : cudaSuccess;
}

static int driver_version() {
    const char *wanted = getenv("CUDA_EMULATOR_DRIVER");
    return wanted ? atoi(wanted) : CUDART_VERSION;
}

int current_device() {
    return device_set;
}

int capability() {
    return sm;
}

/* Makes every allocation accessible, because a library does not say what it will touch. */
void work_begin(cudaStream_t stream) {
    stream_turn(stream);
    stream_enter(stream);
    device_open(true);
}

void inputs_begin(cudaStream_t stream, const void *from, size_t bytes) {
    stream_inputs(stream, from, bytes);
    stream_enter(stream);
    device_open(true);
}

void work_end() {
    device_open(false);
    stream_leave();
}

void device_access(bool on) {
    if (on) streams_turn();
    device_open(on);
}

static const struct {
    cudaError_t error;
    const char *name, *text;
} error_texts[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

} // namespace emu

using namespace emu;

void cuda_emulator_capability(int capability) {
    emu::sm = capability;
}
void cuda_emulator_quiet(int on) {
    quiet = on != 0;
}

extern "C" {

/* ---- errors */

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void) {
    return last_error;
}

const char *cudaGetErrorName(cudaError_t error) {
    for (const auto &known : error_texts)
        if (known.error == error) return known.name;
    return "cudaErrorUnknown";
}

/* The emulator's message is more precise than CUDA's. */
const char *cudaGetErrorString(cudaError_t error) {
    if ((error == cudaErrorLaunchFailure || error == cudaErrorInvalidConfiguration ||
         error == cudaErrorInvalidValue) &&
        *cuda_emulator_failure())
        return cuda_emulator_failure();
    for (const auto &known : error_texts)
        if (known.error == error) return known.text;
    return "CUDA error (emulated)";
}

/* ---- the device */

cudaError_t cudaGetDeviceCount(int *count) {
    int numbers[DEVICES_MAX];
    *count = 0;
    cudaError_t error = broken(false);
    if (driver_version() / 1000 < CUDART_VERSION / 1000) error = cudaErrorInsufficientDriver;
    if (error == cudaSuccess) {
        *count = visible_devices(numbers);
        if (*count == 0) error = cudaErrorNoDevice;
    }
    if (error != cudaSuccess) last_error = error;
    return error;
}

cudaError_t cudaSetDevice(int device) {
    int numbers[DEVICES_MAX];
    if (device < 0 || device >= visible_devices(numbers))
        return runtime_error(cudaErrorInvalidDevice, "cudaSetDevice");
    if (broken(true) != cudaSuccess) return last_error = broken(true);
    device_set = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device) {
    *device = device_set;
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *version) {
    *version = driver_version();
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int device) {
    int numbers[DEVICES_MAX];
    memset(p, 0, sizeof *p);
    if (device < 0 || device >= visible_devices(numbers))
        return runtime_error(cudaErrorInvalidDevice, "cudaGetDeviceProperties");
    strcpy(p->name, "CUDA emulator");
    p->pciBusID = numbers[device];
    snprintf(p->uuid.bytes, sizeof p->uuid.bytes, "emulated GPU %d", numbers[device]);
    size_t free_bytes;
    cudaMemGetInfo(&free_bytes, &p->totalGlobalMem);
    p->major = emu::capability() / 10;
    p->minor = emu::capability() % 10;
    p->multiProcessorCount = MULTIPROCESSORS;
    p->warpSize = LANES;
    p->maxThreadsPerBlock = MAX_THREADS;
    p->maxThreadsPerMultiProcessor = threads_per_multiprocessor();
    p->maxBlocksPerMultiProcessor = BLOCKS_PER_MULTIPROCESSOR;
    p->regsPerBlock = p->regsPerMultiprocessor = REGISTERS;
    p->sharedMemPerBlock = SHARED_DEFAULT;
    p->sharedMemPerBlockOptin = shared_per_block();
    p->sharedMemPerMultiprocessor = shared_per_multiprocessor();
    p->reservedSharedMemPerBlock = SHARED_RESERVED;
    p->l2CacheSize = 50 << 20;
    p->memoryBusWidth = 5120;
    int sizes[3] = {MAX_THREADS, MAX_THREADS, 64}, grid[3] = {0x7fffffff, 65535, 65535};
    memcpy(p->maxThreadsDim, sizes, sizeof sizes);
    memcpy(p->maxGridSize, grid, sizeof grid);
    return cudaSuccess;
}

/* No machine has this domain, so the host's own devices are not found by it. */
cudaError_t cudaDeviceGetPCIBusId(char *id, int length, int device) {
    int numbers[DEVICES_MAX];
    if (device < 0 || device >= visible_devices(numbers))
        return runtime_error(cudaErrorInvalidDevice, "cudaDeviceGetPCIBusId");
    snprintf(id, (size_t)length, "FFFF:%02X:00.0", (unsigned)numbers[device]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    cudaGetDeviceProperties(&p, device);
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
        *value = (int)p.sharedMemPerMultiprocessor;
        break;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
    default: return runtime_error(cudaErrorInvalidValue, "cudaDeviceGetAttribute: not emulated");
    }
    return cudaSuccess;
}

} // extern "C"
