// smem_tiled_unrolled: the tiled kernel with four products an iteration.
//
// One loop counter, compare and branch now serve UNROLL products; their addresses become
// constant offsets, and the four loads of A, neighbours in a row, can become one of 128 bits.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: TILE x TILE threads. Grid: (ceil(N / TILE), ceil(M / TILE)).

#define UNROLL 4

extern "C" __global__ void __launch_bounds__(TILE * TILE)
smem_tiled_unrolled(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                    float *C)
{
    __shared__ __align__(16) float As[TILE][TILE];
    __shared__ __align__(16) float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int col = blockIdx.x * TILE + tx;
    const int row = blockIdx.y * TILE + ty;

    float sum = 0.0f;
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += TILE) {
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * K + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * N + col] : 0.0f;
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < TILE; k += UNROLL) {
            sum += As[ty][k + 0] * Bs[k + 0][tx];
            sum += As[ty][k + 1] * Bs[k + 1][tx];
            sum += As[ty][k + 2] * Bs[k + 2][tx];
            sum += As[ty][k + 3] * Bs[k + 3][tx];
        }
        __syncthreads();
    }
    // inner loop: end

    if (row < M && col < N) {
        float *c = C + (size_t)row * N + col;
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
