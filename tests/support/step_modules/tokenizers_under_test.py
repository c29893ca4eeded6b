"""Tokenizers of all kinds. Tests refer to them by name."""

from re import findall


def pieces(text):
    return findall(r"\w+", text)


class Bytes:
    """Makes a token of each byte, so some characters have several tokens."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids):
        return bytes(ids).decode(errors="replace")


class Silent(Bytes):
    """Decodes an incomplete character to an empty string."""

    def decode(self, ids):
        return bytes(ids).decode(errors="ignore")


class Marked:
    """Marks tokens inside a word with ##, as WordPiece does; decodes with one space per word."""

    def encode(self, text):
        words = findall(r"\w+|[^\w\s]", text)
        return [f"##{part}" if at else part for word in words for at, part in enumerate(word)]

    def decode(self, tokens):
        return " ".join(tokens).replace(" ##", "")


class Wrapped:
    """Returns an object with `ids`, like the library `tokenizers`."""

    class Encoding:
        def __init__(self, ids):
            self.ids = ids

    def encode(self, text):
        return self.Encoding([ord(character) for character in text])

    def decode(self, ids):
        return "".join(map(chr, ids))


ids = Bytes()
silent = Silent()
marked = Marked()
wrapped = Wrapped()


def upper(text):
    return text.upper().split()


def special(text):
    return ["[CLS]", *text.split()]


def first_only(text):
    return text.split()[:1]


def none_at_all(text):
    return []


def numbers(text):
    return [1, 2]
