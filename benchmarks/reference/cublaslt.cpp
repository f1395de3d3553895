// Products of row-major matrices by cuBLASLt, by any of the algorithms that its heuristics propose. For ctypes:
// benchmarks/cublaslt.py builds and calls it. Functions return null or a status other than 0 on a failure.

#include <cstdint>
#include <cstring>
#include <vector>

#include <cublasLt.h>

namespace {

struct Format {
    const char *name;
    cudaDataType_t operand, result, scale;
    cublasComputeType_t compute;
};

const Format FORMATS[] = {
    {"bf16", CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"f16", CUDA_R_16F, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"f32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"tf32", CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
    {"e4m3", CUDA_R_8F_E4M3, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F},
    {"i8", CUDA_R_8I, CUDA_R_32I, CUDA_R_32I, CUBLAS_COMPUTE_32I},
};

struct Product {
    cublasLtMatmulDesc_t operation = nullptr;
    cublasLtMatrixLayout_t first = nullptr, second = nullptr, result = nullptr;
    std::vector<cublasLtMatmulHeuristicResult_t> proposed;
    size_t workspace = 0;
    float one = 1, zero = 0;
    int32_t whole = 1, nothing = 0;
    bool integers = false;
};

// The library, or null.
cublasLtHandle_t library() {
    static cublasLtHandle_t handle = nullptr;
    if (!handle && cublasLtCreate(&handle)) handle = nullptr;
    return handle;
}

// A matrix of rows x columns by columns, which is one of columns x rows in row order.
bool describe(cublasLtMatrixLayout_t *layout, cudaDataType_t type, int64_t rows, int64_t columns, int batch) {
    int64_t step = rows * columns;
    return !cublasLtMatrixLayoutCreate(layout, type, rows, columns, rows) &&
           !cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) &&
           !cublasLtMatrixLayoutSetAttribute(
               *layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step);
}

template <class T> bool set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
    return !cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof value);
}

// cuBLASLt multiplies matrices by columns, so it computes C^T = B^T A^T: B comes first.
bool open(Product &p, const Format &f, int64_t m, int64_t n, int64_t k, int batch, bool a_transposed, bool b_transposed,
          int asked) {
    p.integers = f.scale == CUDA_R_32I;
    if (!library() || cublasLtMatmulDescCreate(&p.operation, f.compute, f.scale)) return false;
    auto of_b = b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, of_a = a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (!set(p.operation, CUBLASLT_MATMUL_DESC_TRANSA, of_b) || !set(p.operation, CUBLASLT_MATMUL_DESC_TRANSB, of_a))
        return false;
    if (f.operand == CUDA_R_8F_E4M3 && !set<int8_t>(p.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1)) return false;
    if (!describe(&p.first, f.operand, b_transposed ? k : n, b_transposed ? n : k, batch) ||
        !describe(&p.second, f.operand, a_transposed ? m : k, a_transposed ? k : m, batch) ||
        !describe(&p.result, f.result, n, m, batch))
        return false;

    cublasLtMatmulPreference_t preference;
    if (cublasLtMatmulPreferenceCreate(&preference)) return false;
    // Partial sums stay in f32, as a kernel's do, and as torch is told to keep them.
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int count = 0;
    p.proposed.resize(asked);
    bool found =
        !cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p.workspace, sizeof p.workspace) &&
        !cublasLtMatmulPreferenceSetAttribute(
            preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions) &&
        !cublasLtMatmulAlgoGetHeuristic(library(), p.operation, p.first, p.second, p.result, p.result, preference,
                                        asked, p.proposed.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    p.proposed.resize(found ? count : 0);
    return found;
}

}  // namespace

extern "C" void lt_close(Product *p) {
    if (p->first) cublasLtMatrixLayoutDestroy(p->first);
    if (p->second) cublasLtMatrixLayoutDestroy(p->second);
    if (p->result) cublasLtMatrixLayoutDestroy(p->result);
    if (p->operation) cublasLtMatmulDescDestroy(p->operation);
    delete p;
}

// C = A B, `batch` times. a_transposed: A is stored as [k, m], not [m, k]; b_transposed: B as [n, k]. asked: how many
// algorithms, each with up to `workspace` bytes; *count: how many there are. Null if cuBLASLt takes no such product.
extern "C" Product *lt_open(const char *format, int64_t m, int64_t n, int64_t k, int batch, int a_transposed,
                            int b_transposed, size_t workspace, int asked, int *count) {
    for (const Format &f : FORMATS) {
        if (std::strcmp(f.name, format)) continue;
        auto *p = new Product;
        p->workspace = workspace;
        if (open(*p, f, m, n, k, batch, a_transposed, b_transposed, asked)) {
            *count = int(p->proposed.size());
            return p;
        }
        lt_close(p);
    }
    return nullptr;
}

// Enqueue the product by the algorithm of this number.
extern "C" int lt_run(const Product *p, int number, const void *a, const void *b, void *c, void *workspace,
                      cudaStream_t stream) {
    const void *alpha = &p->one, *beta = &p->zero;
    if (p->integers) alpha = &p->whole, beta = &p->nothing;
    return cublasLtMatmul(library(), p->operation, alpha, b, p->first, a, p->second, beta, c, p->result, c, p->result,
                          &p->proposed[number].algo, workspace, p->workspace, stream);
}
