"""An nginx of its own for a test: Debian's, in the foreground, with the configuration that the test gives it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

PROGRAM = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
START_SECONDS = 30.0
AROUND = """
user {user};
daemon off;
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    {servers}
}}
"""


def is_missing() -> str:
    """Why there can be no nginx here; empty if there can. With CI=true that is an error, not a reason."""
    if PROGRAM is not None:
        return ""
    reason = "nginx is not installed (Debian: apt-get install nginx-light)"
    assert os.environ.get("CI") != "true", reason
    return reason


class Nginx:
    """A running nginx. servers: what stands in its `http` block; port: where it then listens on 127.0.0.1."""

    def __init__(self, directory: Path, servers: str, port: int) -> None:
        assert PROGRAM is not None
        self._errors = directory / "error.log"
        configuration = directory / "nginx.conf"
        user = "root" if os.getuid() == 0 else "nobody"
        configuration.write_text(AROUND.format(user=user, directory=directory, servers=servers))
        command = [PROGRAM, "-p", str(directory), "-e", str(self._errors), "-c", str(configuration)]
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        while not self._answers(port):
            assert self._process.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.02)

    def _answers(self, port: int) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex(("127.0.0.1", port)) == 0

    @property
    def log(self) -> str:
        return self._errors.read_text() if self._errors.exists() else ""

    def stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(START_SECONDS)
        finally:
            self._process.kill()
            self._process.wait()
