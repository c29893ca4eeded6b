"""Check the project's English: `python docs/prose.py [FILE ...]`, by default all files.

Reads pages, docstrings, comments, messages and the names of tests. Reports each word or opening
that the style rejects, with a better one, and each sentence of more than 30 words. Exits with 1 if
it reports a fault.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("docs", "src", "flows", "tasks", "blocks", "tests", "benchmarks", "examples")
MOST_WORDS = 30
# These files contain the rejected words on purpose.
NOT_CHECKED = (ROOT / "docs" / "prose.py", ROOT / "tests" / "docs" / "test_prose.py")
# A pattern, and what to write instead. Upper and lower case are the same, except in openings.
REJECTED = {
    r"anew": "again",
    r"mend(s|ed|ing)?": "fix or repair",
    r"(who|what|which|where|when)(so)?ever": "name the thing",
    r"nobody|no one": "no user, no process",
    r"(is|are|was|were) none(?-i:\b)": "there is no ...",
    r"no more(?! (than|often))": "no longer",
    r"so many|so much": "the number, or the amount",
    r"(go|goes|going|went) on(?! to\b)": "continue or resume",
    r"(come|comes|came) of": "come from, or is caused by",
    r"to blame|blamed?|culprits?": "name the cause",
    r"(give|gives|gave|given) up": "stop, or fail",
    r"look(s|ed)? after": "manage",
    r"(let|lets|letting) go": "release",
    r"forsake\w*|forsook": "abandon",
    r"stead": "instead",
    r"(stands?|stood) (there|in|at|on|for|below|above|still)": "is",
    r"there is none|none is": "there is no ...",
    r"otherwise divides?": "differs",
    r"amongst|whilst|thereof|therein|hitherto|hence|thus|lest|thereby": "a plain word",
    r"for ever": "forever",
    r"(of|by) (its|their) own accord": "automatically",
    r"but for": "except",
    r"save for": "except",
    r"as it is told|as told": "as configured",
    r"(is|are) (no|not) longer (there|in sight)": "does not exist",
    r"all is": "everything is",
    r"all else": "everything else",
    r"each of them": "each",
    r"such as is": "such as",
    r"in sight": "visible, or name the thing",
    r"in (his|her|its|their) stead": "instead",
}
# The openings of a sentence.
OPENINGS = {
    r"Of \w+": "start with the subject",
    r"What(?![^.]*\?)": "start with the subject",
    r"Who(ever)?(?![^.]*\?)": "start with the subject: 'a user who ...'",
    r"Where(?![^.]*\?)": "write 'If ...', or start with the subject",
    r"Whether": "start with the subject",
    r"(It|They) who": "start with the subject",
}
BECAUSE = re.compile(
    r", for (it|they|he|she|that|there|this|these|those|no|nothing|only|each|such)\b"
)
_WORDS = [
    (re.compile(rf"\b({pattern})\b", re.IGNORECASE), better) for pattern, better in REJECTED.items()
]
_OPENINGS = [(re.compile(rf"^({pattern})\b"), better) for pattern, better in OPENINGS.items()]
_FENCE = re.compile(r"^( *)```.*?^ *```[^\n]*$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"``.+?``|`[^`\n]*(?:\n[^`\n]+)?`")
_LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\([^()\s]*\)")
_DOCTEST = re.compile(r"^ *(>>>|\.\.\.)( .*)?$", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.?!])[)\"'*_]*\s+(?=[A-Z\"'(*_\d])|(?<=:)\s+|\n\s*\n|\s+\|\s+")
_WORD = re.compile(r"[A-Za-z][\w'-]*")


class Text(NamedTuple):
    """A piece of prose with its first line, and its last line if `text` may have more lines."""

    line: int
    text: str
    last: int = sys.maxsize


class Fault(NamedTuple):
    """A sentence that the style rejects."""

    path: str
    line: int
    reason: str
    sentence: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.reason}\n    {self.sentence}"


def check(path: Path) -> list[Fault]:
    """Return the faults of one file."""
    source = path.read_text(encoding="utf-8")
    texts = texts_of_python(source) if path.suffix == ".py" else texts_of_markdown(source)
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    return [
        Fault(name, line, reason, sentence)
        for text in texts
        for line, sentence in _sentences(text)
        for reason in faults_of(sentence)
    ]


def faults_of(sentence: str) -> list[str]:
    """Return the reasons why the style rejects a sentence; an empty list accepts it."""
    found = [
        f"'{match[0]}': {better}"
        for pattern, better in [*_WORDS, *_OPENINGS]
        if (match := pattern.search(sentence))
    ]
    if match := BECAUSE.search(sentence):
        found.append(f"'{match[0][2:]}': because, since")
    words = len(_WORD.findall(sentence))
    if words > MOST_WORDS:
        found.append(f"{words} words: at most {MOST_WORDS}; make two sentences")
    return found


def texts_of_markdown(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items, headings and table rows; skip blocks of code."""
    for pattern in (_FENCE, _COMMENT):
        source = pattern.sub(lambda block: "\n" * block[0].count("\n"), source)
    start, lines = 1, list[str]()
    for number, line in enumerate([*source.split("\n"), ""], 1):
        begins = re.match(r"\s*([-*+]|\d+\.|#+|\||>|!!!)(\s|$)", line)
        if (not line.strip() or begins) and lines:
            yield Text(start, "\n".join(lines))
            lines = []
        if line.strip():
            start = start if lines else number
            lines.append(re.sub(r"^\s*([-*+]|\d+\.|#+|\||>)\s*", "", line))


