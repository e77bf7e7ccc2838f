// double_buffered_smem: two tiles in shared memory, one being read while the other is filled.
//
// With one buffer a step has two barriers: the tile must be complete before it is read, and
// read by all before it is overwritten. With two, the next tile goes into the other buffer and
// one barrier a step does both. The next tile's loads are issued first, but each thread
// still waits for its own before it computes; mending that is the next rung.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: (BN/TN) * (BM/TM) threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
#define PAD 4   // the four stores of a transposed float4 fall into other banks; keeps 16 bytes

#include "vector4.cuh"

__shared__ __align__(16) float As[2][BK][BM + PAD];
__shared__ __align__(16) float Bs[2][BK][BN];

extern "C" __global__ void __launch_bounds__(THREADS)
double_buffered_smem(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                     float *C)
{
    const int tid = threadIdx.x;
    const int tx = tid % TX, ty = tid / TX;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    auto fill = [&](int buffer, int k0) {
#pragma unroll
        for (int n = 0; n < BM * BK / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            const float4 v = load4(A, M, K, row0 + y, k0 + x);
            As[buffer][x + 0][y] = v.x, As[buffer][x + 1][y] = v.y;
            As[buffer][x + 2][y] = v.z, As[buffer][x + 3][y] = v.w;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BN / 4), x = i % (BN / 4) * 4;
            *(float4 *)&Bs[buffer][y][x] = load4(B, K, N, k0 + y, col0 + x);
        }
    };

    float sum[TM][TN] = {};
    fill(0, 0);
    __syncthreads();
    // inner loop: begin
    for (int k0 = 0, current = 0; k0 < K; k0 += BK, current ^= 1) {
        if (k0 + BK < K)
            fill(current ^ 1, k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int p = 0; p < TM; p += 4)
                *(float4 *)&a[p] = *(const float4 *)&As[current][k][p * TY + ty * 4];
#pragma unroll
            for (int q = 0; q < TN; q += 4)
                *(float4 *)&b[q] = *(const float4 *)&Bs[current][k][q * TX + tx * 4];
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += a[i] * b[j];
        }
        __syncthreads();
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            store4(C, M, N, row0 + i / 4 * 4 * TY + ty * 4 + i % 4, col0 + q * TX + tx * 4, alpha,
                   make_float4(sum[i][q], sum[i][q + 1], sum[i][q + 2], sum[i][q + 3]), beta);
}
