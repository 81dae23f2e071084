"""No command of the documentation slips through: each is typed by a test, or stands in not_here.py with a
reason.
"""

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
def test_every_command_is_typed_or_listed(name: str, read: Callable[[str], Any]) -> None:
    """A page that a test opens is looked after there: the fixture `page` fails for what is left."""
    opened = read(name)
    gone = [each for each in opened.listed if not opened.names(each)]
    assert not gone, f"not_here.py lists {gone} of {name}, which does not hold them any more; take them out"
    if name not in TYPED:
        assert not opened.slipped(), (
            f"{name}: no test opens this page, and not_here.py does not list {opened.slipped()}"
        )


def test_what_is_neither_taken_nor_listed_slips(read: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    opened = read(str(tmp_path / "page.md"))
    assert opened.left == [
        "edgefl one --a b",
        "for i in 1 2\ndo echo\ndone",
        "edgefl two > x",
        "edgefl three",
        "make four",
    ]
    opened.take("edgefl three")
    assert len(opened.slipped()) == 4
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
