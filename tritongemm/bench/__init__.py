"""Measures providers against torch.matmul, row by row, in separate processes."""
