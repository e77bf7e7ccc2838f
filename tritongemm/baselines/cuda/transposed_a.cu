// transposed_a: A is turned on its way into shared memory, so both fragments are 128-bit reads.
//
// A fragment of A is a column of the tile. Stored as As[k][m] it is a run of neighbours, and a
// thread's TM + TN values of one k are (TM + TN) / 4 reads. A thread's tile is cut into 4 x 4
// pieces spread over the block tile (rows 4 ty + p 4 TY, columns 4 tx + q 4 TX): the float4 of
// neighbouring threads are then neighbours too, and a warp's read meets no bank twice.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: (BN/TN) * (BM/TM) threads. Grid: (ceil(N / BN), ceil(M / BM)).

#define TX (BN / TN)
#define TY (BM / TM)
#define THREADS (TX * TY)
#define PAD 4   // the four stores of a transposed float4 fall into other banks; keeps 16 bytes

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
transposed_a(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
             float *C)
{
    __shared__ __align__(16) float As[BK][BM + PAD];
    __shared__ __align__(16) float Bs[BK][BN];

    const int tid = threadIdx.x;
    const int tx = tid % TX, ty = tid / TX;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float sum[TM][TN] = {};
    // inner loop: begin
    for (int k0 = 0; k0 < K; k0 += BK) {
#pragma unroll
        for (int n = 0; n < BM * BK / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            const float4 v = load4(A, M, K, row0 + y, k0 + x);
            As[x + 0][y] = v.x, As[x + 1][y] = v.y, As[x + 2][y] = v.z, As[x + 3][y] = v.w;
        }
#pragma unroll
        for (int n = 0; n < BK * BN / 4 / THREADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BN / 4), x = i % (BN / 4) * 4;
            *(float4 *)&Bs[y][x] = load4(B, K, N, k0 + y, col0 + x);
        }
        __syncthreads();
#pragma unroll 8
        for (int k = 0; k < BK; ++k) {
            float a[TM], b[TN];
#pragma unroll
            for (int p = 0; p < TM; p += 4)
                *(float4 *)&a[p] = *(const float4 *)&As[k][p * TY + ty * 4];
#pragma unroll
            for (int q = 0; q < TN; q += 4)
                *(float4 *)&b[q] = *(const float4 *)&Bs[k][q * TX + tx * 4];
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
        for (int q = 0; q < TN; q += 4)
            store4(C, M, N, row0 + i / 4 * 4 * TY + ty * 4 + i % 4, col0 + q * TX + tx * 4, alpha,
                   make_float4(sum[i][q], sum[i][q + 1], sum[i][q + 2], sum[i][q + 3]), beta);
}
