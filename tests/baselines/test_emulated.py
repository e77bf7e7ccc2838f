"""The rungs' own text, run on the CPU under the address and undefined-behaviour sanitizers."""

import pytest
from emulator import COMPILER, emulate

from tritongemm.baselines.cuda.rungs import CUDA_RUNGS

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++")

EVEN = [(64, 64, 64, 1.0, 0.0), (132, 260, 36, 1.0, 0.0), (40, 12, 100, -1.5, 0.5),
        (5, 4, 0, 1.0, 2.0), (1, 4, 8, 1.0, 0.0), (300, 64, 4, 0.0, 1.0)]
ODD = [(1, 1, 1, 1.0, 0.0), (37, 131, 45, 1.0, 0.0), (129, 7, 67, -1.5, 0.5), (3, 5, 0, 1.0, 0.0),
       (3, 3, 15, 0.0, 1.0), (17, 257, 17, 2.0, 0.0)]


#: Shapes that a sweep of the last rung meets: other lanes, results, steps and stages.
_ASYNC = CUDA_RUNGS["warp_tiled_async"]
SWEPT = (_ASYNC.config(block_m=128, block_k=8, thread_m=16, warp_m=64, num_stages=5),
         _ASYNC.config(block_n=64, block_k=32, warp_m=64, warp_n=32, num_stages=2))


def _cases():
    for rung in CUDA_RUNGS.values():
        for config in (*rung.variants, *(SWEPT if rung is _ASYNC else ())):
            for aligned in ((True, False) if rung.vector else (True,)):
                for lazy in ((False, True) if rung.name == "warp_tiled_async" else (False,)):
                    first = config == rung.variants[0] and rung.name in (
                        "naive", "padded", "warp_tiled", "warp_tiled_async")
                    quick = first and aligned and rung.name in ("naive", "warp_tiled")
                    yield pytest.param(rung, config, aligned, lazy,
                                       marks=() if quick else pytest.mark.thorough if first
                                       else pytest.mark.slow,
                                       id=f"{config}-{aligned}-{lazy}")


@pytest.mark.parametrize("rung, config, aligned, lazy", list(_cases()))
def test_rung_is_right_and_stays_inside_its_memory(rung, config, aligned, lazy, tmp_path):
    cases = (EVEN if aligned else ODD) if rung.vector else EVEN + ODD
    assert emulate(rung, config, cases, tmp_path, aligned=aligned, lazy=lazy) == ""


def test_emulator_sees_a_tile_read_too_early(tmp_path):
    """The emulator itself can fail: one more tile left pending is caught."""
    rung = CUDA_RUNGS["warp_tiled_async"]
    text = rung.source.read_text(encoding="utf-8")
    broken = tmp_path / "warp_tiled_async.cu"
    broken.write_text(text.replace('"n"(STAGES - 2)', '"n"(STAGES - 1)'), encoding="utf-8")
    assert emulate(rung, rung.variants[1], EVEN[1:2], tmp_path, aligned=True, lazy=True,
                   source=broken).startswith("132 x 260")
