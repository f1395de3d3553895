/* C = A B by a kernel that tiledsl exported: no Python, no CUDA runtime, only the driver.
 *
 *     python -m tiledsl export --gemm 4096x4096x4096 --stored NT -o /tmp/exported
 *     gcc -O2 -Wall -I/tmp/exported -I/usr/local/cuda/include examples/exported_gemm.c -o /tmp/exported_gemm -lcuda
 *     /tmp/exported_gemm /tmp/exported 1000 768 520
 *
 * It takes the first kernel of the export that has tensors A, B and C of bf16 (C also of f32), and no others, and runs
 * on this GPU. M, N and K may be any that this kernel takes: one binary serves all sizes. The operands are small
 * integers, so that the result is known exactly: up to its rounding to bf16, every element has to be equal.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiledsl_export.h"

static void fail(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check(CUresult code, const char *what) {
    const char *text = "an unknown error";
    if (code == CUDA_SUCCESS) return;
    cuGetErrorString(code, &text);
    fprintf(stderr, "%s: %s\n", what, text);
    exit(1);
}

/* -- what any exported kernel needs --------------------------------------------------------------------------------- */

typedef struct {
    CUdeviceptr address;
    int64_t extent[TILEDSL_MOST_RANK], stride[TILEDSL_MOST_RANK]; /* strides in elements */
} tensor;

typedef union {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
} scalar;

static void *read_file(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file) fail("cannot open the cubin: give the folder of the export first");
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *content = malloc((size_t)size + 1);
    if (!content || fread(content, 1, (size_t)size, file) != (size_t)size) fail("cannot read the cubin");
    fclose(file);
    content[size] = 0;
    return content;
}

/* What the kernel was compiled for, of tensors of its own dtypes. */
static void check_tensors(const tiledsl_kernel *kernel, const tensor *given) {
    for (int t = 0; t < kernel->tensor_count; t++) {
        const tiledsl_tensor *of = &kernel->tensors[t];
        int64_t reach = 1;
        int fits = given[t].address % (unsigned)of->alignment == 0;
        for (int axis = 0; axis < of->rank; axis++) {
            int64_t extent = given[t].extent[axis], stride = given[t].stride[axis];
            reach += (extent - 1) * stride;
            if (extent > 1 && axis == of->unit_axis) fits = fits && stride == 1;
            if (extent > 1 && axis != of->unit_axis) fits = fits && stride * of->element_bytes % of->alignment == 0;
            if (of->whole && axis == of->unit_axis) fits = fits && extent * of->element_bytes % of->alignment == 0;
            fits = fits && extent < kernel->most_elements;
        }
        if (!fits || reach >= kernel->most_elements) {
            fprintf(stderr, "%s takes no %s of this shape: rows must be multiples of %d bytes\n", kernel->name, of->name,
                    of->alignment);
            exit(1);
        }
    }
}

static CUfunction load(const tiledsl_kernel *kernel, const char *folder) {
    CUmodule module;
    CUfunction function;
    void *cubin = read_file(folder, kernel->cubin);
    check(cuModuleLoadData(&module, cubin), "loading the cubin");
    free(cubin);
    check(cuModuleGetFunction(&function, module, kernel->entry), "finding the kernel");
    if (kernel->shared_bytes > 48 * 1024) {
        check(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)kernel->shared_bytes),
              "allowing the shared memory");
    }
    return function;
}

/* A tensor map: the address, extents and strides of this launch, and what the kernel needs of its boxes. */
static CUtensorMap encode(const tiledsl_kernel *kernel, const tiledsl_tensor_map *of, const tensor *given) {
    CUtensorMap map;
    cuuint64_t extents[5], strides[5];
    cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    if (of->every != 1) fail("a map of every so many-th row: see docs/export.md, this program has none");
    for (cuuint32_t i = 0; i < of->rank; i++) {
        int64_t extent = given->extent[of->axes[i]], stride = given->stride[of->axes[i]];
        extents[i] = (cuuint64_t)extent;
        if (i == 0) continue; /* its stride is 1 */
        strides[i - 1] = (cuuint64_t)(stride * kernel->tensors[of->tensor].element_bytes);
        if (extent == 1) strides[i - 1] = (cuuint64_t)of->stride_of_extent_1;
    }
    check(cuTensorMapEncodeTiled(&map, of->data_type, of->rank, (void *)given->address, extents, strides, of->box, steps,
                                 of->interleave, of->swizzle, of->l2_promotion, of->fill),
          "describing a tensor to TMA");
    return map;
}

