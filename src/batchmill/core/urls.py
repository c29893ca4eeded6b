"""Functions for paths of this machine and for URLs.

A URL must not contain credentials. Messages hide those in URLs that are rejected.
"""

import os
import re
from urllib.parse import unquote, urlsplit

from batchmill.errors import OptionError

# A single letter before the colon is a Windows drive.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/(?!/)(.*)", re.DOTALL)
_NAME_BYTES = 255
# A path has at most 4,096 bytes.
_COPIED_FOLDERS = 8
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ESCAPED_BYTE = re.compile(rb"\\x([89a-f][0-9a-f])")
# A password, which may contain slashes and @. A number after the colon is a port.
_PASSWORD = re.compile(r"(?<=://)[^/:@\s]*:(?!\d+(?:[/?#]|$))\S*@")
_QUERY = re.compile(r"(?<=://)([^\s?#]*)[?#]\S*")
# In these schemes, the text before an @ is a container or a user, not a secret.
_NAMED_ACCOUNTS = ("abfs", "abfss", "az", "sftp", "ssh")
_SECRET_WORD = re.compile(
    r"(?:^|[^a-z0-9])(?:sig|signature|token|secret|password|passwd|auth|authorization|credentials?"
    r"|key|apikey|(?:aws)?accesskey(?:id)?|securitytoken|accesstoken|hmac|jwt)(?:[^a-z0-9]|$)",
    re.IGNORECASE,
)
_SHOWN = 80


def is_url(place: str) -> bool:
    """Return whether a place is a URL, not a path.

    >>> [is_url(place) for place in ("s3://bucket/a", "/data/a", "a://b", "C://data")]
    [True, False, False, False]
    """
    return bool(_URL.match(place))


def without_file_scheme(place: str) -> str:
    """Return the path of a `file:` URL. Return other URLs and paths unchanged.

    >>> without_file_scheme("file:///data/a"), without_file_scheme("file://localhost/data")
    ('/data/a', '/data')
    """
    for scheme in ("file://localhost/", "file:///", "local:///", "file:/"):
        if place.startswith(scheme):
            return "/" + place.removeprefix(scheme).lstrip("/")
    return place


def one_slash_fault(place: str) -> str:
    """Return the reason to reject a URL with one slash, which would name a folder; empty if none.

    >>> one_slash_fault("s3:/bucket/a")
    's3:/bucket/a: a URL has two slashes. Write s3://bucket/a. For a path, write ./s3:/bucket/a.'
    >>> one_slash_fault("file:/data/a"), one_slash_fault("./s3:/bucket/a")
    ('', '')
    """
    match = _ONE_SLASH.fullmatch(without_file_scheme(place))
    if not match:
        return ""
    url = shown_url("://".join(match.groups()))
    written = url.replace("://", ":/", 1)
    return f"{written}: a URL has two slashes. Write {url}. For a path, write ./{written}."


def same_place(one: str, other: str) -> bool:
    """Return whether two paths or URLs name the same folder."""
    if is_url(one) or is_url(other):
        return one.rstrip("/") == other.rstrip("/")
    return os.path.realpath(one) == os.path.realpath(other)


def absolute(place: str) -> str:
    """Return the absolute form of a path, with `~` as the home folder. Return a URL unchanged.

    Raises:
        OptionError: The place is a URL with one slash, which would name a folder.
    """
    fault = one_slash_fault(place)
    if fault:
        raise OptionError(fault)
    place = without_file_scheme(place)
    return place if is_url(place) else os.path.abspath(os.path.expanduser(place))


def join(root: str, name: str) -> str:
    """Return the path or URL of `name`. A relative name is relative to `root`, a folder or URL.

    >>> join("s3://bucket/in", "a.wav"), join("/data", "s3://b/a.wav"), join("s3://b", "/data/a")
    ('s3://bucket/in/a.wav', 's3://b/a.wav', '/data/a')
    """
    if is_url(name) or os.path.isabs(name):
        return name
    return f"{root}/{name}" if is_url(root) else os.path.join(root, name)


def parent(place: str) -> str:
    """Return the folder of a file.

    >>> parent("s3://bucket/in/a.csv"), parent("/data/a.csv")
    ('s3://bucket/in', '/data')
    """
    return place.rpartition("/")[0] if is_url(place) else os.path.dirname(os.path.abspath(place))


