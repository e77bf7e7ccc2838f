// thread_tile_2d: the outer product made large, TM x TN results a thread.
//
// 8 x 8 results need 16 values from shared memory for 64 products: four products a value, where
// a 2 x 2 tile had one. A block of 256 threads covers 128 x 128 results, so each element of A
// and B that is fetched from global memory is used 128 times.
// A thread's rows are BM/TM apart and its columns BN/TN: a warp reads Bs along neighbouring
// banks, As at two addresses, and writes C in whole lines.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: (BN/TN) * (BM/TM) threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
// Blocks that an SM should hold: 512 threads of at most 128 registers, which before sm_90 would
// not do.
#define BLOCKS (__CUDA_ARCH__ >= 900 && TM * TN <= 64 && THREADS < 512 ? 512 / THREADS : 1)

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
thread_tile_2d(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
               float *C)
{
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tid = threadIdx.x;
    const int tx = tid % TX, ty = tid / TX;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[TM][TN] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / BK, x = i % BK;
            As[y][x] = row0 + y < M && k0 + x < K ? A[(size_t)(row0 + y) * K + k0 + x] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / BN, x = i % BN;
            Bs[y][x] = k0 + y < K && col0 + x < N ? B[(size_t)(k0 + y) * N + col0 + x] : 0.0f;
        }
        __syncthreads();
#pragma unroll 2
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int i = 0; i < TM; ++i)
                a[i] = As[ty + i * TY][k];
#pragma unroll
            for (int j = 0; j < TN; ++j)
                b[j] = Bs[k][tx + j * TX];
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
        for (int j = 0; j < TN; ++j) {
            const int row = row0 + ty + i * TY, col = col0 + tx + j * TX;
            if (row < M && col < N) {
                float *c = C + (size_t)row * N + col;
                *c = beta == 0.0f ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *c;
            }
        }
}
