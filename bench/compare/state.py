"""Samples by name, kept in a file so that rounds may run one at a time."""
import json
import statistics
from pathlib import Path


class State:
    """Names are WHO/WEIGHTS/WHAT/tTHREADS."""

    def __init__(self, file: Path | None):
        self.file = file
        self.samples = json.loads(file.read_text()) if file and file.exists() else {}

    def add(self, name: str, value: float) -> None:
        self.samples.setdefault(name, []).append(value)

    def save(self) -> None:
        if self.file:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part = self.file.with_suffix(".part")
            part.write_text(json.dumps(self.samples, indent=1, sort_keys=True) + "\n")
            part.rename(self.file)

    def median(self, name: str) -> float | None:
        return statistics.median(self.samples[name]) if self.samples.get(name) else None

    def best_rate(self, names: list[str]) -> float | None:
        """The highest of the medians that are there."""
        return max(filter(None, map(self.median, names)), default=None)
