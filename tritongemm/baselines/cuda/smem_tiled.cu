// smem_tiled: a square tile slides along K through shared memory.
//
// Per step a block of TILE x TILE threads fetches one tile of A and one of B, an element of
// each a thread, and every thread takes TILE products out of them. Shared memory no longer
// depends on K. Two barriers a step: before the tile is read, and before it is overwritten.
// The inner loop is kept rolled: what unrolling it brings is the next rung.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: TILE x TILE threads. Grid: (ceil(N / TILE), ceil(M / TILE)).

extern "C" __global__ void __launch_bounds__(TILE * TILE)
smem_tiled(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    __shared__ float As[TILE][TILE];
    __shared__ float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int col = blockIdx.x * TILE + tx;
    const int row = blockIdx.y * TILE + ty;

    float sum = 0.0f;
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += TILE) {
        // Zeros outside the matrices: they add nothing, so the loop below needs no guard.
        As[ty][tx] = row < M && k0 + tx < K ? A[(size_t)row * K + k0 + tx] : 0.0f;
        Bs[ty][tx] = k0 + ty < K && col < N ? B[(size_t)(k0 + ty) * N + col] : 0.0f;
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < TILE; ++k)
            sum += As[ty][k] * Bs[k][tx];
        __syncthreads();
    }
    // inner loop: end

    if (row < M && col < N) {
        float *c = C + (size_t)row * N + col;
        *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
    }
}
