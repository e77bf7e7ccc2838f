"""``tritongemm doctor``: reports what works, what is missing, and the command that fixes it.

Works without torch, so each package is probed separately.
"""

from __future__ import annotations

import argparse
import importlib
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tritongemm import settings
from tritongemm.cli.config_check import damaged
from tritongemm.errors import TritonGemmError, install_command, printable
from tritongemm.records.installed import (
    TESTED,
    how_tested,
    interpreter_obstacle,
    release,
    version_of,
)

PYTHONS = ((3, 10), (3, 13))
#: What setup.cfg asks for.
MINIMUM = {"torch": (2, 10), "triton": (3, 6)}
#: Optional distribution -> its extra, and the features that need it.
OPTIONAL = {
    "cuda-core": ("cuda", "the CUDA C++ rungs of the ladder"),
    "numba": ("cpu", "the compiled host rungs of the ladder"),
    "nvidia-ml-py": (None, "clocks, power and energy in the rows"),
    "matplotlib": ("report", "PNG plots"),
}


@dataclass(frozen=True)
class Check:
    """One line of the diagnosis.

    Attributes:
        name: what was checked.
        ok: whether it is present and usable.
        detail: version, place, or what is wrong.
        fix: the command or step that fixes it; empty when ok.
        partly: not ok, and what needs it works all the same, with less.
        word: of a check that is not ok, in place of ``damaged`` (partly) or ``missing``.
    """

    name: str
    ok: bool
    detail: str
    fix: str = ""
    partly: bool = False
    word: str = ""

    def __str__(self) -> str:
        word = "ok" if self.ok else self.word or ("damaged" if self.partly else "missing")
        line = f"{word:<8}{self.name:<20}{self.detail}"
        return printable(line if self.ok or not self.fix else f"{line}\n{'':28}-> {self.fix}")


@dataclass(frozen=True)
class Diagnosis:
    """All checks, and the conclusions from them."""

    checks: tuple[Check, ...]

    def ok(self, *names: str) -> bool:
        """Whether every check so named is ok, at least in part."""
        found = {check.name: check.ok or check.partly for check in self.checks}
        return all(found.get(name, False) for name in names)

    @property
    def gpu(self) -> bool:
        """``tritongemm.matmul`` can run its kernels on a GPU here."""
        return self.ok("python", "torch", "GPU", "cache", "configs") and (
            self.ok("triton", "C compiler", "Python headers") or self.ok("shipped kernels"))

    @property
    def interpreter(self) -> bool:
        """Kernels can run on CPU tensors under TRITON_INTERPRET=1."""
        return self.ok("python", "torch", "triton", "interpreter", "configs")


def _python() -> Check:
    version, low, high = sys.version_info[:2], *PYTHONS
    return Check("python", low <= version, platform.python_version() + (
        "" if version <= high else f" (tested up to {high[0]}.{high[1]})"),
        f"use Python {low[0]}.{low[1]} to {high[0]}.{high[1]}")


def _import(package: str) -> Check:
    """Checks ``package`` by importing it, so that a broken installation counts as missing."""
    fix = f"{sys.executable} -m pip install {package}"
    try:
        version = str(importlib.import_module(package).__version__)
    except ModuleNotFoundError as error:
        if error.name == package:
            if package == "triton" and platform.system() != "Linux":
                fix = f"Triton has no build for {platform.system()}; calls go to torch here"
            return Check(package, False, "not installed", fix)
        return Check(package, False, f"cannot be imported: {error}", fix)
    except (ImportError, OSError, AttributeError, RuntimeError) as error:
        # OSError: a CUDA library does not load; any of these: a build against another numpy. The
        # reason becomes the line's detail.
        return Check(package, False, f"cannot be imported: {error}",
                     f"{fix} --force-reinstall")
    low = MINIMUM.get(package, ())
    if release(version)[:len(low)] < low:
        wanted = ".".join(map(str, low))
        return Check(package, False, f"{version} is older than {wanted}",
                     f"{sys.executable} -m pip install --upgrade '{package}>={wanted}'")
    return Check(package, True, version)


def _pair(torch: Check, triton: Check) -> Iterable[Check]:
    """Whether these versions of torch and Triton were tested together."""
    if torch.ok and triton.ok:
        tested = how_tested(torch.detail, triton.detail)
        yield Check("torch with triton", True, f"tested: {tested}" if tested else
                    f"this pair was not tested; docs/getting-started.md lists those that were "
                    f"({', '.join(f'{a} with {b}' for a, b in TESTED)})")


