"""Makes the virtual environment of `make test` and `make demo`; standard library only.

Two ways, by what the running Python has:

- It imports torch and triton (a GPU machine, perhaps offline): the new environment sees its
  packages, and a ``.pth`` line makes this checkout importable. Nothing is downloaded, except small
  packages that are missing, where they can be had.
- It does not: everything is installed by pip, each file checked against .ci/locked.txt; but
  torch and triton, see :func:`install_everything`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Of constraints.txt, those that a machine which has a torch keeps its own version of.
OF_THE_MACHINE = ("torch", "triton", "numpy")
_PIN = re.compile(r"""([\w-]+)==([\w.]+)                       # name, version
                      (?:;\s(python(?:_full)?_version)         # one marker, of the Python
                         \s(<|>=)\s"(\d+(?:\.\d+)*)")?""", re.VERBOSE)
#: What builds the site (make docs).
SITE = {"mkdocs-material": "material", "mkdocstrings-python": "mkdocstrings_handlers"}
#: Distribution -> module, for what pip adds where torch and triton are there already.
NEEDED = {"pandas": "pandas", "numpy": "numpy", "filelock": "filelock",
          "platformdirs": "platformdirs", "rich": "rich", "pytest": "pytest"}
#: What uses these fails or says so where they are missing.
USEFUL = {"hypothesis": "hypothesis", "expecttest": "expecttest",
          "pytest-xdist": "xdist", "matplotlib": "matplotlib", "nvidia-ml-py": "pynvml",
          "numba": "numba", "ruff": "ruff", "mypy": "mypy", "basedpyright": "basedpyright",
          "selenium": "selenium", "setuptools": "setuptools",
          "distributed": "distributed", "dask-jobqueue": "dask_jobqueue"}


def say(text: str) -> None:
    print(f"environment: {text}", flush=True)


def imports(python: str, module: str) -> bool:
    """Whether ``python`` imports ``module`` (or several, with commas)."""
    done = subprocess.run([python, "-c", f"import {module}"], cwd=ROOT,
                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def run(*command: object) -> None:
    """Runs a command; ends this program with its status if it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        say(f"failed ({done.returncode}): {' '.join(words)}")
        if "venv" in words:
            say("on Debian and Ubuntu the venv module is a package of its own: "
                "apt install python3-venv")
        sys.exit(done.returncode)


def reuse_installed(folder: Path, python: Path) -> None:
    """An environment on top of the running Python's packages."""
    say(f"using the torch and triton of {sys.executable}; nothing of theirs is downloaded")
    run(sys.executable, "-m", "venv", "--clear", "--system-site-packages", "--without-pip", folder)
    purelib = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"],
        check=True, capture_output=True, text=True).stdout.strip()
    lines = [str(ROOT)]
    if sys.prefix != sys.base_prefix:
        # The running Python is itself a virtual environment: --system-site-packages shows what
        # lies below it, not its own packages.
        lines += [f"import site; site.addsitedir({path!r})" for path in sys.path
                  if path.endswith(("site-packages", "dist-packages"))]
        # cuda.pathfinder looks for NVRTC where site.getsitepackages() says.
        lines.append(f"import site; site.PREFIXES.append({sys.prefix!r})")
    Path(purelib, "tritongemm-checkout.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = python.parent / "tritongemm"
    command.write_text(f"#!{python}\nimport sys\n\nfrom tritongemm.cli import main\n\n"
                       "sys.exit(main())\n", encoding="utf-8")
    command.chmod(0o755)
    add_missing(python, NEEDED)
    add_missing(python, USEFUL)
    add_missing(python, SITE)


def missing_from(python: Path, wanted: dict[str, str]) -> list[str]:
    """The distributions of ``wanted`` whose module ``python`` does not find (none is imported)."""
    code = ("import importlib.util, sys; "
            "print(*(m for m in sys.argv[1:] if importlib.util.find_spec(m) is None))")
    found = subprocess.run([str(python), "-c", code, *wanted.values()], check=True,
                           stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout.split()
    return [name for name, module in wanted.items() if module in found]


def pins(text: str, python: tuple[int, ...] = sys.version_info[:3]) -> dict[str, str]:
    """Name -> ``name==version`` of the lines of a constraints file that hold for ``python``."""
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        match = _PIN.fullmatch(line)
        if match is None:
            raise ValueError(f"constraints.txt: {line!r} is not NAME==VERSION, alone or with one "
                             "marker of python_version or python_full_version")
        name, version, variable, operator, bound = match.groups()
        limit = tuple(map(int, (bound or "0").split(".")))
        running = python[:2] if variable == "python_version" else python
        if variable is None or (running < limit if operator == "<" else running >= limit):
            found[name] = f"{name}=={version}"
    return found


def add_missing(python: Path, wanted: dict[str, str]) -> None:
    """Installs, into the environment only, what ``python`` does not find; offline, goes on."""
    absent = missing_from(python, wanted)
    if not absent:
        return
    say(f"not installed here, trying pip: {', '.join(absent)}")
    held = {name: pin for name, pin in pins((ROOT / "constraints.txt").read_text()).items()
            if name not in OF_THE_MACHINE}
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet",
                    "--retries", "1", "--upgrade-strategy", "only-if-needed",
                    *(held.get(name, name) for name in absent)],
                   cwd=ROOT, stdin=subprocess.DEVNULL, check=False)
    if absent := missing_from(python, wanted):
        say(f"going on without {', '.join(absent)}; what needs them says so. To try again: "
            "make clean")


