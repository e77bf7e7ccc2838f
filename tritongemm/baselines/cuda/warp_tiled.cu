// warp_tiled: a level between the block's tile and the thread's.
//
// Until here the 32 threads of a warp covered a strip of the block tile. Now each warp owns a
// WM x WN tile of its own, walked as WMITER x WNITER sub-tiles of 4 x 4 results a thread. What a
// warp reads from shared memory at one k is WM + WN floats for WM WN products; the squarer its
// tile, the less it reads. LANES_M x LANES_N says how the lanes lie in a sub-tile.
//
// Which lane takes which place matters: a 128-bit read is served half a warp at a time only if
// every lane shares its address with the neighbour at lane ^ 1, or every one with that at
// lane ^ 2; else it takes twice as long. Bit 0 of the lane therefore counts columns (lanes i and
// i ^ 1 read the same A) and bit 1 counts rows (lanes i and i ^ 2 read the same B).
//
// C = alpha * A @ B + beta * C; A[M,K], B[K,N], C[M,N], row-major.
// Block: 32 (BM/WM) (BN/WN) threads. Grid: (ceil(N / BN), ceil(M / BM)).
// Limits: (WM/TM, WN/TN) is (8, 4) or (4, 8).

#define LANES_M (WM / TM)
#define LANES_N (WN / TN)
#define WMITER (TM / 4)
#define WNITER (TN / 4)
#define THREADS (32 * (BM / WM) * (BN / WN))
// Threads that an SM should hold: what its 65536 registers give to an accumulator this large.
#define ACTIVE (TM * TN <= 32 ? 768 : TM * TN > 64 ? 256 : THREADS < 256 ? 384 : 512)
#define BLOCKS (ACTIVE > THREADS ? ACTIVE / THREADS : 1)
#define A_LOADS (BM * BK / 4 / THREADS)   // float4 of a tile that a thread moves
#define B_LOADS (BK * BN / 4 / THREADS)
#define PAD 4   // the four stores of a transposed float4 fall into other banks; keeps 16 bytes

#include "vector4.cuh"

__shared__ __align__(16) float As[2][BK][BM + PAD];
__shared__ __align__(16) float Bs[2][BK][BN];

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)
warp_tiled(int M, int N, int K, float alpha, const float *A, const float *B, float beta, float *C)
{
    const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
    const int lane_m = LANES_M == 8 ? lane / 2 % 8 : lane / 2 % 2 + lane / 16 * 2;
    const int lane_n = LANES_M == 8 ? lane % 2 + lane / 16 * 2 : lane % 2 + lane / 4 % 4 * 2;
    const int row = warp / (BN / WN) * WM + lane_m * 4;   // this thread's corner in the tile
    const int col = warp % (BN / WN) * WN + lane_n * 4;
    const int row0 = blockIdx.y * BM, col0 = blockIdx.x * BN;

    float4 staged_a[A_LOADS], staged_b[B_LOADS];
    float a[2][TM], b[2][TN];
    float sum[TM][TN] = {};

    auto fetch = [&](int k0) {
#pragma unroll
        for (int n = 0; n < A_LOADS; ++n) {
            const int i = tid + n * THREADS;
            staged_a[n] = load4(A, M, K, row0 + i / (BK / 4), k0 + i % (BK / 4) * 4);
        }
#pragma unroll
        for (int n = 0; n < B_LOADS; ++n) {
            const int i = tid + n * THREADS;
            staged_b[n] = load4(B, K, N, k0 + i / (BN / 4), col0 + i % (BN / 4) * 4);
        }
    };
    auto put = [&](int buffer) {
#pragma unroll
        for (int n = 0; n < A_LOADS; ++n) {
            const int i = tid + n * THREADS;
            const int y = i / (BK / 4), x = i % (BK / 4) * 4;
            As[buffer][x + 0][y] = staged_a[n].x, As[buffer][x + 1][y] = staged_a[n].y;
            As[buffer][x + 2][y] = staged_a[n].z, As[buffer][x + 3][y] = staged_a[n].w;
        }
#pragma unroll
        for (int n = 0; n < B_LOADS; ++n) {
            const int i = tid + n * THREADS;
            *(float4 *)&Bs[buffer][i / (BN / 4)][i % (BN / 4) * 4] = staged_b[n];
        }
    };
    auto read = [&](int slot, int buffer, int k) {
#pragma unroll
        for (int p = 0; p < WMITER; ++p)
            *(float4 *)&a[slot][p * 4] = *(const float4 *)&As[buffer][k][row + p * LANES_M * 4];
#pragma unroll
        for (int q = 0; q < WNITER; ++q)
            *(float4 *)&b[slot][q * 4] = *(const float4 *)&Bs[buffer][k][col + q * LANES_N * 4];
    };

    fetch(0);
    put(0);
    __syncthreads();
    read(0, 0, 0);
    // inner loop: begin
    for (int k0 = 0, current = 0; k0 < K; k0 += BK, current ^= 1) {
        const bool more = k0 + BK < K;
        if (more)
            fetch(k0 + BK);
#pragma unroll
        for (int k = 0; k < BK; ++k) {
            if (k + 1 < BK)
                read((k + 1) % 2, current, k + 1);
#pragma unroll
            for (int i = 0; i < TM; ++i)
#pragma unroll
                for (int j = 0; j < TN; ++j)
                    sum[i][j] += a[k % 2][i] * b[k % 2][j];
        }
        if (more) {
            put(current ^ 1);
            __syncthreads();
            read(0, current ^ 1, 0);
        }
    }
    // inner loop: end

#pragma unroll
    for (int i = 0; i < TM; ++i)
#pragma unroll
        for (int q = 0; q < WNITER; ++q)
            store4(C, M, N, row0 + row + i / 4 * LANES_M * 4 + i % 4,
                   col0 + col + q * LANES_N * 4, alpha,
                   make_float4(sum[i][q * 4], sum[i][q * 4 + 1], sum[i][q * 4 + 2],
                               sum[i][q * 4 + 3]), beta);
}
