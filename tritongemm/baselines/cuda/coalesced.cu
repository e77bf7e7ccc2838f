// coalesced: the naive kernel with the threads of a warp along a row of C.
//
// Neighbouring threads (threadIdx.x) take neighbouring COLUMNS: the warp's loads of B and its
// stores to C fall into whole 128-byte lines, and its load of A is one address for all.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN x BM threads. Grid: (ceil(N / BN), ceil(M / BM)).

extern "C" __global__ void __launch_bounds__(BM * BN)
coalesced(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    const int col = blockIdx.x * BN + threadIdx.x;
    const int row = blockIdx.y * BM + threadIdx.y;
    if (row >= M || col >= N)
        return;

    float sum = 0.0f;
    // inner loop: begin
    for (int k = 0; k < K; ++k)
        sum += A[(size_t)row * K + k] * B[(size_t)k * N + col];
    // inner loop: end

    float *c = C + (size_t)row * N + col;
    *c = beta == 0.0f ? alpha * sum : alpha * sum + beta * *c;
}
