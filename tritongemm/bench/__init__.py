"""Measuring providers against torch.matmul, row by row, in processes of their own."""
