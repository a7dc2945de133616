"""The table of rules in docs/autograd.md is the table in the code."""

import re
from pathlib import Path

from division.rules import known_nodes
from tests.rules.cases import CASES

PAGE = Path(__file__).parents[2] / "docs" / "autograd.md"


def short(node: str, field: str | int) -> tuple[str, str]:
    """As the page writes it: no number, no place in a list."""
    return re.sub(r"Backward\d+$", "", node), str(field).partition("[")[0]


def rows(page: str) -> list[tuple[tuple[str, str], set[str]]]:
    """Each operation's field in the table of rules, and its uses there."""
    table = page.split("| operation | field | use |")[1].partition("\n\n")[0]
    cells = [[cell.split(",") for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    return [
        ((node.strip(" `"), field.strip(" `")), {use.strip() for use in uses})
        for nodes, fields, uses in cells
        for node in nodes
        for field in fields
    ]


def test_the_page_names_every_rule_once_and_no_other() -> None:
    on_the_page = [key for key, _ in rows(PAGE.read_text())]
    assert sorted(on_the_page) == sorted(
        {short(node, field) for node, fields in known_nodes().items() for field in fields}
    )


def test_the_page_names_the_uses_that_the_cases_show() -> None:
    shown: dict[tuple[str, str], set[str]] = {}
    for case in CASES:
        for key, use in case.uses.items():
            shown.setdefault(short(*key), set()).add(use.value)
    assert {key: uses for key, uses in rows(PAGE.read_text()) if key in shown} == shown
