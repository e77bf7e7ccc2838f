"""The compile pool: each build once, and one that fails, hangs or dies stops no other."""

import fakes
import pytest

from tritongemm import settings
from tritongemm.config import KernelConfig
from tritongemm.device import representative
from tritongemm.errors import CompileError
from tritongemm.workers.compile_pool import compile_all

DEVICE = {"device": representative(90)}


def builds(*configs):
    return [(config.config_id, fakes.problem(), config) for config in configs]


def compiled(*configs, **options):
    return compile_all(builds(*configs), DEVICE, **{"target": fakes.BUILDER, "workers": 2,
                                                    **options})


def test_every_build_is_done_and_counted():
    seen = []
    configs = [fakes.config(n) for n in (1, 2, 3)]
    found = compiled(*configs, progress=lambda done, total: seen.append((done, total)))
    assert {key: outcome.status for key, outcome in found.items()} == {
        config.config_id: "ok" for config in configs}
    assert seen == [(1, 3), (2, 3), (3, 3)]


def test_nothing_to_build_starts_no_process():
    assert compile_all([], DEVICE, target="no_such_module:x", workers=2) == {}


@pytest.mark.parametrize(("group_m", "status", "says"), [
    (fakes.REFUSED, "compile", "the assembler gave up in kernel.ptx"),
    (fakes.DIES, "died", "exit status 9"), (fakes.HANGS, "timeout", "compiling took over 1 s")])
def test_a_build_that_ends_badly_costs_itself_alone(group_m, status, says):
    bad = fakes.config(2, group_m)
    found = compiled(fakes.config(1), bad, fakes.config(3), workers=1, timeout_s=1.0)
    assert found[bad.config_id].status == status and says in found[bad.config_id].reason
    assert sorted(outcome.status for outcome in found.values()) == sorted(["ok", "ok", status])


def test_a_builder_that_cannot_start_is_an_error():
    with pytest.raises(CompileError, match="no compile process can start: .*'triton'"):
        compiled(fakes.config(1), target="fakes:NoBuilder")


def test_an_illegal_config_is_an_outcome():
    config = KernelConfig("no_such_kernel", 64, 64, 64)
    (outcome,) = compile_all(builds(config), DEVICE, workers=1).values()
    assert not outcome.ok and "no_such_kernel" in outcome.reason


def test_what_was_compiled_has_its_seconds_and_what_was_stored_has_none(tmp_path, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITONGEMM_CACHE_DIR", str(tmp_path))
    settings.reload()
    config = KernelConfig("tiled", 32, 32, 32)
    first, second = (compile_all(builds(config), DEVICE, workers=1)[config.config_id]
                     for _ in range(2))
    assert first.values["compile_s"] > 0 and first.ok
    assert "compile_s" not in second.values and second.ok
