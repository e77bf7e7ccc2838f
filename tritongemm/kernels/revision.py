"""The revision of a kernel: a digest of the device code that its launches run.

Only code counts: comments, docstrings and the layout of lines do not. A row of a tuned table that
was measured with another revision may no longer name the fastest config.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import io
import tokenize
from pathlib import Path

from tritongemm.config import KernelConfig
from tritongemm.kernels import SPECS

_FOLDER = Path(__file__).parent / "device"
_PACKAGE = "tritongemm.kernels.device"
#: Tokens that are layout.
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
           tokenize.ENCODING, tokenize.ENDMARKER}
_STARTS = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING,
           tokenize.COMMENT}


def kernel_revision(config: KernelConfig) -> str | None:
    """12 hex digits for the device code of ``config``: its kernel, and the passes that copy its
    operands or add its parts. None for what has none here, such as a CUDA rung."""
    spec = SPECS.get(config.kernel)
    modules = [*(spec.device_code if spec and spec.device_code else (config.kernel,))]
    if not all((_FOLDER / f"{name}.py").is_file() for name in modules):
        return None
    modules += ["pad"] if config.pad_operands else []
    modules += ["reduce"] if config.split_k > 1 else []
    return _revision(tuple(modules))


@functools.cache
def device_code_digest() -> str:
    """A digest of the text of all device code: a change to any of it makes new binaries."""
    digest = hashlib.sha256()
    for path in sorted(_FOLDER.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def _revision(modules: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for name in sorted({name for module in modules for name in _needed(module)}):
        digest.update(name.encode() + b"\0" + code_of(_source(name)).encode() + b"\0")
    return digest.hexdigest()[:12]


@functools.cache
def _source(module: str) -> str:
    return (_FOLDER / f"{module}.py").read_text(encoding="utf-8")


def _needed(module: str) -> set[str]:
    """``module`` and every module of device code that it imports, directly or not."""
    found: set[str] = set()
    left = [module]
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += _imports(name)
    return found


@functools.cache
def _imports(module: str) -> tuple[str, ...]:
    found = []
    for node in ast.walk(ast.parse(_source(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            package, _, name = node.module.rpartition(".")
            if package == _PACKAGE:
                found.append(name)
            elif node.module == _PACKAGE:
                found += [alias.name for alias in node.names]
    return tuple(name for name in found if (_FOLDER / f"{name}.py").is_file())


def code_of(source: str) -> str:
    """The tokens of ``source`` without comments, docstrings and layout. The same on every Python:
    a formatted string is one token or several, but of the same characters."""
    words = []
    start = True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _LAYOUT and not (token.type == tokenize.STRING and start):
            words.append(token.string)
        start = token.type in _STARTS
    return "".join(words)