def _gluon(triton: Check) -> Check:
    """Whether the Gluon kernels run with this Triton; otherwise the other kernels are used."""
    from tritongemm.kernels.gluon_support import KNOWN, obstacle

    if not triton.ok:
        return Check("Gluon kernels", False, "cannot be looked for without triton",
                     "install triton first")
    reason = obstacle()
    if reason is None:
        try:
            importlib.import_module("triton.experimental.gluon.language.nvidia.hopper")
        except (ImportError, OSError, AttributeError, RuntimeError) as error:
            reason = f"Gluon cannot be imported: {error}"
    if reason is None:
        return Check("Gluon kernels", True, "the fastest on sm_90")
    low, high = (".".join(map(str, version)) for version in KNOWN)
    return Check("Gluon kernels", False, f"{reason}; the tl kernels run instead",
                 f"{sys.executable} -m pip install 'triton>={low},<={high}.*', if your torch "
                 "allows it")


def _required(package: str) -> Check:
    version = version_of(package)
    return Check(package, version is not None, version or "not installed",
                 f"{sys.executable} -m pip install {package}")


def _driver() -> Check:
    """The NVIDIA driver, read with nvidia-smi, which needs neither torch nor NVML's Python package.
    """
    smi = shutil.which("nvidia-smi")
    fix = "install NVIDIA's driver; without one, calls go to torch"
    if smi is None:
        return Check("driver", False, "no nvidia-smi in PATH", fix)
    try:
        done = subprocess.run([smi, "--query-gpu=driver_version", "--format=csv,noheader"],
                              capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Check("driver", False, f"nvidia-smi failed: {error}", fix)
    lines = done.stdout.split()
    if done.returncode or not lines:
        reason = (done.stderr or done.stdout).strip().splitlines() or ["no GPU"]
        return Check("driver", False, f"nvidia-smi: {reason[0]}", fix)
    return Check("driver", True, lines[0])


def _gpu(torch_ok: bool) -> list[Check]:
    """CUDA of torch's build, and the devices it sees."""
    if not torch_ok:
        return [Check("GPU", False, "cannot be looked for without torch", "install torch first")]
    import torch

    cuda = torch.version.cuda
    checks = [Check("CUDA", cuda is not None, cuda or "torch was built without CUDA",
                    "install a CUDA build of torch (pytorch.org, Get Started)")]
    if not torch.cuda.is_available():
        return [*checks, Check("GPU", False, "torch sees no CUDA device",
                               "check the driver (nvidia-smi) and CUDA_VISIBLE_DEVICES; with no "
                               "GPU, try kernels with TRITON_INTERPRET=1")]
    for index in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(index)
        sm = p.major * 10 + p.minor
        checks.append(Check("GPU" if index == 0 else f"GPU {index}", sm >= 80,
                            f"{p.name}, sm_{sm}, {p.multi_processor_count} SMs, "
                            f"{p.total_memory / 2**30:.0f} GiB",
                            "kernels need sm_80 or later; calls go to torch"))
    return checks


def _compiler() -> Check:
    """The C compiler with which Triton builds its launchers: CC if set, else gcc or clang."""
    names = [settings.child_environment().get("CC", ""), "gcc", "clang", "cc"]
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    return Check("C compiler", found is not None, found or "no gcc, clang or cc in PATH",
                 "apt install gcc (or your system's compiler package)")


def _headers() -> Check:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return Check("Python headers", header.is_file(),
                 str(header) if header.is_file() else f"{header} is not there",
                 f"apt install python{version}-dev (or your system's package of headers)")


def _interpreter() -> Check:
    obstacle = interpreter_obstacle()
    if obstacle is None:
        return Check("interpreter", True, "TRITON_INTERPRET=1 runs kernels on CPU tensors")
    fix = (f"{sys.executable} -m pip install 'numpy<2.4'" if "numpy <" in obstacle
            else f"{sys.executable} -m pip install triton numpy")
    return Check("interpreter", False, obstacle, fix)


def _optional(distribution: str) -> Check:
    version = version_of(distribution)
    extra, what = OPTIONAL[distribution]
    command = install_command(extra) if extra else f"pip install {distribution}"
    return Check(distribution, version is not None, version or f"not installed; needed for {what}",
                 f"{sys.executable} -m {command}")


def _profiler() -> Check:
    found = shutil.which("ncu") or shutil.which("ncu", path="/usr/local/cuda/bin")
    return Check("ncu", found is not None, found or "not in PATH: no hardware counters",
                 "install NVIDIA Nsight Compute")


def _configs() -> list[Check]:
    """The folders that configuration is read from and written to, and this device's tuned tables.
    """
    from tritongemm.device import current_device

    try:
        roots, written = settings.config_roots(), settings.config_root()
    except TritonGemmError as error:
        values = settings.current()
        asked = values.config_dir is not None or values.config_only
        return [Check("configs", False, str(error), (
            "correct or unset TRITONGEMM_CONFIG_DIR and TRITONGEMM_CONFIG_ONLY" if asked
            else "in a clone: git checkout configs; from a wheel: "
                 f"{sys.executable} -m pip install --force-reinstall FILE.whl"))]

    def tables(slug: str, *among: Path) -> int:
        return len({path.name for root in among for path in (root / "tuned" / slug).glob("*.json")})

    checks = []
    for number, root in enumerate(roots, 1):
        name = "configs" if number == 1 else f"configs {number}"
        count = len(list((root / "tuned").glob("*/*.json")))
        origin = settings.origin_of(root)
        detail = f"{origin}: {root}, {count} tuned table{'' if count == 1 else 's'}"
        detail += "; publish writes here" if root == written else ""
        if bad := damaged(root):
            detail += f"; {len(bad)} damaged, which calls leave out"
        checks.append(Check(name, not bad, detail, partly=True))
        shipped = origin == "shipped"
        checks += [Check(f"{name}, file {which}", False, str(error), (
            f"reinstall tritongemm, or in a clone: git checkout {error.path}" if shipped
            else f"correct or delete {error.path}"), partly=True)
            for which, error in enumerate(bad, 1)]
    try:
        device = current_device()
    except (TritonGemmError, ImportError, RuntimeError, OSError) as error:
        if settings.current().interpret:  # it needs no GPU, only a device file
            return [*checks, Check("tuned tables", False, str(error),
                                   "correct the device files named above")]
        # The reason has its own line (torch or GPU).
        devices = sorted({p.name for root in roots for p in (root / "tuned").glob("*")
                          if p.is_dir()})
        return [*checks, Check("tuned tables", False, "no GPU to look up; there are tables for: "
                               + (", ".join(devices) or "none"), "see GPU above")]
    if device.arch < 80:  # which the line of the GPU explains
        return [*checks, Check("tuned tables", False, f"none for {device.slug}", "see GPU above")]
    # Not before: they want numpy, which may be missing where there is no GPU to look up.
    from tritongemm.records.calibration import read_shipped
    from tritongemm.selection.sibling import calibrated as has_model
    from tritongemm.selection.sibling import sibling_of, with_rows_for

    own = tables(device.slug, *roots)
    # Of bf16 products; float32 may have another.
    sibling, other = with_rows_for(device, "bf16"), sibling_of(device, "bf16")
    if has_model(device.slug, "bf16"):
        calibrated = device.slug
    elif other is not None and read_shipped(device.slug, other.slug) is not None:
        calibrated = f"{other.slug} and {device.slug}"
    else:
        calibrated = other.slug if other is not None else ""
    served = [f"{own or 'none'} for {device.slug}"]
    if sibling is not None and tables(sibling.slug, *roots):
        served.append(f"{tables(sibling.slug, *roots)} of its sibling {sibling.slug}")
    served.append(f"else the model of {calibrated} chooses" if calibrated
                  else "else the nearest row; where none is near, torch runs products until "
                  "`tritongemm calibrate --quick` (policy auto)")
    quick = "" if calibrated else "tritongemm calibrate --quick && "
    return [*checks, Check("tuned tables", own > 0 or calibrated != "", "; ".join(served),
                           f"{quick}tritongemm sweep square --journal sweep.jsonl "
                           "&& tritongemm publish sweep.jsonl")]


def _environment() -> Check:
    """Whether a misspelled variable is set, which nothing reads."""
    unknown = settings.unknown_variables()
    fixes = [f"rename {name} to {close}, or unset it" if close else f"unset {name}"
             for name, close in unknown.items()]
    return Check("environment", not unknown, f"no setting is named {', '.join(unknown)}"
                 if unknown else f"each {settings.PREFIX}* variable that is set is known",
                 "; ".join(fixes), word="unknown")


def _cache() -> Check:
    """Whether compiled kernels can be stored: writes and removes a file."""
    try:
        root = settings.cache_root()
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root) as file:
            file.write(b"tritongemm")
    except ImportError as error:
        return Check("cache", False, f"its place is not known: {error}",
                     f"{sys.executable} -m pip install platformdirs")
    except OSError as error:
        return Check("cache", False, f"cannot be written: {error}",
                     "set TRITONGEMM_CACHE_DIR to a folder that can be written")
    return Check("cache", True, str(root))


