import hashlib
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from edgefl.base.errors import DataError
from edgefl.data.datasets.fetch import RemoteFile, download, find_file, find_or_download, list_data_folders

CONTENT = bytes(range(256)) * 9


class QuietRequests(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.path != "/short":
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "50")
        self.end_headers()
        self.wfile.write(b"only this")
        return None


@pytest.fixture
def server_url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "set.bin").write_bytes(CONTENT)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietRequests, directory=str(tmp_path / "home")))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGEFL_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "data"


def test_file_is_downloaded_once(
    server_url: str, data_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = RemoteFile(f"{server_url}/set.bin", "sha256:" + hashlib.sha256(CONTENT).hexdigest())
    path = find_or_download("sub/set.bin", remote)
    assert path == data_folder / "sub" / "set.bin"
    assert path.read_bytes() == CONTENT
    assert f"downloading {server_url}/set.bin to {path}" in capsys.readouterr().err
    assert find_or_download("sub/set.bin", RemoteFile("http://127.0.0.1:9/gone")) == path
    assert capsys.readouterr().err == ""


def test_cache_folder_is_searched_and_is_the_default(
    server_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache" / "edgefl" / "data"
    cache.mkdir(parents=True)
    (cache / "a.npz").write_bytes(b"")
    assert find_file("a.npz") == cache / "a.npz"
    monkeypatch.delenv("EDGEFL_DATA")
    assert list_data_folders() == [cache]
    assert find_or_download("b", RemoteFile(f"{server_url}/set.bin")) == cache / "b"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert list_data_folders() == [Path.home() / ".cache" / "edgefl" / "data"]


@pytest.mark.parametrize(
    ("path", "digest", "max_bytes", "message"),
    [
        ("set.bin", "sha256:" + "0" * 64, 10**6, "expected 0000.*it is not the published file"),
        ("set.bin", "md5:" + "0" * 32, 10**6, "the md5 of"),
        ("set.bin", "", 100, "more than 100 bytes"),
        ("none.bin", "", 10**6, "404"),
        ("short", "", 10**6, "received 9 bytes|IncompleteRead"),
    ],
)
def test_invalid_download_is_not_stored(
    server_url: str, data_folder: Path, path: str, digest: str, max_bytes: int, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        find_or_download("set.bin", RemoteFile(f"{server_url}/{path}", digest, max_bytes))
    assert find_file("set.bin") is None
    assert not data_folder.exists() or not list(data_folder.iterdir())


def test_offline_error_explains_manual_download(data_folder: Path) -> None:
    with pytest.raises(
        DataError, match=rf"no set.bin in .*could not be downloaded: .*copy it to {data_folder}/set.bin"
    ):
        find_or_download("set.bin", RemoteFile("http://127.0.0.1:9/set.bin"))
    with pytest.raises(DataError, match=r"; ask a friend$"):
        find_or_download("set.bin", RemoteFile("nonsense:set.bin"), "ask a friend")


def test_unwritable_folder_is_an_error(server_url: str, data_folder: Path) -> None:
    data_folder.write_text("a file where the folder should be")
    with pytest.raises(DataError, match="could not be downloaded"):
        find_or_download("set.bin", RemoteFile(f"{server_url}/set.bin"))


def test_file_urls_can_be_downloaded(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(CONTENT)
    assert (
        download(RemoteFile((tmp_path / "f").as_uri(), "md5:" + hashlib.md5(CONTENT).hexdigest())) == CONTENT
    )
