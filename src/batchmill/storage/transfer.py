"""Fetch inputs and upload outputs: one request for a small file, through obstore if possible.

obstore needs an eighth of the processor time of s3fs, and many threads can use it at once. But it
hangs in every fork of a process that has used it. So only a process that called `use_obstore` uses
it. All other processes use fsspec, and so do URLs that obstore does not open.
"""

import mimetypes
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import fsspec

from batchmill.security.credentials import options_for
from batchmill.storage import remote
from batchmill.storage.connection import converting_errors, has_expired
from batchmill.storage.fingerprints import Fingerprint, HashingFile, fingerprint, hash_bytes
from batchmill.storage.ranges import HEAD_BYTES
from batchmill.storage.retries import retry_remote

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta
    from obstore.store import ClientConfig, S3Credential, S3Store

# The most fetches of one input with fsspec. An input that changes meanwhile is fetched again.
_FETCHES = 3
_SCHEMES = ("s3", "s3a")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]+")
# obstore rejects empty parts, "." and "..", and control characters.
_UNUSUAL_KEY = re.compile(r"(^|/)(\.{0,2})(/|$)|[\x00-\x1f\x7f]")
# The options of s3fs that obstore has, too. With any other option, s3fs is used.
_OPTIONS = {"key", "secret", "token", "anon", "profile", "endpoint_url", "client_kwargs"}
_CLIENT_OPTIONS = {"endpoint_url", "region_name"}
_AMAZON = (".amazonaws.com", ".amazonaws.com.cn")
_DEFAULT_REGION = "us-east-1"
_CHUNK_BYTES = 2**20
_PART_BYTES, _MAX_PARTS, _CONCURRENT_PARTS = 8 * 2**20, 9_000, 4
# obstore requests credentials again five minutes before they expire. botocore renews its own
# credentials at the latest ten minutes before they expire.
_CREDENTIALS_LIFE = timedelta(minutes=10)
# A request is repeated for this time. `retry_remote` adds two rounds.
_RETRY_TIME = timedelta(seconds=30)
# A server that sends nothing for this time is not responding.
_SILENCE = timedelta(seconds=30)
_CONNECT_TIME, _REQUEST_TIME = timedelta(seconds=10), timedelta(hours=1)
_CHANGED = "it changed while it was read. Run the same command again"

_process = 0  # The id of the process that may use obstore.
_settings: dict[str, "S3Settings | None"] = {}
_stores: dict[str, "S3Store"] = {}


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
        _settings.pop(_cache_key(url, _options_for(url)), None)
        with converting_errors(url):
            _settings_for(url)


def fetch(url: str, path: str) -> Fingerprint | None:
    """Fetch a file to a local path.

    Returns:
        The fingerprint of the fetched content in its store; None if it is unknown, as with fsspec.

    Raises:
        StoreError: The store failed, or there is no such file.
        OSError: The local file cannot be written.
    """
    seen = _get(url, path)
    if seen is None:
        remote.fetch(url, path)
    return seen


def fetch_planned(url: str, path: str, planned: remote.FileStat) -> Fingerprint:
    """Fetch a file as `fetch` does, and always return a fingerprint.

    Its time and ETag are as in `remote.FileStat`. They describe the same content as the rest.
    """
    for _ in range(_FETCHES):
        seen = fetch(url, path)
        if seen:
            return seen
        now = remote.stat(url)
        if now is None:
            break  # Some web servers return a file, but no size, time or ETag.
        if now.etag == planned.etag and (now.etag or now.mtime_ns == planned.mtime_ns):
            return stored_fingerprint(path, now.mtime_ns, now.etag)
        planned = now  # The file changed after planning, or during the fetch.
    # No time or ETag is known to describe what was fetched. The next plan compares the contents.
    return stored_fingerprint(path, remote.UNKNOWN_TIME, None)


