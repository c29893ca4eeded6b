from collections import Counter
from pathlib import Path


def count(source: Path) -> dict:
    """Count the words of a text."""
    words = Counter(source.read_text().lower().split())
    (most, times), *_ = words.most_common(1)
    return {"words": words.total(), "different": len(words), "most": most, "times": times}