static void launch(const tiledsl_kernel *kernel, CUfunction function, const tensor *given, const scalar *scalars,
                   CUstream stream) {
    enum { MOST = 64 };
    int64_t extents[MOST] = {0}, integers[MOST] = {0}, values[MOST];
    CUtensorMap maps[MOST]; /* its alignment, 64 bytes or more, is the type's */
    void *parameters[MOST];
    if (kernel->parameter_count > MOST) fail("more parameters than this program has room for");
    check_tensors(kernel, given);
    for (int t = 0; t < kernel->tensor_count; t++) {
        for (int axis = 0; axis < kernel->tensors[t].rank; axis++) {
            int dim = kernel->tensors[t].dims[axis];
            if (dim >= 0) extents[dim] = given[t].extent[axis];
        }
    }
    for (int i = 0; i < kernel->scalar_count; i++) integers[i] = scalars[i].i32;
    for (int i = 0; i < kernel->parameter_count; i++) {
        const tiledsl_parameter *p = &kernel->parameters[i];
        parameters[i] = &values[i]; /* little-endian: the low bytes come first */
        switch (p->kind) {
        case TILEDSL_POINTER: values[i] = (int64_t)given[p->of].address; break;
        case TILEDSL_EXTENT: values[i] = extents[p->of]; break;
        case TILEDSL_STRIDE: values[i] = given[p->of].stride[p->axis]; break;
        case TILEDSL_SCALAR: memcpy(&values[i], &scalars[p->of], (size_t)p->bytes); break;
        case TILEDSL_TENSOR_MAP:
            maps[p->of] = encode(kernel, &kernel->maps[p->of], &given[kernel->maps[p->of].tensor]);
            parameters[i] = &maps[p->of];
            break;
        }
    }

    const unsigned *cluster = kernel->cluster, in_cluster = cluster[0] * cluster[1] * cluster[2];
    CUlaunchAttribute attributes[2];
    CUlaunchConfig config = {0};
    memset(attributes, 0, sizeof attributes);
    config.blockDimX = kernel->block[0], config.blockDimY = kernel->block[1], config.blockDimZ = kernel->block[2];
    config.sharedMemBytes = kernel->shared_bytes;
    config.hStream = stream;
    config.attrs = attributes;
    if (in_cluster > 1) {
        CUlaunchAttribute *of = &attributes[config.numAttrs++];
        of->id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        of->value.clusterDim.x = cluster[0], of->value.clusterDim.y = cluster[1], of->value.clusterDim.z = cluster[2];
    }

    int processors;
    CUdevice device;
    check(cuCtxGetDevice(&device), "asking for the device");
    check(cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device), "counting SMs");
    if (kernel->uses_processors && in_cluster > 1) {
        /* The SMs that clusters can use at once: those of a cluster are in one GPC. */
        int clusters;
        config.gridDimX = cluster[0], config.gridDimY = cluster[1], config.gridDimZ = cluster[2];
        check(cuOccupancyMaxActiveClusters(&clusters, function, &config), "counting resident clusters");
        if (clusters * (int)in_cluster < processors) processors = clusters * (int)in_cluster;
    }
    unsigned grid[3];
    kernel->grid(extents, integers, processors, grid);
    config.gridDimX = grid[0], config.gridDimY = grid[1], config.gridDimZ = grid[2];
    if (kernel->programmatic) {
        CUlaunchAttribute *of = &attributes[config.numAttrs++];
        of->id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        of->value.programmaticStreamSerializationAllowed = 1;
    }
    check(cuLaunchKernelEx(&config, function, parameters, NULL), "launching");
}

/* -- this program --------------------------------------------------------------------------------------------------- */

static uint16_t to_bf16(float value) { /* rounds to nearest even */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static int is(const tiledsl_tensor *of, const char *name, const char *dtype) {
    return !strcmp(of->name, name) && !strcmp(of->dtype, dtype);
}

static const tiledsl_kernel *chosen(int major, int minor) {
    for (int i = 0; i < TILEDSL_KERNEL_COUNT; i++) {
        const tiledsl_kernel *kernel = &tiledsl_kernels[i];
        int later = kernel->later_minor_versions && minor >= kernel->capability[1];
        int runs = major == kernel->capability[0] && (minor == kernel->capability[1] || later);
        if (runs && kernel->tensor_count == 3 && is(&kernel->tensors[0], "A", "bf16") &&
            is(&kernel->tensors[1], "B", "bf16") &&
            (is(&kernel->tensors[2], "C", "bf16") || is(&kernel->tensors[2], "C", "f32")))
            return kernel;
    }
    fail("the export has no kernel of A, B and C alone that this GPU runs");
    return NULL;
}

/* A matrix [rows, columns], behind a batch of 1 if the kernel has an axis for it, stored as the kernel wants it. */
static tensor matrix(const tiledsl_tensor *of, int64_t rows, int64_t columns) {
    tensor made = {0};
    int first = of->rank - 2, by_rows = of->unit_axis == of->rank - 1;
    for (int axis = 0; axis < first; axis++) made.extent[axis] = 1, made.stride[axis] = rows * columns;
    made.extent[first] = rows, made.extent[first + 1] = columns;
    made.stride[first] = by_rows ? columns : 1, made.stride[first + 1] = by_rows ? 1 : rows;
    check(cuMemAlloc(&made.address, (size_t)(rows * columns * of->element_bytes)), "allocating");
    return made;
}

static int64_t at(const tensor *of, int rank, int64_t row, int64_t column) {
    return row * of->stride[rank - 2] + column * of->stride[rank - 1];
}

/* An operand of integers from -3 to 3, and the same for the host by rows (or by columns). */
static int *filled(const tensor *of, int rank, int64_t rows, int64_t columns, int transposed) {
    int *values = malloc((size_t)(rows * columns) * sizeof *values);
    uint16_t *stored = malloc((size_t)(rows * columns) * sizeof *stored);
    if (!values || !stored) fail("no memory");
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int value = rand() % 7 - 3;
            values[transposed ? j * rows + i : i * columns + j] = value;
            stored[at(of, rank, i, j)] = to_bf16((float)value);
        }
    }
    check(cuMemcpyHtoD(of->address, stored, (size_t)(rows * columns) * sizeof *stored), "copying");
    free(stored);
    return values;
}

