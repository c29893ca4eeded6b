"""Find and hide the secrets in URLs: passwords, and credentials in their queries."""

import re
from urllib.parse import unquote

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