def _shipped(torch_ok: bool) -> Check:
    """The compiled kernels of an installed pack, for the GPU here, else sm_90."""
    from tritongemm.kernels import pack
    from tritongemm.records.revision import choices_digest

    name, arch = "shipped kernels", 90
    if torch_ok:
        import torch

        if torch.cuda.is_available():
            major, minor = torch.cuda.get_device_capability()
            arch = 10 * major + minor
    if arch < 80:
        return Check(name, False, f"there are none for sm_{arch}", "see GPU above")
    fix = ("" if arch == 90 else "tritongemm calibrate --quick, then ") + (
        f"tritongemm cubins build FOLDER --wheel{'' if arch == 90 else f' --arch {arch}'} && "
        f"{sys.executable} -m pip install FOLDER/dist/*.whl")
    found = pack.found(arch)
    if found.pack is None:
        return Check(name, False, f"{found.reason}; first calls compile theirs", fix)
    made = found.pack
    detail = (f"{made.entries} for sm_{arch}, {made.bytes() / 1e6:.1f} MB, by Triton {made.triton} "
              f"from revision {made.device_code[:12]}: {made.folder}")
    if bad := made.damage():
        return Check(name, False, f"{detail}; {len(bad)} damaged, which are compiled instead, such "
                     f"as: {bad[0]}", fix, partly=True)
    if made.choices and made.choices != choices_digest():
        detail += ("; chosen by other tables, calibrations or settings than those here, so more "
                   "first calls may compile")
    return Check(name, True, detail)


