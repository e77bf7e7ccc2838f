// smem_strip: everything a block will ever read, put into shared memory first.
//
// A block of BM x BN threads copies its whole row strip of A [BM, K] and its whole column strip
// of B [K, BN], meets once at a barrier, then computes from shared memory alone. Each element
// of A is fetched once a block instead of BN times, but the strips grow with K: 4 (BM + BN) K
// bytes must fit into one block's shared memory, and long strips leave room for few blocks.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN x BM threads. Grid: (ceil(N / BN), ceil(M / BM)). Dynamic shared: 4 (BM + BN) K.

extern "C" __global__ void __launch_bounds__(BM * BN)
smem_strip(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    extern __shared__ float strips[];
    float *As = strips;                    // [BM][K]
    float *Bs = strips + (size_t)BM * K;   // [K][BN]

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int col = blockIdx.x * BN + tx;
    const int row = blockIdx.y * BM + ty;

    for (int k = tx; k < K; k += BN)
        As[ty * K + k] = row < M ? A[(size_t)row * K + k] : 0.0f;
    for (int k = ty; k < K; k += BM)
        Bs[k * BN + tx] = col < N ? B[(size_t)k * N + col] : 0.0f;
    __syncthreads();

    if (row >= M || col >= N)
        return;
    float sum = 0.0f;
    // inner loop: begin
    for (int k = 0; k < K; ++k)
        sum += As[ty * K + k] * Bs[k * BN + tx];
    // inner loop: end

    float *c = C + (size_t)row * N + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
