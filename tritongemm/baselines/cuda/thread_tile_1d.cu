// thread_tile_1d: one thread computes a column of TM results.
//
// A value of B, once in a register, serves TM rows: TM products cost TM + 1 loads from shared
// memory instead of 2 TM. The warp's threads stay along a row, so Bs is read without conflicts
// and As is one address for the warp.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN * BM / TM threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define THREADS (BM * BN / TM)

extern "C" __global__ void __launch_bounds__(THREADS)
thread_tile_1d(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
               float *C)
{
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tid = threadIdx.x;
    const int tx = tid % BN;         // column of the tile
    const int ty = tid / BN;         // which group of TM rows
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[TM] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int row = row0 + i / BK, k = k0 + i % BK;
            As[i / BK][i % BK] = row < M && k < K ? A[(size_t)row * K + k] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int k = k0 + i / BN, col = col0 + i % BN;
            Bs[i / BN][i % BN] = k < K && col < N ? B[(size_t)k * N + col] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            const float b = Bs[k][tx];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                sum[i] += As[ty * TM + i][k] * b;
        }
        __syncthreads();
    }
    // inner loop: end

    const int col = col0 + tx;
#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int row = row0 + ty * TM + i;
        if (row < M && col < N) {
            float *c = C + (size_t)row * N + col;
            *c = beta == 0.0f ? alpha * sum[i] : alpha * sum[i] + beta * *c;
        }
    }
}
