"""The bench on a CUDA device."""

import pytest

from tritongemm.cli import main
from tritongemm.records.rows import read_rows


@pytest.mark.gpu
def test_rows_of_our_kernels_with_their_resources(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "gpu.csv"
    main(["bench", "--m", "512,1000", "--n", "768", "--k", "512", "--dtype", "bf16", "--layout",
          "nt", "--providers", "tritongemm,tritongemm-auto", "--budget", "0.2", "--host-time",
          "--out", str(out)])
    rows = list(read_rows(out))
    assert {r["status"] for r in rows} == {"ok"} and len(rows) == 8
    assert {r["timer"] for r in rows} <= {"graph", "blocks"}
    ours = [r for r in rows if r["provider"] == "tritongemm"]
    assert all(r["registers"] and r["shared_bytes"] is not None and r["occupancy"] and r["tflops"]
               for r in ours)


@pytest.mark.gpu
def test_inductor_writes_the_same_buffers(tmp_path):
    pytest.importorskip("torch")
    out = tmp_path / "inductor.csv"
    main(["bench", "--m", "512", "--n", "512", "--k", "512", "--providers", "inductor",
          "--budget", "0.2", "--out", str(out)])
    [row] = [r for r in read_rows(out) if r["provider"] == "inductor"]
    assert row["status"] == "ok", row["error"]
