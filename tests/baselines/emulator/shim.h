// Enough of CUDA for one .cu file to run on a CPU: the threads of a block are fibers that take
// turns at barriers, blocks run one after another, cp.async is a queue a thread. Built with the
// address sanitizer, so that a read or write outside A, B, C or shared memory ends the run.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __CUDA_ARCH__ 900
#define min(a, b) ((a) < (b) ? (a) : (b))

struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct Index { int x, y, z; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T> static inline T __ldg(const T *p) { return *p; }

static Index threadIdx, blockIdx, gridDim;
static char *dynamic_shared;
static inline size_t __cvta_generic_to_shared(const void *p) { return (char *)p - dynamic_shared; }

struct Copy { unsigned to; const char *from; int bytes; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(256 * 1024);
    std::vector<Copy> open;                    // copies not yet committed
    std::deque<std::vector<Copy>> groups;      // committed, not yet waited for
    bool done;
};
static std::vector<Fiber> fibers;
static ucontext_t scheduler;
static int current;
static void (*body)();

static inline void __syncthreads() { swapcontext(&fibers[current].context, &scheduler); }

static inline void perform(const Copy &c) { memcpy(dynamic_shared + c.to, c.from, c.bytes); }
// The two extremes of when a copy happens: at once (a buffer still being read is overwritten), or
// only when it is waited for (a buffer read too early is stale).
static inline void emu_copy(unsigned to, const float *from, int bytes, bool take)
{
    if (!take) return;
    if (to % bytes || (size_t)from % bytes) { printf("misaligned copy\n"); abort(); }
    const Copy c{to, (const char *)from, bytes};
    if (LAZY) fibers[current].open.push_back(c); else perform(c);
}
static inline void emu_commit()
{
    fibers[current].groups.push_back(fibers[current].open);
    fibers[current].open.clear();
}
static inline void emu_wait(int pending)
{
    auto &groups = fibers[current].groups;
    for (; (int)groups.size() > pending; groups.pop_front())
        for (const Copy &c : groups.front()) perform(c);
}
static inline void emu_read(float *to, unsigned from)
{
    if (from % 16) { printf("misaligned read\n"); abort(); }
    memcpy(to, dynamic_shared + from, 16);
}

static void run_fiber()
{
    body();
    fibers[current].done = true;
    swapcontext(&fibers[current].context, &scheduler);
}

static void launch(Index grid, Index block, size_t shared_bytes, void (*kernel)())
{
    const int threads = block.x * block.y;
    fibers.resize(threads);
    body = kernel;
    gridDim = grid;
    dynamic_shared = (char *)aligned_alloc(16, shared_bytes ? (shared_bytes + 15) / 16 * 16 : 16);
    for (int by = 0; by < grid.y; ++by)
        for (int bx = 0; bx < grid.x; ++bx) {
            blockIdx = {bx, by, 0};
            memset(dynamic_shared, 0xff, shared_bytes);   // NaN
            for (auto &f : fibers) {
                f.done = false;
                f.open.clear(), f.groups.clear();
                getcontext(&f.context);
                f.context.uc_stack.ss_sp = f.stack.data();
                f.context.uc_stack.ss_size = f.stack.size();
                f.context.uc_link = &scheduler;
                makecontext(&f.context, run_fiber, 0);
            }
            for (int left = threads; left;)
                for (current = 0; current < threads; ++current) {
                    if (fibers[current].done) continue;
                    threadIdx = {current % block.x, current / block.x, 0};
                    swapcontext(&scheduler, &fibers[current].context);
                    left -= fibers[current].done;
                }
        }
    free(dynamic_shared);
}

// The product in double beside the kernel's, with C poisoned where beta is 0.
static float draw() { static unsigned s = 12345; s = s * 1664525u + 1013904223u;
                      return (int)(s >> 8) / 8388608.0f - 1.0f; }
struct Case {
    int m, n, k; float alpha, beta;
    std::vector<float> a, b, c, start;
    Case(int m, int n, int k, float alpha, float beta) : m(m), n(n), k(k), alpha(alpha), beta(beta),
        a((size_t)m * k), b((size_t)k * n), c((size_t)m * n)
    {
        for (auto &v : a) v = draw();
        for (auto &v : b) v = draw();
        for (auto &v : c) v = beta == 0.0f ? NAN : draw();
        start = c;
    }
    bool right(const float *got) const
    {
        double worst = 0.0;
        for (int i = 0; i < m; ++i)
            for (int j = 0; j < n; ++j) {
                double sum = 0.0;
                for (int l = 0; l < k; ++l) sum += (double)a[(size_t)i * k + l] * b[(size_t)l * n + j];
                double want = alpha * sum;
                if (beta != 0.0f) want += (double)beta * start[(size_t)i * n + j];
                const double error = std::fabs(want - got[(size_t)i * n + j]);
                if (!(error <= worst)) worst = error;
            }
        const double limit = 1e-6 * (1.0 + std::fabs(alpha)) * std::sqrt(k + 1.0) + 1e-6 * std::fabs(beta);
        if (!(worst <= limit))
            printf("%d x %d x %d alpha %g beta %g: error %g, limit %g\n", m, n, k, alpha, beta, worst, limit);
        return worst <= limit;
    }
};