def texts_of_python(source: str) -> Iterator[Text]:
    """Yield docstrings, comments, messages, and the names of tests as words."""
    yield from _comments(source)
    tree = ast.parse(source)
    docstrings = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node, clean=False)) is not None:
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                before = node.body[0].lineno - 1
                pieces = texts_of_markdown(_DOCTEST.sub("", text))
                yield from (Text(before + piece.line, piece.text) for piece in pieces)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield Text(node.lineno, node.name.removeprefix("test_").replace("_", " "))
    inside = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in node.values
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(p.value) if isinstance(p, ast.Constant) else "x" for p in node.values]
            message = "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings or id(node) in inside:
                continue
            message = node.value
        else:
            continue
        if len(_WORD.findall(message)) >= 4 and message.count("\n") < 4:
            yield Text(node.lineno, message, node.end_lineno or node.lineno)


def _comments(source: str) -> Iterator[Text]:
    """Yield comments; whole-line comments on consecutive lines are one text."""
    start, last, lines = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#").strip()
        if re.match(r"(noqa|type:|pragma|ruff:|fmt:|!)", text):
            continue
        is_whole_line = token.line.lstrip().startswith("#")
        if token.start[0] != last + 1 or not is_whole_line:
            if lines:
                yield Text(start, "\n".join(lines))
            start, lines = token.start[0], []
        lines.append(text)
        last = token.start[0] if is_whole_line else -1
    if lines:
        yield Text(start, "\n".join(lines))


def _sentences(text: Text) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a text, each with its line; inline code counts as one word."""
    # Upper case, because a sentence may begin with code.
    plain = _CODE.sub(lambda code: "X" + "\n" * code[0].count("\n"), text.text)
    plain = _LINK.sub(lambda link: link[1], plain)
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(plain)), len(plain)]:
        sentence = " ".join(plain[start:end].strip(" |\n").split())
        if sentence:
            yield min(text.line + plain[:start].count("\n"), text.last), sentence
        start = end


def files_below(place: Path) -> list[Path]:
    """Return the pages and Python files below a folder, or the file itself."""
    files = sorted([*place.rglob("*.py"), *place.rglob("*.md")]) if place.is_dir() else [place]
    return [file for file in files if file not in NOT_CHECKED]


def main() -> None:
    """Check the files that the command line names."""
    places = [Path(name).resolve() for name in sys.argv[1:]]
    places = places or [*ROOT.glob("*.md"), *(ROOT / name for name in FOLDERS)]
    files = [file for place in places for file in files_below(place)]
    faults = [fault for path in files for fault in check(path)]
    for fault in faults:
        print(fault)
    if faults:
        sys.exit(f"Faults: {len(faults)}. Rewrite these sentences.")


if __name__ == "__main__":
    main()
