"""A block for a bucket or folder that contains datasets, with its credentials."""

import os
from typing import Annotated, Any

from batchmill.blocks.saved_block import FORM, loaded, logo
from prefect.blocks.core import Block
from prefect.blocks.fields import SecretDict
from prefect.filesystems import LocalFileSystem, RemoteFileSystem
from pydantic import AfterValidator, BeforeValidator, Field, HttpUrl, field_validator

from batchmill.core.options.validation import Described
from batchmill.core.security.credentials import Access
from batchmill.core.urls import is_url, join, shown_url, url_fault, without_file_scheme
from batchmill.errors import OptionError

# With these options, fsspec would open another place than the URL.
_NOT_OURS = ("protocol", "fo", "target_protocol", "target_options", "remote_protocol")


class DatasetStore(Described, Block):
    """A bucket prefix or folder that contains datasets, and the credentials to open it.

    Raises OptionError for a URL that is not valid, or that contains a credential.

    Example:
        ```python
        from batchmill.blocks.dataset_store import DatasetStore

        store = DatasetStore.load("BLOCK_NAME")
        ```
    """

    model_config = FORM

    _block_type_name = "Dataset Store (batchmill)"
    _block_type_slug = "batchmill-dataset-store"
    _logo_url = logo("filesystem")
    _documentation_url = HttpUrl(
        "https://github.com/batchmill/batchmill/blob/main/docs/how-to/saved-blocks.md#a-saved-store"
    )
    _description = "A bucket or folder that contains batchmill's datasets, with its credentials."

    url: str = Field(title="URL")
    """A bucket prefix such as s3://bucket/datasets, or the full path of a folder."""
    options: SecretDict = Field(default_factory=lambda: SecretDict({}))
    """Options of the fsspec file system in JSON, for example {"key": "...", "secret": "..."}. They
    are kept secret. Default: the credentials in the environment or profile of each machine."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        url = without_file_scheme(url.strip())
        fault = ""
        if is_url(url):
            has_bucket = bool(url.partition("://")[2])
            fault = url_fault(url) or ("" if has_bucket else "names no bucket. Add its name.")
        elif not os.path.isabs(url):
            # A relative path would be another folder in each process.
            fault = "is neither a URL nor a full path. Give a full path."
        if fault:
            raise OptionError(f"dataset store {shown_url(url)!r}: {fault}")
        return url.rstrip("/") or "/"

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: SecretDict) -> SecretDict:
        for name in options.get_secret_value():
            if name in _NOT_OURS:
                raise OptionError(
                    f"dataset store: the option {name!r} would open another place than the URL. "
                    "Remove it."
                )
        return options

    def place_of(self, name: str) -> str:
        """Return the URL or path of a dataset in this store. A full URL or path is not changed.

        Raises OptionError for an empty name, and for one with `..`, which could be outside.
        """
        if not name:
            raise OptionError(f"--output is empty. Name a dataset in {self.url}.")
        if ".." in name.split("/"):
            raise OptionError(f"--output {name}: has '..' in it. Name a dataset in {self.url}.")
        return join(self.url, name)

    @property
    def access(self) -> list[Access]:
        """The URL and the options with which a process opens the store."""
        options = self.options.get_secret_value()
        return [Access(url=self.url, options=options)] if options and is_url(self.url) else []


def as_store(store: object) -> Any:
    """Convert one of Prefect's file-system blocks, or block:NAME, to a DatasetStore.

    NAME may be TYPE/NAME, for example remote-file-system/lab. A saved block is fetched from the
    Prefect API. Raises OptionError. Returns None without a store.
    """
    store = _loaded(store)
    if store is None or isinstance(store, DatasetStore):
        return store
    if isinstance(store, RemoteFileSystem | LocalFileSystem):
        if isinstance(store, RemoteFileSystem):
            made = DatasetStore(url=store.basepath, options=SecretDict(store.settings))
        else:
            made = DatasetStore(url=os.path.abspath(os.path.expanduser(store.basepath or "~")))
        made._block_document_id = store._block_document_id  # Saved, if `store` is saved.
        return made
    what = repr(store) if isinstance(store, str) else f"a {type(store).__name__}"
    raise OptionError(
        f"--store: {what} is not a dataset store. Give a saved store: block:NAME or "
        "block:remote-file-system/NAME."
    )


def _loaded(store: object) -> Any:
    return loaded("--store", store, DatasetStore, RemoteFileSystem, LocalFileSystem)


# A form shows this field as a selection of these blocks. A saved job is loaded with a dict in it.
Store = Annotated[
    DatasetStore | RemoteFileSystem | None, BeforeValidator(_loaded), AfterValidator(as_store)
]


def place_of_dataset(store: DatasetStore | None, output: str | os.PathLike[str]) -> str:
    """Return a dataset's path or URL. With a store, `output` may be a name in it."""
    return store.place_of(os.fspath(output)) if store else os.fspath(output)
