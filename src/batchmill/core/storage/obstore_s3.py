"""Open buckets of S3 with obstore, with the settings that s3fs and botocore find.

obstore needs an eighth of the processor time of s3fs, and many threads can use it at once. But it
hangs in every fork of a process that has used it. So only a process that called `use_obstore` uses
it.
"""

import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from batchmill.core.security.credentials import options_for
from batchmill.core.storage.store_errors import converting_errors

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential, S3Store

_SCHEMES = ("s3", "s3a")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]+")
# obstore rejects empty parts, "." and "..", and control characters.
_UNUSUAL_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
# The options of s3fs that obstore has, too. With any other option, s3fs is used.
_OPTIONS = {"key", "secret", "token", "anon", "profile", "endpoint_url", "client_kwargs"}
_CLIENT_OPTIONS = {"endpoint_url", "region_name"}
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_DEFAULT_REGION = "us-east-1"
_MORE_TRIES = 2
# obstore requests credentials again five minutes before they expire. botocore renews its own
# credentials at the latest ten minutes before they expire.
_CREDENTIALS_LIFE = timedelta(minutes=10)
# A request is repeated for this time. `retry_remote` adds two rounds.
_RETRY_TIME = timedelta(seconds=30)
# A server that sends nothing for this time is not responding.
_SILENCE = timedelta(seconds=30)
_CONNECT_TIME, _REQUEST_TIME = timedelta(seconds=10), timedelta(hours=1)

_process = 0  # The id of the process that may use obstore.
_settings: dict[str, "S3Settings | None"] = {}
_stores: dict[str, "S3Store | None"] = {}
_opening = threading.Lock()


class S3Settings(NamedTuple):
    """How to connect to a bucket.

    Attributes:
        credentials: The credentials object of botocore, which renews them. None: requests are not
            signed.
        certificates: Further certificates of authorities, in the format PEM.
    """

    endpoint: str
    region: str
    credentials: Any
    certificates: bytes | None


def use_obstore() -> None:
    """Let this process use obstore. It must not start DataLoader workers that fetch files.

    Has no effect if obstore was imported before, perhaps in the parent of this process.
    """
    global _process
    if "obstore" not in sys.modules:
        _process = os.getpid()


def prepare(urls: Iterable[str]) -> None:
    """Read the settings of the buckets of these URLs, so that forks need not read them again.

    Raises:
        StoreError: The settings are wrong.
    """
    buckets = {_bucket_of(url): url for url in urls if _is_plain(url)}
    for url in buckets.values():
        # The environment may have changed since an earlier call.
        _settings.pop(_cache_key(url), None)
        with converting_errors(url):
            _settings_for(url)


def store_for(url: str) -> "S3Store | None":
    """Return obstore's store for a URL; None if fsspec must be used."""
    if _process != os.getpid() or not _is_plain(url):
        return None
    key = _cache_key(url)
    # Without the lock, a thread could add a store with old settings after they were forgotten.
    with _opening, converting_errors(url):
        if key not in _stores:
            settings = _settings_for(url)
            _stores[key] = _open_store(_bucket_of(url), settings) if settings else None
        return _stores[key]


def forget_settings() -> None:
    """Read the settings again with the next call, because the credentials have expired."""
    with _opening:
        _stores.clear()
        _settings.clear()


def key_of(url: str) -> str:
    """Return the key of a file in its bucket."""
    return url.partition("://")[2].partition("/")[2]


def _is_plain(url: str) -> bool:
    """Return whether a URL is in S3, and obstore accepts its bucket and its key."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme in _SCHEMES and bool(_BUCKET.fullmatch(bucket)) and not _UNUSUAL_KEY.search(key)


def _bucket_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _options_for(url: str) -> dict[str, Any]:
    """Return the options that s3fs would get: from fsspec's configuration, and for this URL."""
    import fsspec

    configured = fsspec.config.conf
    return {**configured.get("s3a", {}), **configured.get("s3", {}), **options_for(url)}


def _cache_key(url: str) -> str:
    return f"{_bucket_of(url)} {sorted(_options_for(url).items())}"


def _settings_for(url: str) -> S3Settings | None:
    """Return the settings of a bucket, as s3fs finds them; None if only s3fs can use them."""
    key = _cache_key(url)
    if key not in _settings:
        _settings[key] = _read_settings(_bucket_of(url), _options_for(url))
    return _settings[key]


def _read_settings(bucket: str, options: Mapping[str, Any]) -> S3Settings | None:
    extra = options.get("client_kwargs") or {}
    if set(options) - _OPTIONS or set(extra) - _CLIENT_OPTIONS:
        return None
    import botocore.session
    from botocore.exceptions import NoCredentialsError

    session = botocore.session.Session(profile=options.get("profile"))
    if options.get("key") and options.get("secret"):
        session.set_credentials(options["key"], options["secret"], options.get("token"))
    credentials = None if options.get("anon") else _call_again(session.get_credentials)
    if credentials is None and not options.get("anon"):
        raise NoCredentialsError
    endpoint = options.get("endpoint_url") or extra.get("endpoint_url")
    client = session.create_client("s3", extra.get("region_name"), endpoint_url=endpoint)
    endpoint, region = client.meta.endpoint_url, client.meta.region_name
    if endpoint.endswith(_AMAZON):
        # botocore finds the region of a bucket by itself. obstore must know it.
        region = _region_of(client, bucket) or region
        endpoint = session.create_client("s3", region).meta.endpoint_url
    certificates = session.get_config_variable("ca_bundle")
    return S3Settings(
        endpoint=endpoint,
        region=region or _DEFAULT_REGION,
        credentials=credentials,
        certificates=Path(certificates).read_bytes() if certificates else None,
    )


def _call_again(call: Callable[[], Any]) -> Any:
    """Call a function that may start the user's program for credentials, which may fail once."""
    from botocore.exceptions import CredentialRetrievalError

    for _ in range(_MORE_TRIES):
        with suppress(CredentialRetrievalError):
            return call()
    return call()


def _region_of(client: Any, bucket: str) -> str | None:
    """Return the region of a bucket. Amazon also names it if it denies access to the bucket."""
    from botocore.exceptions import ClientError

    try:
        answer = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        answer = error.response
    region: str | None = answer["ResponseMetadata"]["HTTPHeaders"].get("x-amz-bucket-region")
    return region


def _open_store(bucket: str, settings: S3Settings) -> "S3Store | None":
    try:
        from obstore.store import S3Store
    except ImportError:
        return None

    def current_credentials() -> "S3Credential":
        current = _call_again(settings.credentials.get_frozen_credentials)
        return {
            "access_key_id": current.access_key,
            "secret_access_key": current.secret_key,
            "token": current.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_LIFE,
        }

    options: ClientConfig = {
        "allow_http": True,
        "connect_timeout": _CONNECT_TIME,
        "read_timeout": _SILENCE,
        "timeout": _REQUEST_TIME,
    }
    if settings.certificates:
        options["root_certificate"] = settings.certificates
    return S3Store(
        bucket,
        endpoint=settings.endpoint,
        region=settings.region,
        skip_signature=settings.credentials is None,
        credential_provider=current_credentials if settings.credentials else None,
        client_options=options,
        retry_config={
            "max_retries": 30,
            "retry_timeout": _RETRY_TIME,
            "backoff": {
                "init_backoff": timedelta(milliseconds=200),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
    )
