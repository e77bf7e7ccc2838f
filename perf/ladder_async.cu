// warp_tiled_async with its choices as macros, for perf/ladder_async.py: ORDER of the multiply-adds
// of a step, WIDE address arithmetic, SPREAD copies, DROP parts of the loop. N a multiple of 4.
#ifndef ORDER
#define ORDER 0
#endif
#ifndef DROP
#define DROP 0
#endif
#ifndef SPREAD
#define SPREAD 0
#endif
#define LANES_M (WM / TM)
#define LANES_N (WN / TN)
#define THREADS (32 * (BM / WM) * (BN / WN))
#define LDA (BM + 4)
#define A_SIZE (BK * LDA)
#define STAGE (A_SIZE + BK * BN)
#define A_LANES 8        // threads side by side along K
#define A_ROWS (THREADS / A_LANES)
#define A_ROUNDS (BM / A_ROWS)
#define A_COPIES (A_ROUNDS * (BK / 8))
#define B_ROWS (THREADS * 4 / BN)
#define B_COPIES (BK / B_ROWS)
#define COPIES (A_COPIES + B_COPIES)

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

__device__ __forceinline__ void read16(float *to, unsigned from, int offset)
{
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3]) : "r"(from + offset));
}
#ifndef WIDE
#define WIDE 0
#endif
__device__ __forceinline__ const float *at(const float *base, unsigned off)
{
#if WIDE
    const float *p;
    asm("mad.wide.u32 %0, %1, 4, %2;" : "=l"(p) : "r"(off), "l"(base));
    return p;
#else
    return base + off;
#endif
}
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
warp_tiled_async(int M, int N, int K, float alpha, const float *A, const float *B, float beta,
                 float *C)
{
    extern __shared__ __align__(16) float shared[];

    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int lane_m = LANES_M == 8 ? lane / 2 % 8 : lane / 2 % 2 + lane / 16 * 2;
    const int lane_n = LANES_M == 8 ? lane % 2 + lane / 16 * 2 : lane % 2 + lane / 4 % 4 * 2;
    const int row = warp / (BN / WN) * WM + lane_m * 4;
    const int col = warp % (BN / WN) * WN + lane_n * 4;

    const int tiles_m = (M + BM - 1) / BM, tiles_n = (N + BN - 1) / BN;
    const int group = blockIdx.x / (GROUP_M * tiles_n), in_group = blockIdx.x % (GROUP_M * tiles_n);
    const int height = min(tiles_m - group * GROUP_M, GROUP_M);
    const int row0 = (group * GROUP_M + in_group % height) * BM, col0 = in_group / height * BN;

    const int tiles = (K + BK - 1) / BK;
    const int first = K - (tiles - 1) * BK;
    const int a_k = tid % A_LANES, a_m = tid / A_LANES;
    unsigned a_off[A_ROUNDS];
#pragma unroll
    for (int i = 0; i < A_ROUNDS; ++i)
        a_off[i] = (unsigned)min(a_m + i * A_ROWS, M - 1 - row0) * K;
    const float *a_from = A + (size_t)row0 * K + a_k;
    const unsigned a_to = (unsigned)__cvta_generic_to_shared(
        shared + (a_k * LDA + a_m));

    const int b_k = tid / (BN / 4), b_n = tid % (BN / 4) * 4;
    unsigned b_off[B_COPIES];
#pragma unroll
    for (int i = 0; i < B_COPIES; ++i)
        b_off[i] = (unsigned)(i * B_ROWS) * N;
    const float *b_from = B + (size_t)b_k * N + min(col0 + b_n, N - 4);
    const unsigned b_to = (unsigned)__cvta_generic_to_shared(shared + A_SIZE + b_k * BN + b_n);

    // Copy number n of a tile into the buffer at `offset` floats.
    auto copy = [&](int n, unsigned offset, bool take, bool partial) {
        if (n < A_COPIES) {
            const int i = n % A_ROUNDS, k = n / A_ROUNDS * 8;
            copy4(a_to + offset + (k * LDA + i * A_ROWS) * 4, at(a_from, a_off[i]) + k,
                  take && (!partial || a_k + k < first));
        } else {
            const int i = n - A_COPIES;
            copy16(b_to + offset + i * B_ROWS * BN * 4, at(b_from, b_off[i]),
                   take && (!partial || b_k + i * B_ROWS < first));
        }
    };
    auto advance = [&](int rows) {
        a_from += rows;
        b_from += (size_t)rows * N;
        asm volatile("cp.async.commit_group;");
    };
    auto arrive = [&] {
        if (!(DROP & 1)) asm volatile("cp.async.wait_group %0;" :: "n"(STAGES - 2));
        if (!(DROP & 2)) __syncthreads();
    };

    float a[2][TM];
    float b[2][TN];
    float sum[TM][TN] = {};
    const unsigned start_a = (unsigned)__cvta_generic_to_shared(shared) + row * 4;
    const unsigned start_b = (unsigned)__cvta_generic_to_shared(shared) + col * 4;
    unsigned read_a = start_a, read_b = start_b;
    int from = 0, into = STAGES - 1;
    auto read = [&](int k) {
        if (DROP & 4) {   // values that the compiler knows nothing of, for nothing
#pragma unroll
            for (int i = 0; i < TM; ++i)
                asm volatile("" : "+f"(a[k % 2][i]));
#pragma unroll
            for (int j = 0; j < TN; ++j)
                asm volatile("" : "+f"(b[k % 2][j]));
            return;
        }
#pragma unroll
        for (int p = 0; p < TM / 4; ++p)
            read16(&a[k % 2][p * 4], read_a, (k * LDA + p * LANES_M * 4) * 4);
#pragma unroll
        for (int q = 0; q < TN / 4; ++q)
            read16(&b[k % 2][q * 4], read_b, (A_SIZE + k * BN + q * LANES_N * 4) * 4);
    };
#define MAC(i, j) sum[i][j] += a[k % 2][i] * b[k % 2][j]
    if (DROP & 4) {
#pragma unroll
      for (int i = 0; i < 2 * TM; ++i) ((float *)a)[i] = shared[lane+i];
#pragma unroll
      for (int i = 0; i < TN; ++i) { b[0][i] = b[1][i] = shared[lane+i+77]; }
    }

    if (tiles > 0) {
        for (int i = tid; first < BK && i < STAGE; i += THREADS)
            shared[i] = 0.0f;
        __syncthreads();
#pragma unroll
        for (int n = 0; n < COPIES; ++n)
            copy(n, 0, true, true);
        advance(first);
#pragma unroll
        for (int s = 1; s < STAGES - 1; ++s) {
#pragma unroll
            for (int n = 0; n < COPIES; ++n)
                copy(n, s * STAGE * 4, s < tiles, false);
            advance(BK);
        }
        arrive();
        read(0);
    }
    for (int t = 0; t < tiles; ++t) {
        const bool more = t + STAGES - 1 < tiles;
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k == BK - 1) {
                arrive();
                into = from;
                from = from == STAGES - 1 ? 0 : from + 1;
                read_a = start_a + from * STAGE * 4, read_b = start_b + from * STAGE * 4;
            }
            read((k + 1) % BK);
            if (!(DROP & 1)) {
#if SPREAD
#pragma unroll
            for (int n = k * COPIES / (BK - 1); n < (k + 1) * COPIES / (BK - 1); ++n)
                if (k < BK - 1) copy(n, into * STAGE * 4, more, false);
            if (k == BK - 2)
                advance(BK);
#else
            if (k == 0) {
#pragma unroll
            for (int n = 0; n < COPIES; ++n)
                copy(n, into * STAGE * 4, more, false);
                advance(BK);
            }
#endif
            }
#if ORDER == 0
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j) {
                    const int n = i % 2 ? TN - 1 - j : j;
                    MAC(i, n);
                }
#elif ORDER == 1
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int i = 0; i < TM; ++i) {
                    const int m = j % 2 ? TM - 1 - i : i;
                    MAC(m, j);
                }
#elif ORDER == 2
#pragma unroll
            for (int j = 0; j < TN; j += 2)
#pragma unroll
                for (int i = 0; i < TM; i += 2) {
                    const int m = j % 4 ? TM - 2 - i : i;
                    MAC(m, j); MAC(m + 1, j); MAC(m + 1, j + 1); MAC(m, j + 1);
                }
#elif ORDER == 3
#pragma unroll
            for (int i = 0; i < TM; i += 2)
#pragma unroll
                for (int j = 0; j < TN; j += 2) {
                    const int n = i % 4 ? TN - 2 - j : j;
                    MAC(i, n); MAC(i, n + 1); MAC(i + 1, n + 1); MAC(i + 1, n);
                }
#elif ORDER == 4
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    MAC(i, j);
#elif ORDER == 5
#pragma unroll
            for (int j = 0; j < TN; ++j)
#pragma unroll
                for (int i = 0; i < TM; ++i)
                    MAC(i, j);
#endif
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
            if (n < N)
                *(float4 *)c = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}