def locked_install(pip: tuple[object, ...]) -> bool:
    """Installs .ci/locked.txt; False where the index lacks a version of it, such as a mirror that
    is behind. Ends this program for any other failure, a wrong hash above all."""
    words = [str(x) for x in (*pip, "--require-hashes", "--no-deps", "-r", ".ci/locked.txt")]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, check=False)
    print(done.stderr, end="", file=sys.stderr, flush=True)
    if done.returncode == 0:
        return True
    if "No matching distribution found" not in done.stderr:
        say(f"failed ({done.returncode}): {' '.join(words)}")
        sys.exit(done.returncode)
    say("this index lacks a version of .ci/locked.txt; going on with constraints.txt, "
        "without hashes")
    return False


def install_everything(folder: Path, python: Path) -> None:
    """An environment of its own, by pip.

    torch and triton, and what torch's CUDA builds bring, have no hashes: which file is theirs
    depends on the machine (a CPU build, or one of several for CUDA, from the index that pip is set
    up with), and pip checks all files of a command or none. So they have a command of their own.
    There NVRTC is not pinned: a CUDA build of torch wants its own version.
    """
    say(f"installing torch, triton and the rest of constraints.txt into {folder.name}; "
        "this downloads them once and takes minutes")
    run(sys.executable, "-m", "venv", "--clear", folder)
    pip: tuple[object, ...] = (python, "-m", "pip", "install", "--quiet",
                               "--disable-pip-version-check")
    if not sys.dont_write_bytecode:
        # Compiling all that is installed, of which a part is imported, takes a third of the time.
        pip += ("--no-compile",)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(
        line for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines(True)
        if not line.startswith("nvidia-cuda-nvrtc")), encoding="utf-8")
    if locked_install(pip):
        run(*pip, "-c", constraints, "torch", "triton")
    else:
        run(*pip, "-c", constraints, "-e", ".[test,report,cpu,cuda13,docs]")
    # The locked setuptools builds, and all that setup.cfg asks for is there.
    run(*pip, "--no-deps", "--no-build-isolation", "-e", ".")
    subprocess.run([str(python), "-m", "pip", "check"], cwd=ROOT, stdin=subprocess.DEVNULL,
                   check=False)  # says what does not fit together; the tests say whether it matters


def main() -> int:
    """``environment.py FOLDER``: makes FOLDER; the Makefile keeps the stamp."""
    if sys.version_info < (3, 10):  # noqa: UP036 (the reader's Python may be older than ours)
        say(f"Python 3.10 to 3.13 is needed, this is {sys.version.split()[0]}; "
            "name another: make PYTHON=python3.12 ...")
        return 1
    folder = Path(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".venv"))
    python = folder / "bin" / "python"
    if Path(sys.prefix).resolve() == folder.resolve():
        # Activated: it cannot be made again by the Python that it holds.
        below = str(getattr(sys, "_base_executable"))  # noqa: B009 (mypy does not know it)
        say(f"{folder.name} is the environment of this Python; making it anew with {below}")
        os.execv(below, [below, *sys.argv])
    if imports(sys.executable, "torch, triton"):
        reuse_installed(folder, python)
    else:
        install_everything(folder, python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
