// outer_product_float4: the outer product with B and C handled four columns at a time.
//
// A thread owns TM rows (BM/TM apart) of TN = 4 neighbouring columns. Its fragment of B is one
// 128-bit read from shared memory and its rows of C are 128-bit stores; only A is still read
// one value at a time, because a fragment of A is a column of As.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: BN/4 x BM/TM threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)

// Four neighbours in a row of X [rows, cols], zeros outside it: one 128-bit load if ALIGNED (every
// row starts on 16 bytes, so that four neighbours are inside or outside together), else four.
__device__ __forceinline__ float4 load4(const float *X, int rows, int cols, int row, int col)
{
    const float *x = X + (size_t)row * cols + col;
    float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (ALIGNED) {
        if (row < rows && col < cols)
            v = *(const float4 *)x;
    } else if (row < rows) {
        if (col + 0 < cols) v.x = x[0];
        if (col + 1 < cols) v.y = x[1];
        if (col + 2 < cols) v.z = x[2];
        if (col + 3 < cols) v.w = x[3];
    }
    return v;
}

// C[row, col .. col + 3] = alpha * v + beta * C, inside C: one 128-bit store if ALIGNED, else four.
__device__ __forceinline__ void store4(float *C, int M, int N, int row, int col, float alpha,
                                       float4 v, float beta)
{
    if (row >= M || col >= N)
        return;
    float *c = C + (size_t)row * N + col;
    v = make_float4(alpha * v.x, alpha * v.y, alpha * v.z, alpha * v.w);
    if (ALIGNED) {
        if (beta != 0.0f) {
            const float4 old = *(const float4 *)c;
            v.x += beta * old.x, v.y += beta * old.y, v.z += beta * old.z, v.w += beta * old.w;
        }
        *(float4 *)c = v;
        return;
    }
    c[0] = beta == 0.0f ? v.x : v.x + beta * c[0];
    if (col + 1 < N) c[1] = beta == 0.0f ? v.y : v.y + beta * c[1];
    if (col + 2 < N) c[2] = beta == 0.0f ? v.z : v.z + beta * c[2];
    if (col + 3 < N) c[3] = beta == 0.0f ? v.w : v.w + beta * c[3];
}

extern "C" __global__ void __launch_bounds__(THREADS)
outer_product_float4(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                     float *C)
{
    __shared__ __align__(16) float As[BM][BK];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tx = threadIdx.x, ty = threadIdx.y;
    const int tid = ty * TX + tx;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float4 sum[TM] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            *(float4 *)&As[y][x] = load4(A, M, K, row0 + y, k0 + x);
        }
#pragma unroll
        for (int n = 0; n < BK * BN / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BN / 4), x = i % (BN / 4) * 4;
            *(float4 *)&Bs[y][x] = load4(B, K, N, k0 + y, col0 + x);
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < BK; ++k) {
            const float4 b = *(const float4 *)&Bs[k][tx * TN];
#pragma unroll
            for (int i = 0; i < TM; ++i) {
                const float a = As[ty + i * TY][k];
                sum[i].x += a * b.x;
                sum[i].y += a * b.y;
                sum[i].z += a * b.z;
                sum[i].w += a * b.w;
            }
        }
        __syncthreads();
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < TM; ++i)
        store4(C, M, N, row0 + ty + i * TY, col0 + tx * TN, alpha, sum[i], beta);
}
