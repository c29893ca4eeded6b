"""Finds credentials in texts, and replaces them."""

import os
import re
from collections.abc import Iterator, Mapping

from batchmill.core.security.credentials import granted
from batchmill.core.urls import hide_secrets, shown_url

# The names of variables and options that may hold a credential.
_SECRET_NAME = re.compile(
    r"secret|token|passw|access_?key|account_?key|_key$|^key$|sas"
    r"|connection_?string",
    re.I,
)
# Azure's connection strings have the credential between other settings.
_IN_CONNECTION_STRING = re.compile(r"(?:AccountKey|SharedAccessSignature)=([^;]+)")
# A shorter value could be a part of any word.
_SHORTEST_SECRET = 6
# A URL in code, JSON or CSV. It ends before a quote, a comma, or a value that is computed.
_URL = re.compile(r"""[A-Za-z][\w+.-]{1,20}://[^\s"'`<>{}\\,]*[^\s"'`<>{}\\,=]""")
_NO_SECRETS = ("region_name", "profile", "username", "account_name", "project")


def names_a_secret(name: str) -> bool:
    """Return whether the name of a variable or option suggests that it holds a credential."""
    return _SECRET_NAME.search(name) is not None


def without_secrets(text: str) -> str:
    """Replace the credentials of this process in a text for people, such as a message.

    These are the environment's variables whose names suggest a credential, the options of fsspec
    and of the stores in use, and the passwords and queries of URLs.
    """
    return hide_secrets(_without_known(text))


def without_secrets_in_source(text: str) -> str:
    """Replace credentials as `without_secrets` does, in a text that a program reads.

    Quotes stay, and a URL stays unless it seems to hold a credential.

    >>> without_secrets_in_source('get("https://host/a?size=2", "https://host/b?token=abc")')
    'get("https://host/a?size=2", "https://***host/b")'
    """
    return _URL.sub(lambda url: shown_url(url[0]), _without_known(text))


def _without_known(text: str) -> str:
    # Replace the longest first, because a secret may be a part of another one.
    for secret in sorted(set(_secrets()), key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _secrets() -> Iterator[str]:
    import fsspec  # It imports much, and most runs hide no secret.

    for settings in (os.environ, *fsspec.config.conf.values()):
        for name, value in settings.items():
            if names_a_secret(name):
                yield from _texts(value)
    for store in granted():
        yield from _texts(store.options)


def _texts(options: object) -> Iterator[str]:
    """Yield the texts in options that may be secret: all except those in _NO_SECRETS."""
    if isinstance(options, str) and len(options) >= _SHORTEST_SECRET:
        yield options
        yield from _IN_CONNECTION_STRING.findall(options)
    elif isinstance(options, Mapping):
        for name, value in options.items():
            if name == "endpoint_url":
                yield from _inside_endpoint(str(value))
            elif name not in _NO_SECRETS:
                yield from _texts(value)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _texts(value)


def _inside_endpoint(url: str) -> Iterator[str]:
    """Yield the parts of an endpoint URL that may be secret: the password and the path's parts."""
    rest = url.partition("://")[2]
    parts = [rest.rpartition("@")[0].partition(":")[2], *rest.split("/")[1:]]
    yield from (part for part in parts if len(part) >= _SHORTEST_SECRET)