def last_part(place: str) -> str:
    """Return the last part of a path or URL, for the file name of a local copy.

    >>> last_part("https://host/in/a.wav?version=2"), last_part("s3://bucket/in/b.wav")
    ('a.wav', 'b.wav')
    """
    if is_web(place):
        place = urlsplit(place).path
    name = place.rpartition("/")[2].replace("\0", "")
    name = "input" if name in ("", ".", "..") else name
    # A file name has at most 255 bytes.
    return name if len(name.encode()) <= _NAME_BYTES else name[-_NAME_BYTES // 4 :]


def copy_name(url: str) -> str:
    """Return the relative path of the local copy of a file. Steps may use the names of its folders.

    >>> copy_name("https://host/in/a.wav?version=2"), copy_name("s3://bucket//in/../b.wav")
    ('in/a.wav', 'in/b.wav')
    """
    path = urlsplit(url).path if is_web(url) else url.partition("://")[2].partition("/")[2]
    folders = [name for name in path.replace("\0", "").split("/")[:-1] if name.strip(".")]
    short = [name for name in folders if len(name.encode()) <= _NAME_BYTES]
    return "/".join([*short[-_COPIED_FOLDERS:], last_part(url)])


def is_web(url: str) -> bool:
    """Return whether a URL starts with http:// or https://."""
    return url.startswith(("http://", "https://"))


def url_fault(url: str) -> str:
    """Return the reason to reject a URL; empty if the URL is valid."""
    scheme, _, rest = url.partition("://")
    if holds_credential(url):
        return (
            "holds a credential, which would appear in logs and in the dataset. Set credentials in "
            "the environment or in a profile instead."
        )
    if _URL.match(rest.partition("::")[2]):
        return "is a chain of URLs. Give the URL of the file itself."
    if rest[:1] in ("", "/") and scheme != "memory":
        return "names no bucket or host. Add it after ://."
    return control_fault(url)


def control_fault(url: str) -> str:
    """Return the reason to reject a URL with control characters; empty if it has none."""
    if _CONTROL.search(url):
        return (
            "contains a control character. Some libraries drop it and open a different URL. Remove "
            "the character."
        )
    return ""


def escape_name(name: str) -> str:
    r"""Return a file name as text that can be written as UTF-8.

    Ledgers and tables hold only UTF-8 text. Each byte that is not UTF-8 becomes `\x` and two hex
    digits.

    >>> escape_name(os.fsdecode(b"caf\xe9.wav"))
    'caf\\xe9.wav'
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def has_escaped_file(path: str) -> bool:
    """Return whether `escape_name` has made this path from the path of an existing file."""
    real = _ESCAPED_BYTE.sub(lambda byte: bytes.fromhex(byte[1].decode()), os.fsencode(path))
    return real != os.fsencode(path) and os.path.lexists(real)


def hide_secrets(text: str) -> str:
    """Replace passwords and queries of URLs in a text, because they may be credentials.

    >>> hide_secrets("s3://key:sec/ret@bucket/a and https://host/a?sig=abc")
    's3://***@bucket/a and https://host/a?***'
    """
    return _QUERY.sub(r"\1?***", _PASSWORD.sub("***@", text))


def shown_url(url: str) -> str:
    """Return a URL for a message. If it contains a credential, only its harmless end is shown."""
    if not holds_credential(url):
        return url
    scheme, _, rest = url.partition("://")
    return f"{scheme}://***{re.split('[?#;]', rest.rpartition('@')[2])[0][-_SHOWN:]}"


def holds_credential(url: str) -> bool:
    """Return whether a URL seems to contain a password, a token or another secret."""
    scheme, _, rest = url.partition("://")
    parameters = [unquote(part) for part in re.split(r"[?&;#]", rest)[1:] if "=" in part]
    return (
        bool(_PASSWORD.search(re.sub(r"\s", "+", url)))
        or ("@" in rest.partition("/")[0] and scheme not in _NAMED_ACCOUNTS)
        or any(_SECRET_WORD.search(part.partition("=")[0]) for part in parameters)
    )
