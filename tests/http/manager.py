"""What systemd does for a service, for tests: a notify socket, a listening port that is handed over
as descriptor 3 and outlives the process."""
import os
import shutil
import socket
import subprocess
import tempfile

from mascon import MASCON, MODEL


class Manager:
    """What systemd does: a notify socket, a listening port handed over as descriptor 3."""

    def __enter__(self):
        self.dir = tempfile.mkdtemp(prefix="mascon-unit-")
        self.notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.notify.bind(self.dir + "/notify")
        self.notify.settimeout(60)
        self.port = socket.socket()
        self.port.bind(("127.0.0.1", 0))
        self.port.listen(1024)
        self.number = self.port.getsockname()[1]
        self.process = None
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.port.close()
        self.notify.close()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self, *flags, watchdog=60.0):
        env = {**os.environ, "NOTIFY_SOCKET": self.dir + "/notify", "LISTEN_FDS": "1",
               "WATCHDOG_USEC": str(int(watchdog * 1e6)), "STATE_DIRECTORY": self.dir}
        fd = os.dup(self.port.fileno())
        # the shell's pid is the program's
        script = f'exec 3<&{fd} {fd}<&-; LISTEN_PID=$$ exec "$@"' if fd != 3 else \
                 'LISTEN_PID=$$ exec "$@"'
        self.process = subprocess.Popen(
            ["bash", "-c", script, "sh", MASCON, "serve", MODEL, "--socket", self.dir + "/sock",
             *flags], env=env, pass_fds=[fd], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(fd)

    def told(self, what, timeout=60):
        self.notify.settimeout(timeout)
        seen = []
        while not seen or what not in seen[-1]:
            seen.append(self.notify.recv(4096).decode())
        return seen
