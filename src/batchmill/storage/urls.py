"""Names of places: paths of this machine, or URLs; and what a URL may not hold."""

import os
import re
from urllib.parse import urlsplit

# One letter before the colon is a drive of Windows.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NAME_BYTES = 255
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)")
_SIGNED = re.compile(
    r"(://[^\s?]*)\?\S*?(?:(?<=\?)|&)"
    r"(?:X-Amz-\w+|X-Goog-\w+|Signature|sig|token|access_token|api_key|password)=\S*",
    re.IGNORECASE,
)


def is_url(place: str) -> bool:
    """Tell a URL from a path.

    >>> [is_url(place) for place in ("s3://bucket/a", "/data/a", "a://b", "C://data")]
    [True, False, False, False]
    """
    return bool(_URL.match(place))


def without_file_scheme(place: str) -> str:
    """Write a `file://` URL as the path that it is; return anything else as it is."""
    for scheme in ("file://", "local://"):
        if place.startswith(scheme):
            return place.removeprefix(scheme)
    return place


def absolute(place: str) -> str:
    """Make a path absolute, `~` the home folder; a URL is so already."""
    place = without_file_scheme(place)
    return place if is_url(place) else os.path.abspath(os.path.expanduser(place))


def join(root: str, name: str) -> str:
    """Return the place of `name`, which may be relative to `root`, a folder or URL.

    >>> join("s3://bucket/in", "a.wav"), join("/data", "s3://b/a.wav"), join("s3://b", "/data/a")
    ('s3://bucket/in/a.wav', 's3://b/a.wav', '/data/a')
    """
    if is_url(name) or os.path.isabs(name):
        return name
    return f"{root.rstrip('/')}/{name}" if is_url(root) else os.path.join(root, name)


def parent(place: str) -> str:
    """Return the folder that a file is in.

    >>> parent("s3://bucket/in/a.csv"), parent("/data/a.csv")
    ('s3://bucket/in', '/data')
    """
    return place.rpartition("/")[0] if is_url(place) else os.path.dirname(os.path.abspath(place))


def last_part(place: str) -> str:
    """Return a file's own name, as a local copy of it can have.

    >>> last_part("https://host/in/a.wav?version=2"), last_part("s3://bucket/in/b.wav")
    ('a.wav', 'b.wav')
    """
    if place.startswith(("http://", "https://")):
        place = urlsplit(place).path
    name = place.rpartition("/")[2].replace("\0", "") or "input"
    # No name of a file has more than 255 bytes.
    return name if len(name.encode()) <= _NAME_BYTES else name[-_NAME_BYTES // 4 :]


def hide_secrets(text: str) -> str:
    """Leave out of a text what may be a credential: passwords and signatures in URLs.

    >>> hide_secrets("s3://key:secret@bucket/a and https://host/a?sig=abc")
    's3://***@bucket/a and https://host/a?***'
    """
    return _SIGNED.sub(r"\1?***", _PASSWORD.sub("***", text))


def url_fault(url: str) -> str:
    """Say what is wrong with a URL, without quoting its secrets; empty if nothing is."""
    shown = hide_secrets(url)
    if _PASSWORD.search(url) or _SIGNED.search(url):
        return (
            f"{shown} holds a credential, which would stand in logs and in the dataset. Put "
            "credentials where the store's own tools look for them: environment or profile."
        )
    if "::" in url:
        return f"{shown} is a chain of URLs. Name the file itself."
    if not urlsplit(url).netloc and not url.startswith("memory://"):
        return f"{shown} names no bucket or host."
    return ""
