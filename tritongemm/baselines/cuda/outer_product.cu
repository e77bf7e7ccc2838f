// outer_product: registers become the second-level cache.
//
// At each k a thread takes TM values of A and TN of B into registers and adds their outer
// product to its TM x TN results: TM + TN loads from shared memory feed TM TN products. The
// k loop has moved outside; nothing is summed along k inside a thread's tile any more.
// A thread's rows are BM/TM apart and its columns BN/TN, so that neighbours stay neighbours.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// PADDED = 1: M, N, K are multiples of the tile (pad.cu) and nothing is tested.
// Block: BN/TN x BM/TM threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)

extern "C" __global__ void __launch_bounds__(THREADS)
outer_product(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
              float *C)
{
    __shared__ float As[BM][BK + 1];   // + 1: the rows that a warp reads fall into other banks
    __shared__ float Bs[BK][BN];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int tid = ty * TX + tx;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[TM][TN] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / BK, x = i % BK;
            As[y][x] = PADDED || (row0 + y < M && k0 + x < K)
                ? A[(size_t)(row0 + y) * K + k0 + x] : 0.0f;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / BN, x = i % BN;
            Bs[y][x] = PADDED || (k0 + y < K && col0 + x < N)
                ? B[(size_t)(k0 + y) * N + col0 + x] : 0.0f;
        }
        __syncthreads();
#pragma unroll
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
            if (PADDED || (row < M && col < N)) {
                float *c = C + (size_t)row * N + col;
                *c = beta == 0.0f ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *c;
            }
        }
}
