/* Support check of Hopper's attention kernels, and the tensor maps they read. */
#include "kernels/cuda/attention/attention_wgmma.h"

typedef CUresult (*encode_function)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                    const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                    const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                    CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

bool attention_wgmma_supports(struct cuda_state *cuda, enum dtype dtype, int64_t width) {
    if (cuda->without_wgmma || cuda->major != 9 || cuda->minor != 0) return false;
    if (dtype == DTYPE_F32 || (width != 64 && width != 128 && width != 256)) return false;
    if (!cuda->looked_for_encode && attention_wgmma_compiled())
        cuda->encode_tensor_map = cuda_driver_function("cuTensorMapEncodeTiled");
    cuda->looked_for_encode = true;
    return cuda->encode_tensor_map != NULL;
}

static bool encode(struct backend *be, CUtensorMap *map, CUtensorMapDataType type, void *data,
                   const cuuint64_t sizes[4], const cuuint64_t strides[3], const cuuint32_t box[4],
                   CUtensorMapSwizzle swizzle) {
    cuuint32_t steps[4] = {1, 1, 1, 1};
    CUresult result = ((encode_function)cuda_state(be)->encode_tensor_map)(
        map, type, 4, data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) cuda_failed(be, cudaErrorInvalidValue, "attention's tensor map");
    return result == CUDA_SUCCESS;
}

bool attention_wgmma_map(CUtensorMap *map, struct backend *be, const struct tensor *of, int heads,
                         const struct attention_shape *shape) {
    cuuint64_t width = (cuuint64_t)shape->width, row = width * (cuuint64_t)heads * 2;
    cuuint64_t length = (cuuint64_t)shape->sequence;
    cuuint64_t sizes[4] = {width, (cuuint64_t)heads, length, (cuuint64_t)shape->batch};
    cuuint64_t strides[3] = {width * 2, row, length * row};
    cuuint32_t box[4] = {TILE_VALUES, 1, GROUP_ROWS, 1};
    CUtensorMapDataType type =
        of->dtype == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    return encode(be, map, type, of->data, sizes, strides, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

bool attention_wgmma_map_floats(CUtensorMap *map, struct backend *be, const float *data,
                                int columns, int64_t rows, int64_t heads, int64_t batch) {
    cuuint64_t row = (cuuint64_t)columns * sizeof(float), length = (cuuint64_t)rows;
    cuuint64_t sizes[4] = {(cuuint64_t)columns, length, (cuuint64_t)heads, (cuuint64_t)batch};
    cuuint64_t strides[3] = {row, row * length, row * length * (cuuint64_t)heads};
    cuuint32_t box[4] = {(cuuint32_t)columns, 1, 1, 1};
    return encode(be, map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, (void *)data, sizes, strides, box,
                  CU_TENSOR_MAP_SWIZZLE_NONE);
}
