"""compile_cuda: any kernel, a disk cache, and errors that say what to do."""

import builtins
import logging

import pytest

from tritongemm import settings
from tritongemm.baselines import compile_cuda
from tritongemm.baselines.cuda import compiler
from tritongemm.baselines.cuda.launcher import pack
from tritongemm.errors import (
    CompileError,
    DataFileError,
    DeviceError,
    MissingDependencyError,
    UsageError,
)

SCALE = """extern "C" __global__ void __launch_bounds__(THREADS)
scale(float *x, float factor, int count)
{
    const int i = blockIdx.x * THREADS + threadIdx.x;
    if (i < count) x[i] *= factor;
}
"""


@pytest.fixture
def cache(tmp_path):
    with settings.override(cache_dir=tmp_path):
        yield tmp_path / "cuda"


@pytest.fixture
def nvrtc():
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs cuda-core and cuda-bindings")


def test_second_compile_comes_from_the_disk(cache, nvrtc):
    first = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    second = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch="sm_90")
    assert not first.cached and second.cached
    assert (second.code, second.resources, second.log) == (first.code, first.resources, first.log)
    assert first.code[:4] == b"\x7fELF" and first.resources.registers > 0


@pytest.mark.parametrize("changed", [
    {"macros": {"THREADS": 128}}, {"arch": 80}, {"source": SCALE + "\n"}, {"options": ("-O1",)}])
def test_anything_that_changes_the_code_compiles_again(cache, nvrtc, changed):
    base = {"source": SCALE, "name": "scale", "macros": {"THREADS": 256}, "arch": 90}
    compile_cuda(**base)
    assert not compile_cuda(**{**base, **changed}).cached


@pytest.mark.parametrize("damage", [b"", b"not json\n", b'{"sha256": "0"}\n', b"[]\nxx"])
def test_damaged_cache_file_is_made_again(cache, nvrtc, damage, caplog):
    first = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    (path,) = cache.glob("*.cubin")
    path.write_bytes(damage)
    with caplog.at_level(logging.WARNING):
        again = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    assert not again.cached and again.code == first.code and "compiled again" in caplog.text
    assert compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90).cached


@pytest.mark.parametrize("damage", [
    lambda whole: whole[:-1], lambda whole: whole.replace(b'"registers": ', b'"registers": 1'),
    lambda whole: whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]],
    ids=("cut", "another number", "one bit"))
def test_an_altered_cubin_or_header_is_made_again(cache, nvrtc, damage):
    compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    (path,) = cache.glob("*.cubin")
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert damage(whole) != whole
    assert not compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90).cached
    assert compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90).cached


def test_a_cubin_that_others_may_write_to_is_made_again(cache, nvrtc):
    compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    (path,) = cache.glob("*.cubin")
    path.chmod(0o666)
    assert not compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90).cached
    assert compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90).cached


def test_cache_that_cannot_be_written_costs_only_the_cache(tmp_path, nvrtc, caplog):
    (tmp_path / "file").write_text("")
    with settings.override(cache_dir=tmp_path / "file"):
        kernel = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    assert kernel.code and "not cached" in caplog.text


def test_error_shows_the_log_with_the_source_line(cache, nvrtc):
    broken = SCALE.replace("x[i] *= factor", "x[i] *= faktor")
    with pytest.raises(CompileError) as caught:
        compile_cuda(broken, "scale", {"THREADS": 256}, arch=90)
    message = str(caught.value)
    assert "scale.cu(5)" in message and "x[i] *= faktor;" in message and "-DTHREADS=256" in message
    assert not list(cache.glob("*"))


def test_path_is_read_and_named(cache, nvrtc, tmp_path):
    path = tmp_path / "mine.cu"
    path.write_text(SCALE)
    assert compile_cuda(path, "scale", {"THREADS": 64}, arch=90).name == "scale"
    path.write_text(SCALE.replace("float factor", "flaot factor"))
    with pytest.raises(CompileError, match=r"mine\.cu\(2\)"):
        compile_cuda(path, "scale", {"THREADS": 64}, arch=90)
    with pytest.raises(DataFileError, match="absent.cu"):
        compile_cuda(tmp_path / "absent.cu", "scale", arch=90)


