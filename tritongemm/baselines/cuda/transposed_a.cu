// transposed_a: A is turned on its way into shared memory, so both fragments are 128-bit reads.
//
// A fragment of A is a column of the tile. Stored as As[k][m] it is a run of neighbours, and a
// thread's TM + TN values of one k are (TM + TN) / 4 reads. A thread's tile is cut into 4 x 4
// pieces spread over the block tile (rows 4 ty + p 4 TY, columns 4 tx + q 4 TX): the float4 of
// neighbouring threads are then neighbours too, and a warp's read meets no bank twice.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: (BN/TN) * (BM/TM) threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
#define PAD 4   // the four stores of a transposed float4 fall into other banks; keeps 16 bytes

#include "vector4.cuh"

extern "C" __global__ void __launch_bounds__(THREADS)
transposed_a(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
             float *C)
{
    __shared__ __align__(16) float As[BK][BM + PAD];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tid = threadIdx.x;
    const int tx = tid % TX, ty = tid / TX;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[TM][TN] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            const float4 v = load4(A, M, K, row0 + y, k0 + x);
            As[x + 0][y] = v.x, As[x + 1][y] = v.y, As[x + 2][y] = v.z, As[x + 3][y] = v.w;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BN / 4), x = i % (BN / 4) * 4;
            *(float4 *)&Bs[y][x] = load4(B, K, N, k0 + y, col0 + x);
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int p = 0; p < TM; p += 4)
                *(float4 *)&a[p] = *(const float4 *)&As[k][p * TY + ty * 4];
#pragma unroll
            for (int q = 0; q < TN; q += 4)
                *(float4 *)&b[q] = *(const float4 *)&Bs[k][q * TX + tx * 4];
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