int main(int count, char **words) {
    if (count != 5) fail("usage: exported_gemm FOLDER M N K");
    int64_t m = atoll(words[2]), n = atoll(words[3]), k = atoll(words[4]);
    if (m < 1 || n < 1 || k < 1 || m > 1 << 20 || n > 1 << 20 || k > 1 << 20) fail("M, N and K are 1 to 2^20");

    CUdevice device;
    CUcontext context;
    int major, minor;
    check(cuInit(0), "starting the driver");
    check(cuDeviceGet(&device, 0), "finding GPU 0");
    check(cuDevicePrimaryCtxRetain(&context, device), "making a context");
    check(cuCtxSetCurrent(context), "using the context");
    check(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device), "asking the GPU");
    check(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device), "asking the GPU");

    const tiledsl_kernel *kernel = chosen(major, minor);
    const tiledsl_tensor *declared = kernel->tensors;
    if (declared[2].unit_axis == declared[2].rank - 2) {
        /* Its C is stored by columns: gemm computes a C by rows as the transpose, C^T = B^T A^T, where that is faster. */
        int64_t rows = m;
        m = n, n = rows;
    }
    printf("%s, %u bytes of shared memory, %d tensor maps\n", kernel->name, kernel->shared_bytes, kernel->map_count);
    tensor given[3] = {matrix(&declared[0], m, k), matrix(&declared[1], k, n), matrix(&declared[2], m, n)};
    int *a = filled(&given[0], declared[0].rank, m, k, 0), *b = filled(&given[1], declared[1].rank, k, n, 1);
    scalar scalars[16] = {0};
    for (int i = 0; i < kernel->scalar_count; i++) {
        if (!strcmp(kernel->scalars[i], "alpha")) scalars[i].f32 = 1;
        else if (!strcmp(kernel->scalars[i], "beta")) scalars[i].f32 = 0;
        else scalars[i].i32 = 1; /* groups and parts: one */
    }
    size_t bytes = (size_t)(m * n * declared[2].element_bytes);
    check(cuMemsetD8(given[2].address, 0xff, bytes), "filling C with NaN");
    CUfunction function = load(kernel, words[1]);
    launch(kernel, function, given, scalars, NULL);
    check(cuCtxSynchronize(), "running the kernel");

    void *c = malloc(bytes);
    if (!c) fail("no memory");
    check(cuMemcpyDtoH(c, given[2].address, bytes), "copying");
    int64_t wrong = 0;
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            int32_t sum = 0;
            for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            int64_t place = at(&given[2], declared[2].rank, i, j);
            int right = declared[2].element_bytes == 2 ? ((uint16_t *)c)[place] == to_bf16((float)sum)
                                                       : ((float *)c)[place] == (float)sum;
            if (!right && wrong++ < 3) printf("C[%lld, %lld] is wrong\n", (long long)i, (long long)j);
        }
    }
    CUevent start, end;
    float milliseconds;
    check(cuEventCreate(&start, CU_EVENT_DEFAULT), "timing");
    check(cuEventCreate(&end, CU_EVENT_DEFAULT), "timing");
    check(cuEventRecord(start, NULL), "timing");
    for (int i = 0; i < 100; i++) launch(kernel, function, given, scalars, NULL);
    check(cuEventRecord(end, NULL), "timing");
    check(cuEventSynchronize(end), "timing");
    check(cuEventElapsedTime(&milliseconds, start, end), "timing");
    printf("%s x %s x %s: %lld of %lld elements are wrong; %.2f us a launch, %.0f TFLOP/s\n", words[2], words[3],
           words[4], (long long)wrong, (long long)(m * n), milliseconds * 10,
           2e-9 * (double)m * (double)n * (double)k / (milliseconds / 100));
    return wrong != 0;
}
