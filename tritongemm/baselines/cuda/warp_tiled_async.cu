// warp_tiled_async: warp tiles fed by cp.async through STAGES buffers.
//
// A scheduler issues one instruction a clock, so a multiply-add is lost for each instruction that
// is none. What warp_tiled spends on moving tiles, and how it is saved:
// * cp.async copies from global to shared memory without passing through registers. Tiles can be
//   STAGES - 1 ahead at no cost in registers, and one barrier a tile is left.
// * A is still transposed on its way in, because cp.async may also copy 4 bytes: a warp takes
//   8 neighbours along K of 4 rows, four whole sectors of 32 bytes in global memory, and with
//   rows of BM + 4 floats its 32 destinations fall into 32 different banks. It needs no alignment.
//   B goes in as it lies, 16 bytes a copy if ALIGNED (rows of B and C start on 16 bytes), else 4.
// * Addresses. An instruction adds a constant to its address register for nothing, so a fragment
//   is read from the thread's corner of the buffer, known once a tile, plus a constant; and a row
//   is copied from one pointer, moved once a tile, plus an offset of 32 bits that never changes:
//   half the registers of a pointer a row.
// * The products of one k go back and forth over the results. A multiply-add reads three
//   registers, more than the banks of the register file give in a clock; the operand that it
//   shares with the one before is kept and costs nothing.
// * Small blocks, several on an SM: while one waits at its barrier the others multiply, and the
//   last wave leaves less idle. BLOCKS says for how many the compiler must save registers.
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
// Limits: (WM/TM, WN/TN) is (8, 4) or (4, 8); BK is a multiple of 8; (BM - 1) K and (BK - 1) N
// floats, the offsets inside a tile, fit 32 bits.

#define LANES_M (WM / TM)
#define LANES_N (WN / TN)
#define THREADS (32 * (BM / WM) * (BN / WN))
// Threads that an SM should hold: what its 65536 registers give to an accumulator this large.
// 8 x 8 results take about 128 registers, which lets 512 threads in; but a compiler that is held
// to 128 adds a dozen moves a tile, so small blocks are asked for one fewer than fit.
#define ACTIVE (TM * TN <= 32 ? 768 : TM * TN > 64 ? 256 : THREADS < 256 ? 384 : 512)
#define BLOCKS (ACTIVE > THREADS ? ACTIVE / THREADS : 1)
#define LDA (BM + 4)
#define A_SIZE (BK * LDA)
#define STAGE (A_SIZE + BK * BN)             // floats of one buffer: As[BK][LDA], Bs[BK][BN]
#define A_ROWS (THREADS / 8)                 // rows of A that one round of copies covers
#define A_ROUNDS (BM / A_ROWS)               // rounds for 8 k of the tile
#define B_VEC (ALIGNED ? 4 : 1)              // floats of B that one copy takes
#define B_ROWS (THREADS * B_VEC / BN)        // rows of B that one round of copies covers
#define B_ROUNDS (BK / B_ROWS)

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
// Reads 16 bytes at a register plus a constant.
__device__ __forceinline__ void read16(float *to, unsigned from, int constant)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from + constant));
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
    const float *a_from = A + (size_t)row0 * K + a_k;
    unsigned a_row[A_ROUNDS];
#pragma unroll
    for (int i = 0; i < A_ROUNDS; ++i)
        a_row[i] = (unsigned)min(a_m + i * A_ROWS, M - 1 - row0) * K;

    // Copies of B: B_VEC floats from column b_n of rows b_k + i B_ROWS.
    const int b_k = tid / (BN / B_VEC), b_n = tid % (BN / B_VEC) * B_VEC;
    const float *b_from = B + (size_t)b_k * N + min(col0 + b_n, N - B_VEC);
    unsigned b_row[B_ROUNDS];
#pragma unroll
    for (int i = 0; i < B_ROUNDS; ++i)
        b_row[i] = (unsigned)(i * B_ROWS) * N;

    const unsigned base = (unsigned)__cvta_generic_to_shared(shared);
    const unsigned a_to = base + (a_k * LDA + a_m) * 4;
    const unsigned b_to = base + (A_SIZE + b_k * BN + b_n) * 4;

    // Copies the next tile into buffer `stage`.
    auto fetch = [&](int stage, bool take, bool partial) {
        const unsigned to = stage * STAGE * 4;
#pragma unroll
        for (int k = 0; k < BK; k += 8)
#pragma unroll
            for (int i = 0; i < A_ROUNDS; ++i)
                copy4(a_to + to + (k * LDA + i * A_ROWS) * 4, a_from + a_row[i] + k,
                      take && (!partial || a_k + k < first));
#pragma unroll
        for (int i = 0; i < B_ROUNDS; ++i) {
            const float *from = b_from + b_row[i];
            const bool taken = take && (!partial || b_k + i * B_ROWS < first);
            if (ALIGNED)
                copy16(b_to + to + i * B_ROWS * BN * 4, from, taken);
            else
                copy4(b_to + to + i * B_ROWS * BN * 4, from, taken);
        }
        const int rows = partial ? first : BK;
        a_from += rows;
        b_from += (size_t)rows * N;
        asm volatile("cp.async.commit_group;");
    };
    auto arrive = [&] {   // all but the newest STAGES - 2 tiles are here, for every thread
        asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2));
        __syncthreads();
    };

    float a[2][TM], b[2][TN];
    float sum[TM][TN] = {};
    const unsigned start_a = base + row * 4, start_b = base + (A_SIZE + col) * 4;
    unsigned read_a = start_a, read_b = start_b;
    auto read = [&](int k) {   // the fragments of k, beside those of k - 1
#pragma unroll
        for (int p = 0; p < TM / 4; ++p)
            read16(&a[k % 2][p * 4], read_a, (k * LDA + p * LANES_M * 4) * 4);
#pragma unroll
        for (int q = 0; q < TN / 4; ++q)
            read16(&b[k % 2][q * 4], read_b, (k * BN + q * LANES_N * 4) * 4);
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
        read(0);
    }
    // inner loop: begin
    for (int t = 0, from = 0, into = STAGES - 1; t < tiles; ++t) {
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {
                arrive();
                into = from;
                from = from == STAGES - 1 ? 0 : from + 1;
                read_a = start_a + from * STAGE * 4, read_b = start_b + from * STAGE * 4;
            }
            read((k + 1) % BK);
            if (k == 0)
                fetch(into, t + STAGES - 1 < tiles, false);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int n = i % 2 ? TN - 1 - j : j;   // back and forth
                    sum[i][n] += a[k % 2][i] * b[k % 2][n];
                }
        }
    }
    // inner loop: end

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
