"""A server on this machine that gives parts of files, as those of shards do; it may refuse some of what it is asked."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class _Handler(SimpleHTTPRequestHandler):
    """Files of a folder, and parts of them where a client asks for some."""

    ranges = True
    refuses: Callable[[], bool] | None = None

    def log_message(self, *words: object) -> None:
        pass

    def _is_refused(self) -> bool:
        refuses = type(self).refuses
        if refuses is None or not refuses():
            return False
        self.send_error(503)
        return True

    def do_HEAD(self) -> None:
        if not self._is_refused():
            super().do_HEAD()

    def do_GET(self) -> None:
        if self._is_refused():
            return
        wanted, path = self.headers.get("Range"), Path(self.translate_path(self.path))
        if wanted is None or not self.ranges or not path.is_file():
            super().do_GET()
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        whole = path.stat().st_size
        end = min(int(last) + 1 if last else whole, whole)
        with path.open("rb") as file:
            file.seek(int(first))
            part = file.read(max(0, end - int(first)))
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(part) - 1}/{whole}")
        self.end_headers()
        self.wfile.write(part)


@contextmanager
def served(folder: Path, *, ranges: bool = True, refuses: Callable[[], bool] | None = None) -> Iterator[str]:
    """The URL of a folder while this lasts.

    Args:
        folder: what is served.
        ranges: give parts; otherwise whole files are sent, whatever was asked for.
        refuses: is asked before each answer; called by several threads.
    """
    hold = None if refuses is None else staticmethod(refuses)
    handler = type("Handler", (_Handler,), {"ranges": ranges, "refuses": hold})
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
