// pad, unpad: the copies around the padded rungs; part of their timed region.
//
// pad:   P[padded_rows, padded_cols] = X[rows, cols] with zeros around it.
// unpad: C[rows, cols] = the corner of P[.., padded_cols], plus beta * C. beta == 0 does not
//        read C, so that whatever C held (NaN too) is gone.
//
// Block: BN x BM threads. Grid: (ceil(columns / BN), ceil(rows / BM) or less) of what is written; a
// thread walks down its column in steps of the grid.

extern "C" __global__ void __launch_bounds__(BM * BN)
pad(int rows, int cols, const float *X, int padded_rows, int padded_cols, float *P)
{
    const int col = blockIdx.x * BN + threadIdx.x;
    if (col >= padded_cols)
        return;
    for (int row = blockIdx.y * BM + threadIdx.y; row < padded_rows; row += gridDim.y * BM)
        P[(size_t)row * padded_cols + col] =
            row < rows && col < cols ? X[(size_t)row * cols + col] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(BM * BN)
unpad(int rows, int cols, int padded_cols, const float *P, float beta, float *C)
{
    const int col = blockIdx.x * BN + threadIdx.x;
    if (col >= cols)
        return;
    for (int row = blockIdx.y * BM + threadIdx.y; row < rows; row += gridDim.y * BM) {
        const float p = P[(size_t)row * padded_cols + col];
        float *c = C + (size_t)row * cols + col;
        *c = beta == 0.0f ? p : p + beta * *c;
    }
}
