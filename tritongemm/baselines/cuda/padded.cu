// padded: strided_2x2 with no bounds tests at all.
//
// M, N and K are multiples of TILE because pad.cu has copied the operands into zero-padded ones
// first, and copies the result back after. What the tests in the loop cost is seen against
// strided_2x2; what the three copies cost is in the time.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major, padded.
// Block: HALF x HALF threads, HALF = TILE / 2. Grid: (N / TILE, M / TILE).

#define HALF (TILE / 2)

extern "C" __global__ void __launch_bounds__(HALF * HALF)
padded(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    __shared__ __align__(16) float As[TILE][TILE];
    __shared__ __align__(16) float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    A += (size_t)(row0 + ty) * K + tx;
    B += (size_t)ty * N + col0 + tx;

    float sum[2][2] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
        for (int i = 0; i < 2; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j) {
                As[ty + i * HALF][tx + j * HALF] = A[(size_t)i * HALF * K + j * HALF];
                Bs[ty + i * HALF][tx + j * HALF] = B[(size_t)i * HALF * N + j * HALF];
            }
        A += TILE;
        B += (size_t)TILE * N;
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
            float *c = C + (size_t)(row0 + ty + i * HALF) * N + col0 + tx + j * HALF;
            *c = beta == 0.0f ? alpha * sum[i][j] : alpha * sum[i][j] + beta * *c;
        }
}
