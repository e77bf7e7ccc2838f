"""Records what a result was measured with: versions, device, driver, git revision.

No host name, no user, no path: a record may be published.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tritongemm.measure import clocks

#: Fields that must be equal for two times to be comparable.
_COMPARABLE = ("device", "arch", "driver", "cuda", "torch", "triton", "cpu", "cache_multiple")
_PACKAGES = ("tritongemm", "torch", "triton", "numpy", "cuda-core", "cuda-bindings",
             "nvidia-ml-py", "numba")


def capture(index: int | None = None) -> dict[str, object]:
    """Versions of Python, packages, CUDA and driver; device; git revision of a checkout; total size
    of the rotated operand sets over the L2 size (``cache_multiple``).

    Args:
        index: the CUDA device; by default the current one. Without CUDA the device is the CPU.
    """
    import torch

    from tritongemm.measure.operands import CACHE_MULTIPLE

    record: dict[str, object] = {
        "python": platform.python_version(),
        "system": platform.system().lower(),
        "machine": platform.machine(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
        # Not torch's own subclass of str: who unpickles the record would import torch, for seconds.
        "torch": str(torch.__version__),
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "driver": clocks.driver_version(),
        "cpu": _cpu_model(),
        "cache_multiple": CACHE_MULTIPLE,
        **_revision(),
    }
    if torch.cuda.is_available():
        index = torch.cuda.current_device() if index is None else index
        properties = torch.cuda.get_device_properties(index)
        record["device"] = properties.name
        record["arch"] = properties.major * 10 + properties.minor
        record["device_memory_mib"] = properties.total_memory // 2**20
        record["power_cap_w"] = clocks.sampler(index).power_cap_w()
    else:
        record["device"] = "cpu"
        record["threads"] = torch.get_num_threads()
    return record


def fingerprint(environment: Mapping[str, object]) -> str:
    """A fingerprint, 12 hex digits, of what times depend on: device, driver, CUDA, torch, triton,
    CPU and ``cache_multiple``.

    The git revision is not part of it, so a commit does not invalidate earlier times.
    """
    part = _comparable(environment)
    return hashlib.sha256(json.dumps(part, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _comparable(environment: Mapping[str, object]) -> dict[str, object]:
    part = {key: environment.get(key) for key in _COMPARABLE}
    if part["device"] != "cpu":
        part["cpu"] = None  # a device's times do not depend on it
    return part


def differences(environment: Mapping[str, object], other: Mapping[str, object], place: object
                ) -> list[str]:
    """How two environments of unequal fingerprints differ, one phrase a field: ``driver 2 there and
    1 on PLACE``, where ``place`` names where ``other`` was captured."""
    theirs, ours = _comparable(environment), _comparable(other)
    return [f"{name} {theirs[name]} there and {ours[name]} on {place}" for name in _COMPARABLE
            if theirs[name] != ours[name]] or ["the environment"]


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor()
    for line in text.splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _revision() -> dict[str, object]:
    """The checkout's commit and whether files differ from it; nothing outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return {}

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True,
                                  text=True, timeout=10, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {"git_revision": commit, "git_dirty": bool(changed) if changed is not None else None}
