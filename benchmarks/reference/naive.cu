// The naive product as a CUDA programmer writes it: examples/gemm/naive.py line by line.
// nvcc -O3 -arch=sm_90a -DTILE=16 -cubin naive.cu

#ifndef TILE
#define TILE 16
#endif

extern "C" __global__ void __launch_bounds__(TILE *TILE)
    naive(const float *__restrict__ A, const float *__restrict__ B, float *__restrict__ C, int M, int N, int K)
{
    int row = blockIdx.y * TILE + threadIdx.y;
    int col = blockIdx.x * TILE + threadIdx.x;
    if (row < M && col < N) {
        float acc = 0;
        for (int k = 0; k < K; k++)
            acc += A[row * K + k] * B[k * N + col];
        C[row * N + col] = acc;
    }
}
