// column_8: eight results of one column a thread, on padded operands.
//
// 32 x 4 threads share a TILE x TILE tile (32 x 32); a warp is one row of threads, so each value
// of B it reads serves RESULTS rows and each value of A is one address for the warp. Nine loads
// from shared memory for eight products, all loops unrolled, no bounds tests.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major, padded to multiples of TILE.
// Block: TILE x ROWS threads. Grid: (N / TILE, M / TILE).

#define RESULTS 8
#define ROWS (TILE / RESULTS)

extern "C" __global__ void __launch_bounds__(TILE * ROWS)
column_8(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    __shared__ __align__(16) float As[TILE][TILE];
    __shared__ __align__(16) float Bs[TILE][TILE];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int row0 = blockIdx.y * TILE, col0 = blockIdx.x * TILE;
    A += (size_t)(row0 + ty) * K + tx;
    B += (size_t)ty * N + col0 + tx;

    float sum[RESULTS] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += TILE) {
#pragma unroll
        for (int i = 0; i < RESULTS; ++i) {
            As[ty + i * ROWS][tx] = A[(size_t)i * ROWS * K];
            Bs[ty + i * ROWS][tx] = B[(size_t)i * ROWS * N];
        }
        A += TILE;
        B += (size_t)TILE * N;
        __syncthreads();
#pragma unroll
        for (int k = 0; k < TILE; ++k) {
            const float b = Bs[k][tx];
#pragma unroll
            for (int i = 0; i < RESULTS; ++i)
                sum[i] += As[ty + i * ROWS][k] * b;
        }
        __syncthreads();
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < RESULTS; ++i) {
        float *c = C + (size_t)(row0 + ty + i * ROWS) * N + col0 + tx;
        *c = beta == 0.0f ? alpha * sum[i] : alpha * sum[i] + beta * *c;
    }
}
