// warp_tiled_async: warp tiles fed by cp.async through STAGES buffers.
//
// Four changes to warp_tiled:
// * cp.async copies from global to shared memory without passing through registers, so tiles
//   can be STAGES - 1 ahead at no cost in registers, and one barrier a tile is left.
// * A is still transposed on its way in, because cp.async may also copy 4 bytes: a warp takes
//   8 neighbours along K of 4 rows, four whole sectors of 32 bytes in global memory, and with
//   rows of BM + 4 floats its 32 destinations fall into 32 different banks. It needs no alignment.
//   B goes in as it lies, 16 bytes a copy if ALIGNED (rows of B and C start on 16 bytes), else 4.
// * The partial tile of K comes first, not last: only the first copies test bounds along K.
//   Rows and columns outside the matrix are read from the last one inside, and never stored.
// * Blocks are numbered down GROUP_M rows of tiles before the next column, so that the blocks
//   that run together share their rows of A and columns of B in the L2.
//
// The pipeline at tile t: all but the last k multiply from registers while the fragments of
// k + 1 are read; at the last k the tile t + 1 is awaited and its first fragments read before
// the last products are issued, so the barrier stands behind work already in the queue.
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: 32 (BM/WM) (BN/WN) threads. Grid: ceil(M / BM) ceil(N / BN), one-dimensional.
// Dynamic shared: 4 STAGES BK (BM + 4 + BN) bytes. Needs sm_80.
// Limits: (WM/TM, WN/TN) is (8, 4) or (4, 8); BK is a multiple of 8.

#define LANES_M (WM / TM)
#define LANES_N (WN / TN)
#define THREADS (32 * (BM / WM) * (BN / WN))
// Threads that an SM should hold: what its 65536 registers give to an accumulator this large.
#define ACTIVE (TM * TN <= 32 ? 768 : TM * TN > 64 ? 256 : THREADS < 256 ? 384 : 512)
#define BLOCKS (ACTIVE > THREADS ? ACTIVE / THREADS : 1)
#define LDA (BM + 4)
#define STAGE (BK * (LDA + BN))              // floats of one buffer: As[BK][LDA], Bs[BK][BN]
#define A_ROWS (THREADS / 8)                 // rows of A that one round of copies covers
#define A_LOADS (BM / A_ROWS)                // rounds for 8 k of the tile
#define B_VEC (ALIGNED ? 4 : 1)                // floats of B that one copy takes
#define B_ROWS (THREADS * B_VEC / BN)        // rows of B that one round of copies covers
#define B_LOADS (BK / B_ROWS)