@retry_remote
def fetch_head(url: str, path: str) -> Fingerprint:
    """Fetch the first HEAD_BYTES of a file to a local path.

    Returns:
        The fingerprint of the whole file in its store. If the file is larger than HEAD_BYTES, its
        content is empty, because it is unknown.

    Raises:
        StoreError: The store failed, or there is no such file.
        OSError: The local file cannot be written.
    """
    store = _store_for(url)
    if store:
        data, seen = _get_part(store, url, (0, HEAD_BYTES), None)
    else:
        found = remote.stat(url)
        if found is None:
            with converting_errors(url):
                raise FileNotFoundError("there is no such file")
        seen = Fingerprint(found.size, found.mtime_ns, "", found.etag)
        data = _read_part(url, (0, HEAD_BYTES), seen)
    with open(path, "wb") as file:
        file.write(data)
    return seen if len(data) < seen.size else seen._replace(content=hash_bytes(data))


@retry_remote
def read_range(url: str, start: int, stop: int, seen: Fingerprint) -> bytes:
    """Return the bytes of a file from `start` up to `stop`.

    Raises:
        StoreError: The store failed, or the file is no longer the one with the fingerprint `seen`.
    """
    store = _store_for(url)
    return (
        _get_part(store, url, (start, stop), seen)[0]
        if store
        else _read_part(url, (start, stop), seen)
    )


def _get_part(
    store: "S3Store", url: str, part: tuple[int, int], expected: Fingerprint | None
) -> tuple[bytes, Fingerprint]:
    """Return a part of a file and the fingerprint of the file, with one request."""
    import obstore

    options: GetOptions = {"range": part}
    if expected and expected.etag:
        options["if_match"] = f'"{expected.etag}"'
    with _converting(url):
        response = obstore.get(store, _key_of(url), options=options)
        data, seen = bytes(response.bytes()), _fingerprint_in(response.meta, "")
        if expected and seen != expected:
            raise ValueError(_CHANGED)
    return data, seen


def _read_part(url: str, part: tuple[int, int], expected: Fingerprint) -> bytes:
    """Return a part of a file with fsspec, which cannot make the request depend on the ETag."""
    data = remote.read_range(url, part[0], part[1] - part[0])
    with converting_errors(url):
        if remote.stat(url) != (expected.size, expected.mtime_ns, expected.etag):
            raise ValueError(_CHANGED)
    return data


def stored_fingerprint(path: str, mtime_ns: int, etag: str | None) -> Fingerprint:
    """Return the fingerprint of a file in its store, given its local copy."""
    # The times of the local copy say nothing about the file.
    return fingerprint(path)._replace(mtime_ns=mtime_ns, etag=etag, ctime_ns=None)


def upload(path: str, url: str) -> None:
    """Upload a local file atomically. A large file is sent in parts. Raises StoreError."""
    if not _put(path, url):
        remote.upload(path, url)


@retry_remote
def _get(url: str, path: str) -> Fingerprint | None:
    """Fetch a file with obstore. Return None if fsspec must be used."""
    store = _store_for(url)
    if not store:
        return None
    import obstore

    with _converting(url):
        response = obstore.get(store, _key_of(url))
        meta = response.meta
        # Threads compete for the interpreter, so a small file takes as few calls as possible.
        whole = response.bytes() if meta["size"] <= _CHUNK_BYTES else None
        chunks = iter([] if whole is not None else response.stream(min_chunk_size=_CHUNK_BYTES))
    with open(path, "wb") as raw:
        file = HashingFile(raw)
        if whole is not None:
            file.write(whole)
        while whole is None:
            with _converting(url):
                chunk = next(chunks, None)
            if chunk is None:
                break
            file.write(chunk)
    with _converting(url):
        if file.size != meta["size"]:
            raise OSError(f"{file.size:,} of {meta['size']:,} bytes arrived")
    return _fingerprint_in(meta, file.content)


def _fingerprint_in(meta: "ObjectMeta", content: str) -> Fingerprint:
    """Return the fingerprint of a file, given its description in a response and its content."""
    etag = (meta["e_tag"] or "").strip('"')
    time_ns = 0 if etag else int(meta["last_modified"].timestamp() * 1_000_000) * 1000
    return Fingerprint(meta["size"], time_ns, content, etag or None)


