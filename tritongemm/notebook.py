"""HTML that notebooks show in the place of ``str()``."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence


def table(heads: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """An HTML table of texts; what they hold stays text."""
    def line(tag: str, cells: Sequence[object]) -> str:
        return "<tr>" + "".join(f'<{tag} style="text-align: left">{html.escape(str(cell))}</{tag}>'
                                for cell in cells) + "</tr>"

    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    head = f"<thead>{line('th', heads)}</thead>" if heads else ""
    return f"<table>{title}{head}<tbody>{''.join(line('td', row) for row in rows)}</tbody></table>"
