// Loads and stores of four neighbours in a row, shared by the rungs that move tiles 128 bits at a
// time. ALIGNED is a macro of the rung.

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
