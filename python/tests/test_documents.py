"""The Python of the README and of the guide runs, as it is written, in a directory with `data/`."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("name", "at_least"), [("README.md", 1), ("docs/python.md", 3)])
def test_examples_run(name: str, at_least: int, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) >= at_least
    (tmp_path / "data").symlink_to(data)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"{name}, example {number}", "exec"), names)
