"""Imports point down only and never in a circle, and what must stay light imports neither torch nor
triton.

The source is read with ``ast``, functions included; a name under ``if TYPE_CHECKING`` counts for
circles alone.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import tritongemm

PACKAGE = Path(tritongemm.__file__).resolve().parent

#: From the bottom up. A layer imports those before it and itself; the names of one line stand
#: beside each other and do not import each other.
LAYERS = (
    ("errors", "notebook"), ("settings",), ("formats", "activations", "plugins"),
    ("compute", "epilogues", "scales"),
    ("problem", "config"), ("records",), ("device",), ("occupancy",),
    ("kernels", "baselines", "measure", "native"), ("selection",), ("ops",), ("integration",),
    ("inductor",), ("workers",), ("tuning", "bench"), ("calibration", "cubins", "ladder", "models"),
    ("cli",),
)
#: The bottom may know itself: problem and config know errors.
_LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
#: report stands on records alone.
REPORT_MAY = {"errors", "settings", "formats", "activations", "compute", "epilogues", "scales",
              "problem", "config", "device", "records", "report"}
HEAVY = {"torch", "triton", "pandas", "matplotlib", "numba", "cuda", "pynvml"}
#: Never imported there, not even inside a function.
NEVER = {"records": {"torch", "triton", "pandas"}, "report": {"torch", "triton"},
         "errors": HEAVY, "settings": HEAVY, "config": HEAVY}
#: Imported by whoever only wants to look: nothing heavy at module level.
LIGHT = {"errors", "settings", "formats", "activations", "compute", "epilogues", "scales",
         "problem", "config", "device", "records", "report", "selection", "workers", "cli"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    """``tritongemm/records/run.py`` -> ``records``; the package's own files -> their stem."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """(dotted module, line, at module level) of every import of a file, relative ones resolved."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    folder = ("tritongemm", *path.relative_to(PACKAGE).parts[:-1])

    def walk(node: ast.AST, top: bool) -> Iterator[tuple[str, int, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                for other in child.orelse:
                    yield from walk(other, top)
            elif isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child.lineno, top
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    base = ".".join((*folder[:len(folder) - child.level + 1],
                                     *([base] if base else [])))
                if base == "tritongemm":
                    for alias in child.names:
                        yield f"tritongemm.{alias.name}", child.lineno, top
                else:
                    yield base, child.lineno, top
            elif (isinstance(child, ast.Call) and child.args
                  and getattr(child.func, "attr", getattr(child.func, "id", ""))
                  in ("import_module", "__import__")
                  and isinstance(child.args[0], ast.Constant)):
                yield str(child.args[0].value), child.lineno, top
                yield from walk(child, top)
            else:
                inner = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                yield from walk(child, top and not inner)

    yield from walk(tree, True)


def own_imports(path: Path) -> Iterator[tuple[str, int]]:
    for module, line, _ in imports(path):
        parts = module.split(".")
        if parts[0] == "tritongemm" and len(parts) > 1 and not parts[1].startswith("__"):
            yield parts[1], line


def layered(part: str) -> list[Path]:
    return [p for p in sources() if part_of(p) == part]


def test_every_file_has_a_layer():
    known = set(_LEVEL) | {"report", "__init__", "__main__"}
    assert sorted({part_of(p) for p in sources()} - known) == []


@pytest.mark.parametrize("part", sorted(_LEVEL))
def test_imports_point_down(part):
    wrong = [f"{path.relative_to(PACKAGE)}:{line} imports {target}"
             for path in layered(part) for target, line in own_imports(path)
             if target != part and part != "cli"
             and (target in ("report", "cli") or _LEVEL.get(target, 99) >= _LEVEL[part])]
    assert wrong == []


def test_report_stands_on_records_alone():
    wrong = [f"{path.relative_to(PACKAGE)}:{line} imports {target}"
             for path in layered("report") for target, line in own_imports(path)
             if target not in REPORT_MAY]
    assert wrong == []


def dependencies() -> dict[str, set[str]]:
    """Each module of the package -> those that it imports, in functions and for types too."""
    modules = {".".join(("tritongemm", *p.relative_to(PACKAGE).with_suffix("").parts)
                        ).removesuffix(".__init__"): p for p in sources()}
    found: dict[str, set[str]] = {}
    for module, path in modules.items():
        folder = ("tritongemm", *path.relative_to(PACKAGE).parts[:-1])
        names = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
            if isinstance(node, ast.Import):
                names.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                above = folder[:len(folder) - node.level + 1] if node.level else ()
                base = ".".join((*above, *([node.module] if node.module else [])))
                names.update(whole if (whole := f"{base}.{alias.name}") in modules else base
                             for alias in node.names)
        found[module] = names & set(modules) - {module}
    return found


def circles(imported: Mapping[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, straight or through others of the group."""
    reached: dict[str, set[str]] = {}
    for module in imported:
        seen: set[str] = set()
        todo = [module]
        while todo:
            for other in imported[todo.pop()] - seen:
                seen.add(other)
                todo.append(other)
        reached[module] = seen
    groups = {frozenset(other for other in seen if module in reached[other])
              for module, seen in reached.items() if module in seen}
    return sorted(sorted(group) for group in groups)


def test_no_file_imports_one_that_imports_it():
    assert circles(dependencies()) == []


@pytest.mark.parametrize(("imported", "expected"), [
    ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
    ({"a": {"b"}, "b": {"a"}, "c": {"a"}}, [["a", "b"]]),
    ({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"e"}, "e": {"d"}}, [["a", "b", "c"], ["d", "e"]]),
], ids=["none", "two", "three and two"])
def test_circles_are_found(imported, expected):
    assert circles(imported) == expected


def test_an_import_for_types_or_inside_a_function_counts_for_circles():
    found = dependencies()
    assert "tritongemm.bench.target" in found["tritongemm.bench.providers"]  # TYPE_CHECKING
    assert "tritongemm.tuning.sweep" in found["tritongemm.cli.sweep"]  # in run()
    assert "tritongemm.kernels.device.order" in found["tritongemm.kernels.device.tiled"]


@pytest.mark.parametrize("part", sorted(NEVER))
def test_these_never_import(part):
    wrong = [f"{path.relative_to(PACKAGE)}:{line} imports {module}"
             for path in layered(part) for module, line, _ in imports(path)
             if module.split(".")[0] in NEVER[part]]
    assert wrong == []


@pytest.mark.parametrize("part", sorted(LIGHT))
def test_nothing_heavy_at_module_level(part):
    wrong = [f"{path.relative_to(PACKAGE)}:{line} imports {module}"
             for path in layered(part) for module, line, top in imports(path)
             if top and module.split(".")[0] in HEAVY]
    assert wrong == []


def test_a_verb_imports_the_layers_above_records_only_when_it_runs():
    free = {"errors", "settings", "formats", "activations", "compute", "problem", "config",
            "device", "plugins", "records", "cli", "__init__"}
    wrong = []
    for path in layered("cli"):
        for module, line, top in imports(path):
            parts = module.split(".")
            if top and parts[0] == "tritongemm" and len(parts) > 1 and parts[1] not in free:
                wrong.append(f"{path.relative_to(PACKAGE)}:{line} imports {module}")
    assert wrong == []


def _reads_environment(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            and node.value.id == "os" and node.attr in ("environ", "getenv", "putenv"))


def test_only_settings_reads_the_environment():
    wrong = [f"{path.relative_to(PACKAGE)}:{node.lineno}"
             for path in sources() if part_of(path) != "settings"
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if _reads_environment(node)
             or (isinstance(node, ast.ImportFrom) and node.module == "os"
                 and any(a.name in ("environ", "getenv") for a in node.names))]
    assert wrong == []


def test_only_the_command_line_prints():
    wrong = [f"{path.relative_to(PACKAGE)}:{node.lineno}"
             for path in sources() if part_of(path) != "cli"
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
             and node.func.id == "print"]
    assert wrong == []


def _loaded_by(statements: str) -> set[str]:
    """Top-level modules that a fresh Python holds after ``statements``."""
    code = (f"import sys, json\n{statements}\n"
            "print(json.dumps(sorted({n.split('.')[0] for n in sys.modules})))")
    done = subprocess.run([sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_importing_the_package_imports_neither_torch_nor_triton():
    assert _loaded_by("import tritongemm") & HEAVY == set()


def test_importing_the_package_imports_nothing_from_outside_the_standard_library():
    outside = _loaded_by("import tritongemm") - _loaded_by("") - set(sys.stdlib_module_names)
    assert {name for name in outside if not name.startswith("_")} == {"tritongemm"}


def test_light_modules_load_nothing_heavy():
    names = [".".join(("tritongemm", *path.relative_to(PACKAGE).with_suffix("").parts))
             for path in sources() if part_of(path) in LIGHT and path.stem != "__init__"]
    statements = "import importlib\n" + "\n".join(
        f"importlib.import_module({name!r})" for name in names)
    assert _loaded_by(statements) & HEAVY == set()


def test_the_process_that_writes_a_benchs_rows_loads_nothing_heavy():
    assert _loaded_by("import tritongemm.bench.runner, tritongemm.ladder.climbing") & HEAVY == set()


def test_kernel_specs_load_without_torch_or_triton():
    assert _loaded_by("from tritongemm.kernels import SPECS; assert SPECS") & HEAVY == set()


def test_help_loads_neither_torch_nor_pandas():
    assert _loaded_by("from tritongemm.cli import main; main(['--version'])") & HEAVY == set()
