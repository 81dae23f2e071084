"""Public functions of two or more arguments document each one."""

from pathlib import Path

from tests.support.docstrings import PACKAGES, ROOT, list_undocumented

SOURCE = '''
def add(a, b):
    """Add.

    Args:
        a: a number.
    """


class Queue:
    def put(self, item, priority=0):
        """Put an item.

        Args:
            item: the item.
            priority: a number.
        """


class Window(Queue):
    def put(self, item, priority=0):
        """Put an item."""


def _hidden(a, b): ...


@click.command()
def show(a, b):
    """Show."""
'''


def test_each_argument_is_documented() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert len(files) > 300
    assert [str(each) for path in sorted(files) for each in list_undocumented(path)] == []


def test_missing_argument_is_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    assert [(each.name, each.arguments) for each in list_undocumented(path)] == [("add", ("b",))]