// Copies 4 bytes, or 16, if take; otherwise leaves the destination as it is.
__device__ __forceinline__ void copy4(unsigned to, const float *from, bool take)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;"
                 " @p cp.async.ca.shared.global [%0], [%1], 4; }"
                 :: "r"(to), "l"(from), "r"((int)take));
}
__device__ __forceinline__ void copy16(unsigned to, const float *from, bool take)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %2, 0;"
                 " @p cp.async.cg.shared.global [%0], [%1], 16; }"
                 :: "r"(to), "l"(from), "r"((int)take));
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
warp_tiled_async(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                 float *C)
{
    extern __shared__ __align__(16) float shared[];

    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int lane_m = LANES_M == 8 ? lane / 2 % 8 : lane / 2 % 2 + lane / 16 * 2;
    const int lane_n = LANES_M == 8 ? lane % 2 + lane / 16 * 2 : lane % 2 + lane / 4 % 4 * 2;
    const int row = warp / (BN / WN) * WM + lane_m * 4;   // this thread's corner in the tile
    const int col = warp % (BN / WN) * WN + lane_n * 4;

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int group = blockIdx.x / (GROUP_M * tiles_n), in_group = blockIdx.x % (GROUP_M * tiles_n);
    const int height = min(tiles_m - group * GROUP_M, GROUP_M);
    const int row0 = (group * GROUP_M + in_group % height) * BM, col0 = in_group / height * BN;

    // Copies of A: this thread takes k = tid % 8 (and + 8 ...) of rows tid / 8 + i A_ROWS.
    const int tiles = (K + BK - 1) / BK;
    const int first = K - (tiles - 1) * BK;   // 1 .. BK: what the partial first tile holds
    const int a_k = tid % 8, a_m = tid / 8;
    const float *a_from[A_LOADS];
#pragma unroll
    for (int i = 0; i < A_LOADS; ++i)
        a_from[i] = A + (size_t)min(row0 + a_m + i * A_ROWS, M - 1) * K + a_k;
    const unsigned a_to = (unsigned)__cvta_generic_to_shared(shared + a_k * LDA + a_m);

    // Copies of B: B_VEC floats from column b_n of rows b_k + i B_ROWS.
    const int b_k = tid / (BN / B_VEC), b_n = tid % (BN / B_VEC) * B_VEC;
    const float *b_from = B + (size_t)b_k * N + min(col0 + b_n, N - B_VEC);
    const unsigned b_to = (unsigned)__cvta_generic_to_shared(shared + BK * LDA + b_k * BN + b_n);
    const size_t b_step = (size_t)B_ROWS * N;

    // Copies the next tile, of which k_rows rows exist, into buffer `stage`.
    auto fetch = [&](int stage, bool take, bool partial) {
        const unsigned offset = stage * STAGE * 4;
#pragma unroll
        for (int k = 0; k < BK; k += 8)
#pragma unroll
            for (int i = 0; i < A_LOADS; ++i)
                copy4(a_to + offset + (k * LDA + i * A_ROWS) * 4, a_from[i] + k,
                      take && (!partial || a_k + k < first));
        const float *from = b_from;
#pragma unroll
        for (int i = 0; i < B_LOADS; ++i, from += b_step) {
            const bool taken = take && (!partial || b_k + i * B_ROWS < first);
            if (B_VEC == 4)
                copy16(b_to + offset + i * B_ROWS * BN * 4, from, taken);
            else
                copy4(b_to + offset + i * B_ROWS * BN * 4, from, taken);
        }
        const int advance = partial ? first : BK;
#pragma unroll
        for (int i = 0; i < A_LOADS; ++i)
            a_from[i] += advance;
        b_from += (size_t)advance * N;
        asm volatile("cp.async.commit_group;");
    };
    auto arrive = [&] {   // all but the newest STAGES - 2 tiles are here, for every thread
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2));
        __syncthreads();
    };

    float a[2][TM], b[2][TN];
    float sum[TM][TN] = {};
    const float *tile = shared;
    auto read = [&](int slot, int k) {
#pragma unroll
        for (int p = 0; p < TM / 4; ++p)
            *(float4 *)&a[slot][p * 4] = *(const float4 *)&tile[k * LDA + row + p * LANES_M * 4];
#pragma unroll
        for (int q = 0; q < TN / 4; ++q)
            *(float4 *)&b[slot][q * 4] =
                *(const float4 *)&tile[BK * LDA + k * BN + col + q * LANES_N * 4];
    };

    if (tiles > 0) {
        // The rest of the partial tile must be zeros: what is there may be NaN.
        for (int i = tid; first < BK && i < STAGE; i += THREADS)
            shared[i] = 0.0f;
        __syncthreads();
        fetch(0, true, true);
#pragma unroll
        for (int s = 1; s < STAGES - 1; ++s)
            fetch(s, s < tiles, false);
        arrive();
        read(0, 0);
    }
    for (int t = 0, into = STAGES - 1, from = 0; t < tiles; ++t) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {
                arrive();
                from = from == STAGES - 1 ? 0 : from + 1;
                tile = shared + from * STAGE;
            }
            read((k + 1) % 2, (k + 1) % BK);
            if (k == 0) {
                fetch(into, t + STAGES - 1 < tiles, false);
                into = into == STAGES - 1 ? 0 : into + 1;
            }
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    // Back and forth, so that each product shares a register with the last one.
                    const int n = i % 2 ? TN - 1 - j : j;
                    sum[i][n] += a[k % 2][i] * b[k % 2][n];
                }
        }
    }

#pragma unroll
    for (int i = 0; i < TM; ++i) {
        const int m = row0 + row + i / 4 * LANES_M * 4 + i % 4;
        if (m >= M)
            continue;
#pragma unroll
        for (int q = 0; q < TN; q += 4) {
            const int n = col0 + col + q * LANES_N;
            float *c = C + (size_t)m * N + n;
            float v[4];
#pragma unroll
            for (int j = 0; j < 4; ++j)
                v[j] = alpha * sum[i][q + j] + (beta != 0.0f && n + j < N ? beta * c[j] : 0.0f);
            if (ALIGNED && n < N)
                *(float4 *)c = make_float4(v[0], v[1], v[2], v[3]);
            else
#pragma unroll
                for (int j = 0; j < 4; ++j)
                    if (n + j < N)
                        c[j] = v[j];
        }
    }
}
