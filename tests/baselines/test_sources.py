"""Every rung compiles for every architecture, without spills, to the instructions it is about."""

import re
import subprocess
from pathlib import Path

import pytest

from tritongemm.baselines.cuda import SOURCES
from tritongemm.baselines.cuda.compiler import compile_cuda, read_source
from tritongemm.baselines.cuda.rungs import CUDA_RUNGS, config_violation
from tritongemm.device import device_named
from tritongemm.errors import CompileError, DataFileError

nvrtc = pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-core and cuda-bindings")

ARCHS = (75, 80, 90, 100)
H200 = device_named("nvidia-h200")
#: Bytes that NVRTC 13.0, which torch's CUDA builds bring, puts away of rungs (name, ``block_m``,
#: architecture) where 13.4 puts away nothing.
SPILLED_BY_13_0 = {("transposed_a", 64, 90): 16, ("double_buffered", 128, 75): 32,
                   ("double_buffered", 128, 80): 32}


def _cases():
    for rung in CUDA_RUNGS.values():
        for aligned in ((True, False) if rung.vector else (True,)):
            for arch in ARCHS:
                if arch < rung.min_arch:
                    continue
                # The other variants differ in sizes only; one architecture is enough for them.
                for config in rung.variants if arch == 90 else rung.variants[:1]:
                    yield pytest.param(rung, config, aligned, arch,
                                       marks=() if arch == 90 else pytest.mark.thorough,
                                       id=f"{config}-{'16' if aligned else '4'}-sm_{arch}")


def _build(rung, config, aligned=True, arch=90):
    return compile_cuda(rung.source, rung.symbol, rung.macros(config, aligned), arch=arch)


@pytest.mark.parametrize("rung, config, aligned, arch", list(_cases()))
def test_shipped_parameters_compile_without_spills(rung, config, aligned, arch):
    found = _build(rung, config, aligned, arch).resources
    allowed = 0
    if nvrtc.nvrtcVersion()[1:] == (13, 0):
        allowed = SPILLED_BY_13_0.get((rung.name, config.block_m, arch), 0)
    assert found.spill_bytes <= allowed and found.stack_bytes <= allowed
    assert 0 < found.registers <= 255
    assert found.shared_bytes == rung.shared(config)


@pytest.mark.parametrize("name", ["pad", "unpad"])
@pytest.mark.parametrize("arch", ARCHS)
def test_pad_kernels_compile(name, arch):
    assert compile_cuda(SOURCES / "pad.cu", name, {"BM": 8, "BN": 32},
                        arch=arch).resources.spill_bytes == 0


def _tools() -> tuple[Path, Path]:
    triton = pytest.importorskip("triton", reason="its package brings cuobjdump and nvdisasm")
    folder = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    tools = folder / "cuobjdump", folder / "nvdisasm"
    if not all(tool.exists() for tool in tools):
        pytest.skip("this Triton brings no cuobjdump and nvdisasm")
    return tools


def _sass(code: bytes, folder: Path) -> list[str]:
    cuobjdump, nvdisasm = _tools()
    cubin = folder / "rung.cubin"
    cubin.write_bytes(code)
    done = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True,
                          env={"PATH": str(nvdisasm.parent)})
    assert done.returncode == 0, done.stderr
    # "@!PT": never executed, put there by the assembler.
    return re.findall(r"/\*[0-9a-f]{4,}\*/\s+(?!@!PT )(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)",
                      done.stdout)


VECTORISED = ("float4", "outer_product_float4", "ldg_vectorized", "transposed_a",
              "double_buffered_smem", "double_buffered", "warp_tiled")


@pytest.mark.parametrize("name", VECTORISED)
def test_vectorised_rung_loads_128_bits(name, tmp_path):
    rung = CUDA_RUNGS[name]
    sass = _sass(_build(rung, rung.variants[0]).code, tmp_path)
    barrier = next(i for i, name in enumerate(sass) if name.startswith("BAR"))
    loads = [i for i in sass[:barrier] if i.startswith("LDG")]  # of a tile; the others read C
    assert loads and all(".128" in i for i in loads)


def test_ldg_vectorized_takes_the_read_only_path(tmp_path):
    rung = CUDA_RUNGS["ldg_vectorized"]
    sass = _sass(_build(rung, rung.variants[0]).code, tmp_path)
    assert any("LDG" in i and ".CONSTANT" in i for i in sass)