def _native() -> Check:
    """Whether the native dispatcher is on, and can be loaded."""
    name = "native dispatcher"
    if settings.current().native == "off":
        return Check(name, True, "off: TRITONGEMM_NATIVE=0")
    try:
        from tritongemm.native import failure, find
        from tritongemm.native.compiler import compiler_path
        from tritongemm.native.loading import NOT_BUILT, wanted

        if not wanted():
            return Check(name, True, "not used: there is no GPU")
        found, failed = find(), failure()
    except ImportError as error:  # the line of what is missing has the fix
        return Check(name, False, str(error))
    refused = f"; the package's own is not used: {found.refused}" if found.refused else ""
    if found.module is not None:
        return Check(name, True, f"{found.path}{refused}")
    if found.obstacle == NOT_BUILT and compiler_path() is None:
        return Check(name, False, "it is not built, and there is no C++ compiler: the Python path "
                     f"runs every call{refused}", "install g++ or clang")
    if found.obstacle == NOT_BUILT and failed is not None:
        return Check(name, False, failed + refused, "tritongemm native --again")
    if found.obstacle == NOT_BUILT and settings.current().native == "auto":
        return Check(name, True, "not built yet: the first product builds it in the background; "
                                 f"`tritongemm native` does so now{refused}")
    return Check(name, False, f"{found.obstacle}{refused}", "tritongemm native --again")


def _store() -> Check:
    """Every compiled kernel in the cache, read and checked; what is damaged is removed."""
    from tritongemm.kernels import store

    try:
        found, place = store.check(), store.root()
    except ImportError as error:
        return Check("compiled kernels", False, f"their place is not known: {error}",
                     f"{sys.executable} -m pip install platformdirs")
    left = found.damaged + found.foreign - found.removed
    detail = (f"{found.whole} whole, {found.damaged} damaged, {found.foreign} of another owner or "
              f"writable by others; {found.removed} removed, which are compiled again when a call "
              "needs them")
    return Check("compiled kernels", left == 0, detail if found.removed else
                 detail.partition(";")[0],
                 f"{left} files that are not loaded could not be removed from {place}: remove them "
                 "as their owner, or set TRITONGEMM_CACHE_DIR to a folder of your own")