@retry_remote
def _put(path: str, url: str) -> bool:
    """Upload a file with obstore. Return False if fsspec must be used."""
    store = _store_for(url)
    if not store:
        return False
    import obstore

    kind, _ = mimetypes.guess_type(path)
    with _converting(url):
        obstore.put(
            store,
            _key_of(url),
            Path(path),
            attributes={"Content-Type": kind} if kind else None,
            chunk_size=max(_PART_BYTES, os.stat(path).st_size // _MAX_PARTS),
            max_concurrency=_CONCURRENT_PARTS,
        )
    return True


@contextmanager
def _converting(url: str) -> Iterator[None]:
    """Convert the errors of obstore in the block to StoreError."""
    from obstore import exceptions

    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    with converting_errors(url):
        try:
            yield
        except FileNotFoundError as error:
            # The text of obstore has the URL of the request and the answer in XML.
            what = "no such bucket" if "NoSuchBucket" in str(error) else "there is no such file"
            raise FileNotFoundError(what) from error
        except exceptions.PreconditionError as error:
            raise ValueError(_CHANGED) from error
        except Exception as error:
            if has_expired(error):
                # The next call reads the credentials again.
                _stores.clear()
                _settings.clear()
            elif isinstance(error, denied):
                raise PermissionError(_message_in(str(error))) from error
            raise


def _message_in(text: str) -> str:
    """Return the message in the answer of an S3 server."""
    found = re.search(r"<Message>(.*?)</Message>", text, re.DOTALL)
    return found[1] if found else text


def _store_for(url: str) -> "S3Store | None":
    """Return obstore's store for a URL; None if fsspec must be used."""
    if _process != os.getpid() or not _is_plain(url):
        return None
    options = _options_for(url)
    key = _cache_key(url, options)
    # Another thread may clear the stores at any moment.
    store = _stores.get(key)
    if not store:
        with converting_errors(url):
            settings = _settings_for(url)
            store = _open_store(_bucket_of(url), settings) if settings else None
        if store:
            _stores[key] = store
    return store


def _is_plain(url: str) -> bool:
    """Return whether a URL is in S3, and obstore accepts its bucket and its key."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return scheme in _SCHEMES and bool(_BUCKET.fullmatch(bucket)) and not _UNUSUAL_KEY.search(key)


def _bucket_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[0]


def _key_of(url: str) -> str:
    return url.partition("://")[2].partition("/")[2]


def _options_for(url: str) -> dict[str, Any]:
    """Return the options that s3fs would get: from fsspec's configuration, and for this URL."""
    configured = fsspec.config.conf
    return {**configured.get("s3a", {}), **configured.get("s3", {}), **options_for(url)}


def _cache_key(url: str, options: Mapping[str, Any]) -> str:
    return f"{_bucket_of(url)} {sorted(options.items())}"


def _settings_for(url: str) -> S3Settings | None:
    """Return the settings of a bucket, as s3fs finds them; None if only s3fs can use them."""
    options = _options_for(url)
    key = _cache_key(url, options)
    with suppress(KeyError):
        return _settings[key]
    settings = _settings[key] = _read_settings(_bucket_of(url), options)
    return settings


def _read_settings(bucket: str, options: Mapping[str, Any]) -> S3Settings | None:
    extra = options.get("client_kwargs") or {}
    if set(options) - _OPTIONS or set(extra) - _CLIENT_OPTIONS:
        return None
    import botocore.session
    from botocore.exceptions import NoCredentialsError

    session = botocore.session.Session(profile=options.get("profile"))
    if options.get("key") and options.get("secret"):
        session.set_credentials(options["key"], options["secret"], options.get("token"))
    credentials = None if options.get("anon") else session.get_credentials()
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
        found = settings.credentials.get_frozen_credentials()
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
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