def test_absent_kernel_name_is_said(cache, nvrtc):
    with pytest.raises(CompileError, match='defines no kernel \'sacle\'.*extern "C"'):
        compile_cuda(SCALE, "sacle", {"THREADS": 256}, arch=90)


def test_binary_from_nvrtcs_own_cache_is_compiled_again_for_its_log(cache, nvrtc, monkeypatch):
    real, asked = compiler._compile, []

    def silent(*args, fresh=False):
        code, log = real(*args, fresh=fresh)
        asked.append(fresh)
        return code, log if fresh else ""

    monkeypatch.setattr(compiler, "_compile", silent)
    kernel = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    assert kernel.resources.registers > 0 and asked == [False, True]
    monkeypatch.setattr(compiler, "_compile", lambda *a, fresh=False: (real(*a)[0], ""))
    with pytest.raises(CompileError, match="does not say what 'scale' takes"):
        compile_cuda(SCALE, "scale", {"THREADS": 128}, arch=90)


def test_architecture_unknown_to_the_compiler_is_a_compile_error(cache, nvrtc):
    with pytest.raises(CompileError, match="sm_10"):
        compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=10)


@pytest.mark.parametrize("arch", ["hopper", "compute_90", 9.0, "sm_90; rm", ""])
def test_malformed_architecture_is_refused(cache, arch):
    with pytest.raises(UsageError, match="not an architecture"):
        compile_cuda(SCALE, "scale", arch=arch)


@pytest.mark.parametrize("macros", [{"A B": 1}, {"": 1}, {1: 1}, {"-x": 1}, {"A": None},
                                    {"A": [1]}])
def test_malformed_macro_is_refused(cache, macros):
    with pytest.raises(UsageError, match="macro"):
        compile_cuda(SCALE, "scale", macros, arch=90)


@pytest.mark.parametrize("name", ["", "a b", "1a", None])
def test_malformed_kernel_name_is_refused(cache, name):
    with pytest.raises(UsageError, match="not an identifier"):
        compile_cuda(SCALE, name, arch=90)


def test_without_a_gpu_the_architecture_must_be_given(cache):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match='arch="sm_90"'):
        compile_cuda(SCALE, "scale", {"THREADS": 256})


@pytest.mark.parametrize("absent, named", [("cuda.core", "cuda-core"),
                                           ("cuda.bindings", "cuda-bindings")])
def test_missing_package_names_the_install_command(cache, monkeypatch, absent, named):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == absent or name.startswith(f"{absent}."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        if absent == "cuda.bindings" and name == "cuda.core":
            return None
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf"{named}.*'\.\[cuda\]'"):
        compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)


def test_resources_are_those_of_the_named_kernel():
    log = """ptxas info    : Compiling entry function 'one' for 'sm_90'
    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 10 registers, used 1 barriers, 1024 bytes smem
ptxas info    : Compiling entry function 'two' for 'sm_90'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 20 registers, 400 bytes cmem[0]"""
    assert compiler.read_resources(log, "one") == compiler.Resources(10, 16, 8, 1024)
    assert compiler.read_resources(log, "two") == compiler.Resources(20, 0, 0, 0)
    assert compiler.read_resources(log, "tw") is None


@pytest.mark.parametrize("number", [1, 1.5, True])
def test_plain_python_number_is_refused_as_an_argument(number):
    pytest.importorskip("torch")
    with pytest.raises(UsageError, match=r"argument 2 of scale.*numpy\.int32"):
        pack(number, 2, "scale")


def test_arguments_keep_their_width():
    pytest.importorskip("torch")
    import ctypes

    import numpy as np

    assert pack(None, 0, "k") == 0
    for value in (np.int32(3), np.float32(2), np.int64(1), ctypes.c_short(4)):
        assert pack(value, 0, "k") is value


def test_cpu_tensor_and_foreign_objects_are_refused_as_arguments():
    torch = pytest.importorskip("torch")
    with pytest.raises(UsageError, match="tensor on cpu"):
        pack(torch.ones(1), 0, "scale")
    with pytest.raises(UsageError, match="is a str"):
        pack("x", 0, "scale")


def test_launch_without_a_gpu_is_a_device_error(cache, nvrtc):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    kernel = compile_cuda(SCALE, "scale", {"THREADS": 256}, arch=90)
    with pytest.raises(DeviceError, match="needs a CUDA device"):
        kernel.launch(1, 256, [None])
