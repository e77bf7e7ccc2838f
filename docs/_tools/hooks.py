"""MkDocs hooks: pages made from other files, and links into the repository.

Pages that live elsewhere in the repository (``SOURCES``) become pages of the site. A relative link
from any page to a file of the repository becomes a link to that file's page, to a copy of the
image, or to the file under ``extra.repository`` of mkdocs.yml.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

import cli_reference  # noqa: E402
import ladder_page  # noqa: E402

#: Page of the site -> the file of the repository that it is made from.
SOURCES = {"ladder.md": "perf/LADDER.md", "performance.md": "perf/README.md",
           "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md",
           "suites.md": "perf/suites/README.md", "log-2026-11.md": "perf/log/2026-11.md",
           "sweeps-2026-11.md": "perf/log/sweeps-2026-11.md"}
_PAGES = {**{source: page for page, source in SOURCES.items()}, "README.md": "index.md"}
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_files(files, config):
    """Adds the generated pages, and the images that pages from elsewhere show."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in SOURCES.items()}
    made["ladder.md"] = ladder_page.page(made["ladder.md"])
    made["cli.md"] = cli_reference.page()
    made["settings.md"] = cli_reference.settings_page()
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    for page, source in SOURCES.items():
        for image in _images(made[page], source):
            path = f"repo/{image}"
            if files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / image),
                                            inclusion=InclusionLevel.INCLUDED))
    return files


def on_page_markdown(markdown, page, config, files):
    """Rewrites relative links that leave ``docs/``."""
    source = SOURCES.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    folder = Path(source).parent

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        return before + _target(target, folder, source, config) + after

    parts = _FENCE.split(markdown)  # code blocks are every second part
    parts[::2] = [_LINK.sub(moved, part) for part in parts[::2]]
    return "".join(parts)


def on_page_content(html, page, config, files):
    """Shows the cross references of docstrings (``:func:`x```, ``:class:`~a.x```) as code."""
    html = re.sub(r":(?:mod|func|class|data|meth|attr|exc|obj):(?=<code>)", "", html)
    return re.sub(r"<code>~(?:\w+\.)*(\w+)</code>", r"<code>\1</code>", html)


def _target(target: str, folder: Path, source: str, config) -> str:
    if "://" in target or target.startswith(("#", "mailto:")):
        return target
    path, _, anchor = target.partition("#")
    anchor = f"#{anchor}" if anchor else ""
    where = os.path.normpath(folder / path)
    if where.startswith("docs/"):
        return os.path.relpath(where, "docs") + anchor
    if where in _PAGES:
        return _PAGES[where] + anchor
    if source in _PAGES and where.endswith((".svg", ".png")) and (ROOT / where).exists():
        return f"repo/{where}"
    if not (ROOT / where).exists():
        return target  # the strict build reports it
    kind = "tree" if (ROOT / where).is_dir() else "blob"
    return f"{config['extra']['repository']}/{kind}/main/{where}{anchor}"


def _images(text: str, source: str) -> list[str]:
    """The repository's images that a page shows, once each."""
    folder = Path(source).parent
    shown = [os.path.normpath(folder / target) for before, target, _ in _LINK.findall(text)
             if before.startswith("!") and "://" not in target]
    return [path for path in dict.fromkeys(shown)
            if (ROOT / path).exists() and not path.startswith("docs/")]
