"""D as a plan sees it: zero strides where it is broadcast, and no more alignment than it has."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tritongemm.kernels.launch import Geometry
from tritongemm.ops.plan import geometry_of, strides_of_d
from tritongemm.problem import GemmProblem

WHOLE = torch.zeros(4, 64, 64, dtype=torch.bfloat16)  # torch aligns it to 64 bytes


@pytest.mark.parametrize(("d", "strides", "align"), [
    (WHOLE[0, 0], (0, 0, 1), 16), (WHOLE[0, 0, 1:9], (0, 0, 1), 2), (WHOLE[0, :, 0], (0, 0, 64), 2),
    (WHOLE[0], (0, 64, 1), 16), (WHOLE[0, :, 4:], (0, 64, 1), 8), (WHOLE[0].t(), (0, 1, 64), 2),
    (WHOLE[:, :8, :8], (4096, 64, 1), 16), (WHOLE[0, :1].expand(5, 64), (0, 0, 1), 16),
    (WHOLE[:, :1, :1].expand(4, 8, 8), (4096, 0, 0), 16), (WHOLE[0, :, :62], (0, 64, 1), 16),
    (WHOLE.flatten()[:60 * 8].view(8, 60), (0, 60, 1), 8)],
    ids=lambda v: "x".join(map(str, v.stride())) if isinstance(v, torch.Tensor) else str(v))
def test_strides_and_alignment_are_those_of_the_tensor(d, strides, align):
    assert strides_of_d(d) == (*strides, align)


@given(st.integers(0, 40), st.integers(1, 30), st.integers(1, 30), st.integers(0, 20),
       st.sampled_from((torch.float16, torch.float32)))
def test_every_row_of_d_is_aligned_as_it_says(offset, rows, columns, gap, dtype):
    lead = columns + gap
    d = torch.zeros(offset + rows * lead, dtype=dtype).as_strided((rows, columns), (lead, 1),
                                                                  offset)
    align = strides_of_d(d)[3]
    assert align in (2, 4, 8, 16) and align >= d.element_size()
    assert all(d[row].data_ptr() % align == 0 for row in range(rows))


@pytest.mark.parametrize("epilogue", ["none", "bias", "add"])
@pytest.mark.parametrize("batch", [1, 3])
def test_fresh_tensors_have_the_gapless_geometry(epilogue, batch):
    problem = GemmProblem.contiguous(8, 16, 24, batch=batch, epilogue=epilogue)
    shape = (batch,) if batch > 1 else ()
    a, b, c = (torch.empty(*shape, *extents, dtype=torch.bfloat16)
               for extents in ((8, 24), (24, 16), (8, 16)))
    d = {"none": None, "bias": torch.empty(16, dtype=torch.bfloat16), "add": c.clone()}[epilogue]
    assert geometry_of(a, b, c, d) == Geometry.contiguous(problem)
