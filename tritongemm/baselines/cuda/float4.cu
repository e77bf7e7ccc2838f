// float4: tiles travel from global to shared memory 128 bits at a time.
//
// A warp that moves float4 needs a quarter of the load instructions, and of the address
// arithmetic, for the same bytes. The compute part stays scalar: a thread owns four
// neighbouring results of one row.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN/4 x BM threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define THREADS (BN / 4 * BM)

#include "vector4.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
float4_loads(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int tid = ty * (BN / 4) + tx;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[4] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            *(float4 *)&As[y][x] = load4(A, M, K, row0 + y, k0 + x);
        }
#pragma unroll
        for (int n = 0; n < BK * BN / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BN / 4), x = i % (BN / 4) * 4;
            *(float4 *)&Bs[y][x] = load4(B, K, N, k0 + y, col0 + x);
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BK; ++k)
#pragma unroll
            for (int j = 0; j < 4; ++j)
                sum[j] += As[ty][k] * Bs[k][tx * 4 + j];
        __syncthreads();
    }
    // inner loop: end

    const int row = row0 + ty;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        const int col = col0 + tx * 4 + j;
        if (row < M && col < N) {
            float *c = C + (size_t)row * N + col;
            *c = beta == 0.0f ? alpha * sum[j] : alpha * sum[j] + beta * *c;
        }
    }
}
