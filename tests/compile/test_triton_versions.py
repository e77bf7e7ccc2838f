"""Every shipped kernel compiles with each minor version of Triton that they are used with.

Each version runs in a process of its own, from its wheel unpacked beside the environment. A wheel
is taken from the folder TRITON_WHEELS, or downloaded, 200 MB each: what is not installed is slow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="compiling needs triton")

from tritongemm import settings
from tritongemm.kernels.gluon_support import KNOWN
from tritongemm.kernels.triton_version import triton_version

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")


def wheel(version: str, folder: Path) -> Path:
    """The wheel of a version for this Python. Skips where it cannot be had."""
    kept = Path(os.environ.get("TRITON_WHEELS") or folder)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"triton-{version}-{tag}-{tag}-*.whl"
    if not list(kept.glob(pattern)):
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
                 f"triton=={version}"], capture_output=True, text=True, timeout=600, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            pytest.skip(f"the wheel of Triton {version} cannot be downloaded: {error}")
        if done.returncode:
            pytest.skip(f"the wheel of Triton {version} cannot be downloaded: "
                        f"{done.stderr.strip().splitlines()[-1:]}")
        kept = folder
    return next(iter(kept.glob(pattern)))


def unpack(archive: Path, folder: Path) -> None:
    """As an installer does: the assembler that Triton brings must stay executable."""
    with zipfile.ZipFile(archive) as file:
        for member in file.infolist():
            path = Path(file.extract(member, folder))
            if mode := member.external_attr >> 16:
                path.chmod(mode)


def sample(version: str, path: list[Path], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = settings.child_environment(
        PYTHONPATH=os.pathsep.join(map(str, [*path, ROOT])), **variables)
    return subprocess.run([sys.executable, str(HERE / "versions_sample.py"), version], text=True,
                          env=environment, capture_output=True, timeout=900, check=False)


def test_the_versions_are_those_that_gluon_is_trusted_with():
    minors = [tuple(map(int, v.split(".")[:2])) for v in VERSIONS]
    assert (minors[0], minors[-1]) == KNOWN
    assert [minor for _, minor in minors] == list(range(minors[0][1], minors[-1][1] + 1))


def test_every_kernel_compiles_with_the_installed_triton():
    """Triton's cache, which names the version and the code, holds what other tests compiled."""
    done = sample(triton_version(), [])
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@pytest.mark.slow
@pytest.mark.parametrize("version", [v for v in VERSIONS if v != triton_version()])
def test_every_kernel_compiles_with_each_triton(version, tmp_path):
    unpack(wheel(version, tmp_path), tmp_path / "unpacked")
    done = sample(version, [tmp_path / "unpacked"], TRITON_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
