"""A stand-in for ``nvidia-cuda-mps-control``, as unkind as the original: written to a folder as a program.

From NVIDIA's MPS documentation, its man page, and what people saw of it: ``-d`` returns before the daemon listens, and
keeps its output open; where its socket's name is too long the daemon dies and ``-d`` has succeeded; a second one in the
same pipe directory is refused; a refused line is a text with exit status 0; a limit from 1 GiB on is shown in whole
GiB; ``quit`` without ``-t`` waits for servers, and what was set is gone with the daemon.
"""

from __future__ import annotations

import sys
from pathlib import Path

_PROGRAM = """#!{python}
import ctypes, os, re, signal, socket, sys, time

PIPE, LOG = os.environ["CUDA_MPS_PIPE_DIRECTORY"], os.environ["CUDA_MPS_LOG_DIRECTORY"]
GPU = os.environ["CUDA_VISIBLE_DEVICES"]
PID = os.path.join(PIPE, "nvidia-cuda-mps-control.pid")
FOLDER = os.path.dirname(PIPE)


def has(name):  # a test's word
    return os.path.exists(os.path.join(FOLDER, name))


def note(line):
    with open(os.path.join(LOG, "control.log"), "a") as log:
        log.write(line + "\\n")


def client():
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.connect(os.path.join(PIPE, "control"))
        except OSError:
            print("Cannot find MPS control daemon process")
            sys.exit(1)
        end.sendall(sys.stdin.buffer.read())
        end.shutdown(socket.SHUT_WR)
        while data := end.recv(4096):
            sys.stdout.write(data.decode())


class Daemon:
    def __init__(self):
        self.threads, self.memory, self.servers, self.given = 100, None, [], {{}}

    def answer(self, line):
        note("Cmd:" + line)
        word, *rest = line.split()
        if word == "get_server_list":
            return "\\n".join(map(str, self.servers))
        if word == "start_server":
            self.servers.append(server())
            self.given[self.servers[-1]] = [self.threads, self.memory]
            return ""
        if word == "set_default_active_thread_percentage":
            if not has("deaf"):
                self.threads = float(rest[0])
            return str(float(rest[0]))
        if word == "get_default_active_thread_percentage":
            return str(float(self.threads))
        if word == "set_default_device_pinned_mem_limit":
            if rest[0] not in (GPU, "0"):
                return "Invalid device"
            if not re.fullmatch("[0-9]+[MG]", rest[1]):
                return "Invalid memory limit"
            self.memory = int(rest[1][:-1]) * (1024 if rest[1][-1] == "G" else 1)
            return ""
        if word == "get_default_device_pinned_mem_limit":
            if self.memory is None:
                return "No limit"
            return f"{{self.memory // 1024}}G" if self.memory >= 1024 else f"{{self.memory}}M"
        if word.endswith("t_active_thread_percentage") or word.endswith("t_device_pinned_mem_limit"):
            given, number = self.given.get(int(rest[0])), int("mem" in word)
            if given is None:
                return "Server " + rest[0] + " does not exist"
            if word.startswith("set"):
                given[number] = int(rest[-1][:-1]) if number else float(rest[-1])
            return (f"{{given[1]}}M" if number else str(float(given[0]))) if word.startswith("get") else ""
        if word == "quit" and not has("stubborn"):
            for pid in self.servers:
                if rest[:1] == ["-t"]:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            os.unlink(PID)
            os._exit(0)
        return ""


def server():
    pid = os.fork()
    if pid == 0:
        os.closerange(3, 256)
        ctypes.CDLL(None).prctl(15, b"nvidia-cuda-mps-server", 0, 0, 0)  # PR_SET_NAME
        while True:
            signal.pause()
    return pid


def serve():
    with socket.socket(socket.AF_UNIX) as end:
        try:
            end.bind(os.path.join(PIPE, "control"))
        except OSError as error:
            note(f"Failed to bind: {{error}}")
            os._exit(1)
        end.listen()
        daemon = Daemon()
        while True:
            peer, _ = end.accept()
            with peer:
                text = b""
                while data := peer.recv(4096):
                    text += data
                for line in text.decode().splitlines():
                    peer.sendall((daemon.answer(line) + "\\n").encode())


def main(words):
    while has("hang"):
        time.sleep(0.05)
    if not words:
        return client()
    if set(words) - {{"-d", "-f", "-M"}} or has("old"):
        print(f"Unknown option {{words[-1]}}")
        sys.exit(1)
    try:
        os.kill(int(open(PID).read()), 0)
    except (OSError, ValueError):
        pass
    else:
        print("An instance of this daemon is already running")
        sys.exit(1)
    note("start " + " ".join(words) + " for " + GPU)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    with open(PID, "w") as file:
        file.write(str(os.getpid()))
    time.sleep(0.05)
    serve()


main(sys.argv[1:])
"""


def write(folder: Path) -> str:
    """Write the program and return the path to look for it in."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "nvidia-cuda-mps-control"
    program.write_text(_PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    return str(folder)
