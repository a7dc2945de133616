"""The tables in README and docs say what the recorded rows say."""

from benchmarks.tables import TABLES, rendered, stale


def test_no_page_differs_from_its_rows() -> None:
    assert stale() == []


def test_a_table_that_says_something_else_is_found() -> None:
    page = "<!-- table: memory -->\n| a lie |\n<!-- end -->"
    assert rendered(page) != page
    assert TABLES["memory"]() in rendered(page)
