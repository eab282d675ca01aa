"""Prints the requirements of pyproject.toml, run time and development together, one a line."""

from __future__ import annotations

import tomllib
from pathlib import Path


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    print("\n".join([*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]))


if __name__ == "__main__":
    main()
