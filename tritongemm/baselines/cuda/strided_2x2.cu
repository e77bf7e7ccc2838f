// strided_2x2: one thread computes four results, half a tile apart.
//
// The tile's side is twice the block's, and a thread owns (ty, tx) of each quadrant. Four
// products now cost four loads from shared memory instead of eight, and because the quadrants
// are a half tile apart, neighbouring threads still touch neighbouring columns: global loads
// stay coalesced and shared reads free of conflicts.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: HALF x HALF threads, HALF = TILE / 2. Grid: (ceil(N / TILE), ceil(M / TILE)).

#define HALF (TILE / 2)

extern "C" __global__ void __launch_bounds__(HALF * HALF)
strided_2x2(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    __shared__ __align__(16) float As[TILE][TILE];
    __shared__ __align__(16) float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;

    float sum[2][2] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                const int y = ty + i * HALF, x = tx + j * HALF;
                As[y][x] = row0 + y < M && k0 + x < K ? A[(size_t)(row0 + y) * K + k0 + x] : 0.0f;
                Bs[y][x] = k0 + y < K && col0 + x < N ? B[(size_t)(k0 + y) * N + col0 + x] : 0.0f;
            }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < TILE; ++k)
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
                    sum[i][j] += As[ty + i * HALF][k] * Bs[k][tx + j * HALF];
        __syncthreads();
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int row = row0 + ty + i * HALF, col = col0 + tx + j * HALF;
            if (row < M && col < N) {
                float *c = C + (size_t)row * N + col;
                *c = beta == 0.0f ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *c;
            }
        }
}