@pytest.mark.parametrize("name", ["transposed_a", "double_buffered", "warp_tiled"])
def test_fragments_are_read_128_bits_at_a_time(name, tmp_path):
    rung = CUDA_RUNGS[name]
    sass = _sass(_build(rung, rung.variants[0]).code, tmp_path)
    loads = [i for i in sass if i.startswith("LDS")]
    assert loads and all(".128" in i for i in loads)


@pytest.mark.parametrize("config", CUDA_RUNGS["warp_tiled_async"].variants, ids=str)
def test_async_rung_copies_past_the_registers(config, tmp_path):
    rung = CUDA_RUNGS["warp_tiled_async"]
    sass = _sass(_build(rung, config).code, tmp_path)
    assert any(i.startswith("LDGSTS") and ".128" in i for i in sass)
    assert any(i.startswith("LDGSTS") and ".128" not in i for i in sass)
    assert any(i.startswith("LDGDEPBAR") for i in sass)


@pytest.mark.parametrize("config", CUDA_RUNGS["warp_tiled_async"].variants, ids=str)
def test_async_rung_is_mostly_multiply_adds(config, tmp_path):
    """Per k a warp must issue TM TN multiply-adds and (TM + TN) / 4 reads; little else."""
    rung = CUDA_RUNGS["warp_tiled_async"]
    sass = _sass(_build(rung, config).code, tmp_path)
    loop = _longest_straight_run(sass)
    assert loop.count("FFMA") == config.thread_m * config.thread_n * config.block_k
    assert loop.count("FFMA") / len(loop) > 0.87
    reads = [i for i in loop if i.startswith("LDS")]
    assert reads == ["LDS.128"] * ((config.thread_m + config.thread_n) // 4 * config.block_k)


def _longest_straight_run(sass):
    """The instructions between two branches: the main loop, which is unrolled over a tile."""
    branches = [i for i, name in enumerate(sass) if name.startswith("BRA")]
    start, end = max(zip(branches, branches[1:]), key=lambda pair: pair[1] - pair[0])
    return sass[start + 1:end]


def test_scalar_rung_has_no_128_bit_global_load(tmp_path):
    rung = CUDA_RUNGS["thread_tile_2d"]
    sass = _sass(_build(rung, rung.variants[0]).code, tmp_path)
    assert not any("LDG" in i and ".128" in i for i in sass)


def test_sources_include_only_files_beside_them():
    for path in SOURCES.glob("*.cu"):
        text = path.read_text(encoding="utf-8")
        for line in re.findall(r"^[ \t]*#.*include.*$", text, re.MULTILINE):
            assert line == '#include "vector4.cuh"', path.name
        assert "#include" not in read_source(path), path.name
        assert 'extern "C"' in text, path.name


def test_every_rung_has_one_source_and_every_source_a_rung():
    assert {p.stem for p in SOURCES.glob("*.cu")} == {*CUDA_RUNGS, "pad"}
    assert [r.number for r in CUDA_RUNGS.values()] == list(range(1, 20))


@pytest.mark.parametrize("helper", ["load4", "store4", "copy16"])
def test_a_device_function_is_written_once(helper):
    written = [path.name for path in SOURCES.glob("*.cu*")
               if re.search(rf"__device__.* {helper}\(", path.read_text(encoding="utf-8"))]
    assert len(written) == 1, written


def test_an_error_names_the_line_of_the_source_or_of_what_it_includes(tmp_path):
    source = tmp_path / "broken.cu"
    (tmp_path / "vector4.cuh").write_text("// one\nint two;\n")
    source.write_text('// one\n#include "vector4.cuh"\nint three = four;\n')
    with pytest.raises(CompileError, match=r"broken\.cu\(3\)"):
        compile_cuda(source, "three", arch=90)
    (tmp_path / "vector4.cuh").write_text("// one\nint two = five;\n")
    with pytest.raises(CompileError, match=r"vector4\.cuh\(2\)"):
        compile_cuda(source, "three", arch=90)
    (tmp_path / "vector4.cuh").unlink()
    with pytest.raises(DataFileError, match="vector4.cuh"):
        compile_cuda(source, "three", arch=90)


@pytest.mark.parametrize("rung", CUDA_RUNGS.values(), ids=lambda r: r.name)
def test_shipped_parameters_are_legal(rung):
    for config in rung.variants:
        assert config_violation(config, H200) is None
        assert rung.canonical(config) == config
