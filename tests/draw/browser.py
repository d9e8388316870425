"""A headless chromium, driven over WebDriver by the standard library alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--window-size=1500,1400",
)  # fmt: skip
# WebDriver, "Keyboard actions": the code points of keys that have no character.
KEYS = {
    "Escape": "\ue00c", "PageUp": "\ue00e", "PageDown": "\ue00f", "End": "\ue010", "Home": "\ue011",
    "ArrowLeft": "\ue012", "ArrowUp": "\ue013", "ArrowRight": "\ue014", "ArrowDown": "\ue015",
    "Shift": "\ue008",
    "Enter": "\ue007",
}  # fmt: skip


def missing() -> str:
    """Why the tests have no browser, or nothing."""
    if not (shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")):
        return "no chromium is installed (Debian: apt-get install chromium chromium-driver)"
    if not shutil.which("chromedriver"):
        return "no chromedriver is installed (Debian: apt-get install chromium-driver)"
    return ""


class Browser:
    """One browser and one page."""

    def __init__(self, *, dark: bool = False) -> None:
        self.profile = tempfile.mkdtemp(prefix="cutegemm-browser-")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self.root = f"http://127.0.0.1:{port}"
        self._wait_until_ready()
        arguments = [*FLAGS, f"--user-data-dir={self.profile}"]
        if dark:
            arguments.append("--blink-settings=preferredColorScheme=0")
        options: dict[str, Any] = {"args": arguments}
        binary = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        options["binary"] = binary
        asked = {
            "browserName": "chrome",
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
        }
        made = self.call("POST", "/session", {"capabilities": {"alwaysMatch": asked}})
        self.session = f"/session/{made['sessionId']}"

    def _wait_until_ready(self) -> None:
        for _ in range(150):
            try:
                self.call("GET", "/status")
                return
            except (URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError("chromedriver does not answer")

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = json.dumps(body if body is not None else {}).encode() if method == "POST" else None
        request = Request(self.root + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except HTTPError as error:
            raise RuntimeError(error.read().decode()[:600]) from None

    def open(self, path: Path, fragment: str = "") -> None:
        self.call("POST", f"{self.session}/url", {"url": path.resolve().as_uri() + fragment})

    def run(self, script: str, *args: Any) -> Any:
        """The value of a script's `return`."""
        return self.call("POST", f"{self.session}/execute/sync", {"script": script, "args": list(args)})

    def run_async(self, script: str, *args: Any) -> Any:
        """What the script hands to its last argument."""
        return self.call("POST", f"{self.session}/execute/async", {"script": script, "args": list(args)})

    def choose(self, name: str, value: object) -> None:
        """The value of a control, as if somebody had chosen it."""
        self.run(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1];"
            "for (const kind of ['input', 'change']) s.dispatchEvent(new Event(kind));",
            name,
            str(value),
        )
        self.settle()

    def text(self, css: str) -> str:
        return str(self.run("return document.querySelector(arguments[0]).textContent", css))

    def move(self, x: float, y: float, *, click: bool = False) -> None:
        """The real pointer to a point of the window, in CSS pixels."""
        actions: list[dict[str, Any]] = [
            {"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y), "origin": "viewport"}
        ]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        pointer = {
            "type": "pointer",
            "id": "mouse",
            "parameters": {"pointerType": "mouse"},
            "actions": actions,
        }
        self.call("POST", f"{self.session}/actions", {"actions": [pointer]})

    def keys(self, *keys: str) -> None:
        """Keys pressed one after the other, by name; "Shift+End" holds one of them."""
        actions = []
        for combination in keys:
            codes = [KEYS[name] for name in combination.split("+")]
            actions += [{"type": "keyDown", "value": code} for code in codes]
            actions += [{"type": "keyUp", "value": code} for code in reversed(codes)]
        self.call(
            "POST",
            f"{self.session}/actions",
            {"actions": [{"type": "key", "id": "keys", "actions": actions}]},
        )

    def settle(self) -> None:
        """Until the page has drawn what was asked for."""
        self.run_async("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))")

    def log(self, kind: str = "browser") -> list[dict[str, Any]]:
        return list(self.call("POST", f"{self.session}/se/log", {"type": kind}))

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("GET", f"{self.session}/screenshot")))

    def close(self) -> None:
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(timeout=10)
            shutil.rmtree(self.profile, ignore_errors=True)
