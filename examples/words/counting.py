from pathlib import Path


def count(source: Path, out: Path, *, upper: bool = False) -> dict:
    """Count the characters of a word, and write it backwards."""
    word = source.read_text().strip()
    reverse = word[::-1].upper() if upper else word[::-1]
    (out / "reverse.txt").write_text(reverse)
    return {"output": "reverse.txt", "characters": len(word)}
