// outer_product_float4: the outer product with B and C handled four columns at a time.
//
// A thread owns TM rows (BM/TM apart) of TN = 4 neighbouring columns. Its fragment of B is one
// 128-bit read from shared memory and its rows of C are 128-bit stores; only A is still read
// one value at a time, because a fragment of A is a column of As.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN/4 x BM/TM threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)

#include "vector4.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
outer_product_float4(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                     float *C)
{
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int tid = ty * TX + tx;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float4 sum[TM] = {};
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
#pragma unroll 4
        for (int k = 0; k < BK; ++k) {
            const float4 b = *(const float4 *)&Bs[k][tx * TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float a = As[ty + i * TY][k];
                sum[i].x += a * b.x;
                sum[i].y += a * b.y;
                sum[i].z += a * b.z;
                sum[i].w += a * b.w;
            }
        }
        __syncthreads();
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < TM; ++i)
        store4(C, M, N, row0 + ty + i * TY, col0 + tx * TN, alpha, sum[i], beta);
}
