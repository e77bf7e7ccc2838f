"""Makes the virtual environment of `make test` and `make demo`; standard library only.

Two ways, by what the running Python has:

- It imports torch and triton (a GPU machine, perhaps offline): the new environment sees its
  packages, and a ``.pth`` line makes this checkout importable. Nothing is downloaded unless one
  of the other packages is missing.
- It does not: everything is installed by pip, held to constraints.txt.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = "test,report,cpu"
#: Distribution -> module, for what pip must add where torch and triton are there already.
NEEDED = {"pandas": "pandas", "numpy": "numpy", "filelock": "filelock",
          "platformdirs": "platformdirs", "rich": "rich", "nvidia-ml-py": "pynvml",
          "pytest": "pytest", "hypothesis": "hypothesis", "matplotlib": "matplotlib",
          "plotly": "plotly"}
#: Used where they are there; their tests and commands say so where they are not.
OPTIONAL = {"numba": "numba", "ruff": "ruff", "mypy": "mypy", "setuptools": "setuptools"}


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
    Path(purelib, "tritongemm-checkout.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    command = python.parent / "tritongemm"
    command.write_text(f"#!{python}\nimport sys\n\nfrom tritongemm.cli import main\n\n"
                       "sys.exit(main())\n", encoding="utf-8")
    command.chmod(0o755)
    add_missing(python, NEEDED, required=True)
    add_missing(python, OPTIONAL, required=False)


def add_missing(python: Path, wanted: dict[str, str], *, required: bool) -> None:
    """Installs, into the environment only, what ``python`` cannot import."""
    absent = [name for name, module in wanted.items() if not imports(str(python), module)]
    if not absent:
        return
    say(f"not installed here, trying pip: {', '.join(absent)}")
    # Without dependencies that touch torch's own, and by the pinned version where there is one.
    pins = {match[1]: match[0] for line in (ROOT / "constraints.txt").read_text().splitlines()
            if (match := re.match(r"([\w-]+)==.*", line)) and ";" not in line}
    failed = [name for name in absent
              if subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install",
                                 "--quiet", "--upgrade-strategy", "only-if-needed",
                                 pins.get(name, name)],
                                cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode]
    if failed and required:
        say(f"could not install {', '.join(failed)}; install them where torch is, then try again")
        sys.exit(1)
    if failed:
        say(f"going on without {', '.join(failed)}: what needs them says so")


def install_everything(folder: Path, python: Path) -> None:
    """An environment of its own, by pip."""
    say(f"installing into {folder.name}: torch, triton and the rest of constraints.txt")
    run(sys.executable, "-m", "venv", "--clear", folder)
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
        "-c", "constraints.txt", "-e", f".[{EXTRAS}]")


def main() -> int:
    """``environment.py FOLDER``: makes FOLDER; the Makefile keeps the stamp."""
    if sys.version_info < (3, 10):  # noqa: UP036 (the reader's Python may be older than ours)
        say(f"Python 3.10 to 3.13 is needed, this is {sys.version.split()[0]}; "
            "name another: make PYTHON=python3.12 ...")
        return 1
    folder = Path(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else ".venv"))
    python = folder / "bin" / "python"
    if imports(sys.executable, "torch, triton"):
        reuse_installed(folder, python)
    else:
        install_everything(folder, python)
    return 0


if __name__ == "__main__":
    sys.exit(main())
