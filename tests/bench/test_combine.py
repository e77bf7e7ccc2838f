"""The median row of several processes, and the control's verdict."""

import pytest

from tritongemm.bench.combine import control_of, median_rows


def row(ratio=None, time_us=10.0, status="ok", provider="tritongemm", **more):
    return {"provider": provider, "status": status, "ratio_vs_torch": ratio,
            "time_us_p50": time_us if status == "ok" else None, **more}


@pytest.mark.parametrize(("ratios", "median"), [
    ([1.3, 1.1, 1.2], 1.2), ([1.1], 1.1), ([1.2, 1.1], 1.1), ([5.0, 1.0, 1.1, 0.1, 1.2], 1.1),
])
def test_the_median_is_a_whole_row_by_ratio(ratios, median):
    passes = [{"a": row(r, time_us=10 / r, error=f"row {r}")} for r in ratios]
    [found] = median_rows(passes)
    assert found["ratio_vs_torch"] == median and found["error"] == f"row {median}"
    assert found["time_us_p50"] == 10 / median and found["n_processes"] == len(ratios)


def test_without_ratios_the_median_is_by_time():
    [found] = median_rows([{"a": row(None, t)} for t in (30.0, 10.0, 20.0)])
    assert found["time_us_p50"] == 20.0


@pytest.mark.parametrize("status", ["wrong", "died", "timeout", "oom"])
def test_a_median_hides_no_failure(status):
    [found] = median_rows([{"a": row(1.1)}, {"a": row(status=status, error="why")},
                           {"a": row(1.1)}])
    assert (found["status"], found["error"], found["n_processes"]) == (status, "why", 3)


def test_n_processes_counts_the_passes_that_have_the_shape():
    first, second = median_rows([{"a": row(1.1), "b": row(1.2)}, {"a": row(1.0)}])
    assert (first["n_processes"], second["n_processes"]) == (2, 1)
    assert second["ratio_vs_torch"] == 1.2


@pytest.mark.parametrize(("ratios", "timer", "void"), [
    ([1.0], "graph", False), ([1.0049], "graph", False), ([1.0051], "graph", True),
    ([0.9949], "graph", True), ([1.02, 0.98], "graph", False), ([1.04], "host", False),
    ([1.06], "host", True),
])
def test_the_control_voids_a_run_outside_half_a_per_cent(ratios, timer, void):
    control = control_of([row(r, provider="torch-control", timer=timer) for r in ratios])
    assert control.void is void and control.count == len(ratios)
    assert not void or f"{control.mean_ratio:.4f}" in control.reason


def test_without_control_rows_there_is_no_verdict():
    control = control_of([row(3.0), row(status="oom", provider="torch-control")])
    assert control.mean_ratio is None and not control.void
