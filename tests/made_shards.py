"""Shards of a few images, and a server on this machine that gives parts of files."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from iecl.data import tar_samples
from iecl.data.shard_writer import pack_shards


def make_shards(images: Path, out: Path, block: int = 6000, megabytes: float = 0.02) -> Path:
    """Shards of some 20 kilobytes in blocks of a few images each."""
    before, tar_samples.BLOCK = tar_samples.BLOCK, block
    try:
        pack_shards(str(images), out, shard_megabytes=megabytes)
    finally:
        tar_samples.BLOCK = before
    return out


class _Handler(SimpleHTTPRequestHandler):
    """Files of a folder, and parts of them where a client asks for some."""

    ranges = True

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        path = Path(self.translate_path(self.path))
        if wanted is None or not self.ranges or not path.is_file():
            super().do_GET()
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        whole = path.read_bytes()
        part = whole[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{len(whole)}")
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def served(folder: Path, *, ranges: bool = True) -> Iterator[str]:
    """The URL of a folder while this lasts."""
    handler = type("Handler", (_Handler,), {"ranges": ranges})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
