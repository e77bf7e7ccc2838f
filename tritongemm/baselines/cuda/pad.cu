// pad, unpad: the copies around the padded rungs; part of their timed region.
//
// pad:   P[padded_rows, padded_cols] = X[rows, cols] with zeros around it.
// unpad: C[rows, cols] = the corner of P[.., padded_cols], plus beta * C. beta == 0 does not
//        read C, so that whatever C held (NaN too) is gone.
//
// Block: BN x BM threads, an element each. Grid: (ceil(columns / BN), ceil(rows / BM)) of what is
// written.

extern "C" __global__ void __launch_bounds__(BM * BN)
pad(int rows, int cols, const float *X, int padded_rows, int padded_cols, float *P)
{
    const int col = blockIdx.x * BN + threadIdx.x;
    const int row = blockIdx.y * BM + threadIdx.y;
    if (row < padded_rows && col < padded_cols)
        P[(size_t)row * padded_cols + col] =
            row < rows && col < cols ? X[(size_t)row * cols + col] : 0.0f;
}

extern "C" __global__ void __launch_bounds__(BM * BN)
unpad(int rows, int cols, int padded_cols, const float *P, float beta, float *C)
{
    const int col = blockIdx.x * BN + threadIdx.x;
    const int row = blockIdx.y * BM + threadIdx.y;
    if (row >= rows || col >= cols)
        return;
    const float p = P[(size_t)row * padded_cols + col];
    float *c = C + (size_t)row * cols + col;
    *c = beta == 0.0f ? p : p + beta * *c;
}
