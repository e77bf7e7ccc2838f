// naive: one thread an element, and the wrong way round.
//
// Neighbouring threads of a warp (threadIdx.x) take neighbouring ROWS of C. At each k the warp's
// 32 loads of A are K floats apart, so each one is a transaction of its own, and its 32 stores
// to C are N floats apart. B is one address for the whole warp.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BM x BN threads. Grid: (ceil(M / BM), ceil(N / BN)).

extern "C" __global__ void __launch_bounds__(BM * BN)
naive(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    const int row = blockIdx.x * BM + threadIdx.x;
    const int col = blockIdx.y * BN + threadIdx.y;
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
