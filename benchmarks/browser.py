"""A browser without a window, driven over a pipe: what a reader sees, does and is told."""

import json
import os
import select
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ABSENT = "there is no chromium here"
PATIENCE = 300.0
START = """
import fcntl, os, sys
high = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 50) for number in sys.argv[1:3]]
os.dup2(high[0], 3), os.dup2(high[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""Chromium listens on file 3 and answers on file 4, whatever else this process has open."""


class Browser:
    """One page of a headless Chromium that has no network; requests, errors and messages are kept."""

    def __init__(self, folder: Path, *, width: int = 1280, height: int = 900, is_offline: bool = True) -> None:
        assert PROGRAM is not None
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        flags = ["--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]
        flags += ["--disable-background-networking", "--disable-dev-shm-usage", "--hide-scrollbars"]
        flags += [f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", START, str(to_read), str(to_write), PROGRAM, *flags],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self._number, self._rest = 0, b""
        self.events: list[dict[str, Any]] = []
        self._session = ""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")
        if is_offline:
            self.ask(
                "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
            )
        self.resize(width, height)

    def __enter__(self) -> "Browser":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and wait for its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session and not method.startswith("Target."):
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(PATIENCE)
            if answer.get("id") == self._number:
                assert "error" not in answer, f"{method}: {answer}"
                found: dict[str, Any] = answer["result"]
                return found

    def _next(self, patience: float) -> dict[str, Any]:
        end = time.monotonic() + patience
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            assert ready, "the browser does not answer"
            part = os.read(self._read, 2**20)
            assert part, "the browser has ended"
            self._rest += part
        raw, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        if "method" in message:
            self.events.append(message)
        return message

    def open(self, url: str) -> None:
        """Open a page and wait until it has drawn itself."""
        self.events.clear()
        self.ask("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && !!document.querySelector('main section')")

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, condition: str) -> None:
        """Wait until an expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < end, f"never: {condition}"
            time.sleep(0.02)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """One event of the pointer: mouseMoved, mousePressed, mouseReleased or mouseWheel."""
        held = {"button": "left", "clickCount": 1} if kind in ("mousePressed", "mouseReleased") else {}
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **(held | more))

    def drag(self, points: list[tuple[float, float]], modifiers: int = 0) -> None:
        """Press at the first point, move along the others, let go at the last."""
        self.mouse("mouseMoved", *points[0])
        self.mouse("mousePressed", *points[0], modifiers=modifiers)
        for point in points[1:]:
            self.mouse("mouseMoved", *point, button="left", buttons=1, modifiers=modifiers)
        self.mouse("mouseReleased", *points[-1], modifiers=modifiers)

    def press(self, key: str, code: str = "") -> None:
        """One key."""
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=code or key)

    def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        """Another size of the window."""
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """What the reader's system prefers: light or dark."""
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, out: Path, whole: bool = False) -> None:
        """The window, or all of the page."""
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        out.write_bytes(b64decode(found["data"]))

    @property
    def requests(self) -> list[str]:
        """Addresses that were asked for, but the file itself and what is within it."""
        sent = [
            event["params"]["request"]["url"] for event in self.events if event["method"] == "Network.requestWillBeSent"
        ]
        return [url for url in sent[1:] if not url.startswith("data:")]

    @property
    def complaints(self) -> list[str]:
        """Exceptions, and what the console says."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled")
        return [json.dumps(event["params"])[:500] for event in self.events if event["method"] in kinds]
