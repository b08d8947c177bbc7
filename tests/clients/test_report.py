"""The table of clients, and how it is written to its page."""

from _clients.client import Check, Result
from _clients.report import BEGIN, END, merged, placed, rows
from _models.table import table

GOOD = Result("a", "1.0", (Check("chat"), Check("stream")))
BAD = Result("b", "2.0", (Check("chat"), Check("tool loop", "it | said\nnothing")))
MISSING = Result("c", "", missing="no compiler")


def test_a_row_has_what_was_run_and_what_failed_with_the_reason() -> None:
    _, good, bad, missing = rows([GOOD, BAD, MISSING])
    assert good == ["a", "1.0", "chat, stream", "2", "2", "0", ""]
    assert bad == ["b", "2.0", "chat, tool loop", "2", "1", "1", "tool loop: it / said nothing"]
    assert missing == ["c", "–", "–", "–", "–", "–", "not run: no compiler"]


def test_the_page_keeps_all_else_and_the_rows_of_other_clients() -> None:
    empty = f"before\n{BEGIN}{END}after\n"
    first = placed(empty, table(merged(empty, [GOOD, BAD]), markdown=True))
    assert first.startswith(f"before\n{BEGIN}| client |")
    assert first.endswith(f"{END}after\n")
    newer = Result("b", "2.1", (Check("chat"),))
    found = merged(first, [newer, MISSING])
    assert found == rows([GOOD, newer, MISSING])
    assert merged(placed(first, table(found, markdown=True)), []) == found