def _failures() -> Check:
    """The problems for which no kernel could be built or launched, as recorded by calls."""
    from tritongemm.records import failures

    try:
        known, place, error = failures.remembered(), failures.path(), failures.damage()
    except ImportError as error:  # the line of the cache folder has the fix
        return Check("failed kernels", False, f"their place is not known: {error}")
    if error is not None:
        return Check("failed kernels", False, str(error), f"delete {place}")
    if not known:
        return Check("failed kernels", True, "none on record")
    last = known[-1]
    problems = len({(one.device, one.problem) for one in known})
    return Check("failed kernels", False,
                 f"{problems} problem{'s' if problems > 1 else ''} went to torch; the last, "
                 f"{last.problem} on {last.device} at {last.when}: "
                 f"{textwrap.shorten(last.reason, 400)}",
                 f"each process tries again; when that is fixed, delete {place}")


def diagnose() -> Diagnosis:
    """Runs all checks. Raises :class:`UsageError` for an invalid TRITONGEMM_* variable."""
    settings.current()
    torch, triton = _import("torch"), _import("triton")
    steps: Iterable[Callable[[], Check]] = (_environment, _compiler, _headers, _interpreter, _cache,
                                            _profiler)
    checks = [_python(), torch, triton, *_pair(torch, triton), _gluon(triton),
              *map(_required, ("numpy", "pandas", "filelock", "platformdirs", "rich")),
              _driver(), *_gpu(torch.ok), *(step() for step in steps),
              *_configs(), _failures(), _shipped(torch.ok), _native(), *map(_optional, OPTIONAL)]
    return Diagnosis(tuple(checks))


_TRIAL = """
import torch, tritongemm
device = {device!r}
a = torch.randn(32, 48, device=device, dtype=torch.float16)
b = torch.randn(48, 16, device=device, dtype=torch.float16)
with_torch = a.double() @ b.double()
worst = (tritongemm.matmul(a, b).double() - with_torch).abs().max().item()
assert worst < 0.1, f"off by {{worst}}"
"""


def trial(device: str) -> Check:
    """Runs one small product in a new process: on ``cuda``, or on ``cpu`` in the interpreter."""
    name = "trial on the GPU" if device == "cuda" else "trial interpreted"
    environment = settings.child_environment(
        TRITONGEMM_STRICT="1", TRITON_INTERPRET="1" if device == "cpu" else "0")
    done = subprocess.run([sys.executable, "-c", _TRIAL.format(device=device)], env=environment,
                          capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 0:
        return Check(name, True, "32x16x48 fp16 agrees with torch")
    reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    return Check(name, False, reason, "see the lines above")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``tritongemm doctor``."""
    parser.add_argument("--try", dest="run_trial", action="store_true",
                        help="also run one small product, on the GPU if there is one, else in "
                             "the interpreter")
    parser.add_argument("--check-cache", action="store_true",
                        help="only read every compiled kernel in the cache and remove the damaged "
                             "ones; the status is 1 if some that cannot be loaded are left")


def run(args: argparse.Namespace) -> int:
    """Prints the diagnosis. 0 if kernels can run here, on a GPU or interpreted, else 1."""
    if args.check_cache:
        check = _store()
        print(check)
        return 0 if check.ok else 1
    diagnosis = diagnose()
    for check in diagnosis.checks:
        print(check)
    print()
    works = diagnosis.gpu or diagnosis.interpreter
    if diagnosis.gpu:
        print("tritongemm.matmul runs its kernels on this GPU.")
    elif diagnosis.interpreter:
        print("No usable GPU: tritongemm.matmul passes calls to torch. Kernels can be tried on "
              "CPU tensors with TRITON_INTERPRET=1.")
    elif diagnosis.ok("torch"):
        print("Kernels cannot run here: tritongemm.matmul passes every call to torch.")
    else:
        print("Without torch nothing can be multiplied here; report and compare need only pandas.")
    if args.run_trial and works:
        result = trial("cuda" if diagnosis.gpu else "cpu")
        print(result)
        return 0 if result.ok else 1
    return 0 if works else 1
