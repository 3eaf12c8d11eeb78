"""What the commands share that train several rows of a table by one recipe."""

from __future__ import annotations


def words_of(options: dict) -> list[str]:
    """Options as words of a command line, without those that are `None`."""
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def directory_of(row: str) -> str:
    """The name of a row's folder."""
    return row.replace(", ", "_").replace(" ", "_")
