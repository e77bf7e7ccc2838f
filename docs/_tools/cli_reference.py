"""The pages that are generated from code: the command line, and the settings."""

from __future__ import annotations

import argparse
from pathlib import Path

from tritongemm import settings
from tritongemm.cli import VERBS, parser_of


def page() -> str:
    """The reference of the command line, a section a verb, from the argparse parsers."""
    parts = ["# Command line", "",
             "Every command is `tritongemm VERB ...` or `python -m tritongemm VERB ...`. This page "
             "is generated from the parsers. Exit status: 0 success, 1 a negative answer "
             "(something was slower, wrong or missing), 2 a wrong argument or unusable input, 130 "
             "interrupted.", "", "| verb | what it does |", "|---|---|"]
    parts += [f"| [`{verb}`](#{verb}) | {_cell(text)} |" for verb, text in VERBS.items()]
    for verb, text in VERBS.items():
        parts += ["", f"## {verb}", "", f"{text[0].upper()}{text[1:]}.", *_arguments(verb)]
    return "\n".join(parts) + "\n"


def settings_page() -> str:
    """Every environment variable, from ``tritongemm.settings.VARIABLES``."""
    lines = ["# Settings", "",
             "Environment variables, read once at first use. This page is generated from "
             "`tritongemm/settings.py`.", "", "| variable | default | meaning |", "|---|---|---|"]
    lines += [f"| `{v.name}` | {f'`{v.default}`' if v.default else ''} | {_cell(v.meaning)} |"
              for v in settings.VARIABLES]
    return "\n".join(lines) + "\n"


def _arguments(verb: str) -> list[str]:
    parser = parser_of(verb)
    lines = ["", "```text", _usage(parser), "```"]
    for group in parser._action_groups:
        actions = [a for a in group._group_actions if a.help != argparse.SUPPRESS
                   and not isinstance(a, argparse._HelpAction)]
        if not actions:
            continue
        title = {"options": "Options", "positional arguments": "Arguments"}.get(
            group.title or "", (group.title or "").capitalize())
        lines += ["", f"**{title}**", "", "| argument | meaning |", "|---|---|"]
        lines += [f"| {_name(action)} | {_help(parser, action)} |" for action in actions]
    return lines


def _usage(parser: argparse.ArgumentParser) -> str:
    parser.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=96)
    return parser.format_usage().strip().removeprefix("usage: ")


def _name(action: argparse.Action) -> str:
    if action.option_strings:
        shown = ", ".join(action.option_strings)
        if action.nargs != 0:
            value = action.metavar or ("{" + ",".join(map(str, action.choices)) + "}"
                                       if action.choices else action.dest.upper())
            shown += f" {value}"
        return f"`{_cell(shown)}`"
    metavar = action.metavar or action.dest
    name = metavar if isinstance(metavar, str) else " ".join(metavar)
    return f"`{_cell(name)}`"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = action.help or ""
    if "%(" in text or "%%" in text:
        values = {**vars(action), "prog": parser.prog}
        if isinstance(values.get("default"), Path):
            values["default"] = values["default"].as_posix()
        text = text % values
    return _cell(text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
