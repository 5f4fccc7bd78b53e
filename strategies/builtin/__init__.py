"""The strategies that come with the gateway: field values of Strategy, as plain data."""

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("strategies.json")


def builtin_rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(PATH.read_text(encoding="utf-8"))
    return rows
