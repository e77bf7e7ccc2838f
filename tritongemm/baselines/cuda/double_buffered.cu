// double_buffered: two buffers in shared memory and two in registers.
//
// The loads of tile t+1 are issued into registers before tile t is computed, and written to
// shared memory after: the whole computation hides their latency. The same is done one level
// down: the fragments of k+1 are read from shared memory while those of k are multiplied.
//
//   global -> staged registers        (tile t+1, issued first, needed last)
//   shared -> fragments of k+1        (while)
//   fragments of k -> outer product   (the work)
//   staged registers -> shared        (other buffer), barrier, swap
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: (BN/TN) * (BM/TM) threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
// Blocks that an SM should hold: 512 threads of at most 128 registers. sm_100 needs more of them,
// and so do unaligned loads.
#define BLOCKS (ALIGNED && __CUDA_ARCH__ < 1000 && TM * TN <= 64 \
                ? (THREADS < 512 ? 512 / THREADS : 1) : 1)
#define A_LOADS (BM * BK / 4 / THREADS)   // float4 of a tile that a thread moves
#define B_LOADS (BK * BN / 4 / THREADS)
#define PAD 4   // the four stores of a transposed float4 fall into other banks; keeps 16 bytes

#include "vector4.cuh"

__shared__ __align__(16) float As[2][BK][BM + PAD];
__shared__ __align__(16) float Bs[2][BK][BN];

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
double_buffered(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                float *C)
{
    const int tid = threadIdx.x;
    const int tx = tid % TX, ty = tid / TX;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float4 staged_a[A_LOADS], staged_b[B_LOADS];
    float a[2][TM], b[2][TN];
    float sum[TM][TN] = {};

    auto fetch = [&](int k0) {
#pragma unroll
        for (int n = 0; n < A_LOADS; ++n) {
            const int i = tid + n * THREADS;
            staged_a[n] = load4(A, M, K, row0 + i / (BK / 4), k0 + i % (BK / 4) * 4);
        }
#pragma unroll
        for (int n = 0; n < B_LOADS; ++n) {
            const int i = tid + n * THREADS;
            staged_b[n] = load4(B, K, N, k0 + i / (BN / 4), col0 + i % (BN / 4) * 4);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int n = 0; n < A_LOADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            As[buffer][x + 0][y] = staged_a[n].x, As[buffer][x + 1][y] = staged_a[n].y;
            As[buffer][x + 2][y] = staged_a[n].z, As[buffer][x + 3][y] = staged_a[n].w;
        }
#pragma unroll
        for (int n = 0; n < B_LOADS; ++n) {
            const int i = tid + n * THREADS;
            *(float4 *)&Bs[buffer][i / (BN / 4)][i % (BN / 4) * 4] = staged_b[n];
        }
    };
    auto read = [&](int slot, int buffer, int k) {
#pragma unroll
        for (int p = 0; p < TM; p += 4)
            *(float4 *)&a[slot][p] = *(const float4 *)&As[buffer][k][p * TY + ty * 4];
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            *(float4 *)&b[slot][q] = *(const float4 *)&Bs[buffer][k][q * TX + tx * 4];
    };

    fetch(0);
    put(0);
    __syncthreads();
    read(0, 0, 0);
    // inner loop: begin
    for (int k0 = 0, current = 0; k0 < K; k0 += BK, current ^= 1) {
        const bool more = k0 + BK < K;
        if (more)
            fetch(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK)
                read((k + 1) % 2, current, k + 1);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += a[k % 2][i] * b[k % 2][j];
        }
        if (more) {
            put(current ^ 1);
            __syncthreads();
            read(0, current ^ 1, 0);
        }
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int q = 0; q < TN; q += 4)
            store4(C, M, N, row0 + i / 4 * 4 * TY + ty * 4 + i % 4, col0 + q * TX + tx * 4, alpha,
                   make_float4(sum[i][q], sum[i][q + 1], sum[i][q + 2], sum[i][q + 3]), beta);
}
