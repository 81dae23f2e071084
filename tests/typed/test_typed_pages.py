"""Each command of the documentation is typed by a test, or listed in untyped_commands.py with a reason."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
TYPED = {
    name
    for path in Path(__file__).parent.glob("test_*.py")
    for name in re.findall(r'page\("([\w/.-]+)"\)', path.read_text())
}


@pytest.mark.parametrize("name", PAGES)
def test_every_documented_command_is_typed_or_listed(name: str, read: Callable[[str], Any]) -> None:
    """For a page that a test opens, the fixture `page` checks the remaining commands."""
    opened = read(name)
    outdated = [entry for entry in opened.listed if not opened.list_matching(entry)]
    assert not outdated, (
        f"untyped_commands.py lists {outdated} of {name}, which does not hold them any more; take them out"
    )
    if name not in TYPED:
        assert not opened.list_unlisted(), (
            f"{name}: no test opens this page, and untyped_commands.py does not list {opened.list_unlisted()}"
        )


def test_commands_neither_typed_nor_listed_are_reported(read: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    opened = read(str(tmp_path / "page.md"))
    assert opened.remaining == [
        "edgefl one --a b",
        "for i in 1 2\ndo echo\ndone",
        "edgefl two > x",
        "edgefl three",
        "make four",
    ]
    opened.take("edgefl three")
    assert len(opened.list_unlisted()) == 4
    with pytest.raises(AssertionError, match="no further command 'edgefl three'"):
        opened.take("edgefl three")


PAGE = """
```sh
edgefl one \\
    --a b
# a word
for i in 1 2
do echo
done
edgefl two > x
```

    edgefl three
    what it prints

- a list

        make four

```python
edgefl = 1
```
"""
