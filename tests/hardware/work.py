"""What NVML says of an idle GPU and of one that works: ``python3 tests/hardware/work.py [INDEX]``.

It needs Python and ``nvidia-ml-py`` alone, and takes half a minute. On a GPU that nobody uses it looks at utilization
and processes, starts a program of its own that keeps the GPU busy, looks again, ends it, and looks until nothing is
there any more. Every answer is printed as it came; the exit status is 1 where one is not what the node agent counts on
(``dradriver/node/vendors/nvidia/discovery/nvidia_work.py``).
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

WARM_S = 8.0  # of work before the second look
GONE_S = 15.0  # until what was may still be told
PAUSE_S = 2.0
BUSY = "--busy"

# Each thread writes to memory so many times; on any GPU since Maxwell.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry spin(.param .u64 out, .param .u64 rounds)
{
    .reg .u64 %n<6>;
    .reg .pred %p<2>;
    ld.param.u64 %n1, [out];
    ld.param.u64 %n2, [rounds];
    mov.u64 %n3, 0;
again:
    add.u64 %n3, %n3, 1;
    st.volatile.global.u64 [%n1], %n3;
    setp.lt.u64 %p1, %n3, %n2;
    @%p1 bra again;
    ret;
}
\0"""


def check(code: int, what: str) -> None:
    """Raise unless a call of the CUDA driver succeeded."""
    if code:
        raise SystemExit(f"{what}: CUDA error {code}")


def on_host() -> bool:
    """Return whether this process sees the host's processes, as the agent does: the kernel's own are there."""
    try:
        return Path("/proc/2/comm").read_text().strip() == "kthreadd"
    except OSError:
        return False


def busy(index: int) -> None:
    """Keep a GPU at work until this process is ended."""
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    function, memory = ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDeviceGet(ctypes.byref(device), index), "cuDeviceGet")
    check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device), "cuCtxCreate")
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX), "cuModuleLoadData")
    check(cuda.cuModuleGetFunction(ctypes.byref(function), module, b"spin"), "cuModuleGetFunction")
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64 << 20)), "cuMemAlloc")
    rounds = ctypes.c_uint64(1 << 16)
    values = (ctypes.c_void_p * 2)(
        ctypes.cast(ctypes.byref(memory), ctypes.c_void_p), ctypes.cast(ctypes.byref(rounds), ctypes.c_void_p)
    )
    print("busy", flush=True)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        check(cuda.cuLaunchKernel(function, 64, 1, 1, 128, 1, 1, 0, None, values, None), "cuLaunchKernel")
        check(cuda.cuCtxSynchronize(), "cuCtxSynchronize")


class Looks:
    """The answers of one GPU, and what was wrong with them."""

    def __init__(self, index: int) -> None:
        import pynvml

        self.nvml = pynvml
        pynvml.nvmlInit()
        self.gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        self.wrong: list[str] = []
        driver, product = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetName(self.gpu)
        print(f"driver {driver}, {product}, MIG mode {self.ask(pynvml.nvmlDeviceGetMigMode, self.gpu)}")

    def ask(self, query: Callable[..., object], *arguments: object) -> object:
        """Return an answer, or the error's number as text."""
        try:
            return query(*arguments)
        except self.nvml.NVMLError as error:
            return f"error {error.value}"

    def look(self, when: str, since_us: int) -> tuple[int, set[int], set[int], int]:
        """Return percent, the pids that worked after a moment, those that compute, and the newest sample's moment."""
        began = time.perf_counter()
        rates = self.ask(self.nvml.nvmlDeviceGetUtilizationRates, self.gpu)
        samples = self.ask(self.nvml.nvmlDeviceGetProcessUtilization, self.gpu, since_us)
        running = self.ask(self.nvml.nvmlDeviceGetComputeRunningProcesses, self.gpu)
        took_ms = 1000 * (time.perf_counter() - began)
        percent = -1 if isinstance(rates, str) else int(rates.gpu)  # type: ignore[attr-defined]
        print(f"{when}: utilization {rates if percent < 0 else percent}, three calls {took_ms:.1f} ms")
        worked, newest = set[int](), since_us
        if isinstance(samples, str):
            print(f"  samples: {samples}")
        else:
            for one in samples:  # type: ignore[attr-defined]
                parts = (one.smUtil, one.memUtil, one.encUtil, one.decUtil)
                ago_s = time.time() - one.timeStamp / 1e6
                print(f"  sample: pid {one.pid}, {parts}, {ago_s:.1f} s ago")
                if max(parts) > 100:
                    self.wrong.append(f"{when}: {parts} is more than all of a GPU")
                if one.timeStamp > since_us and max(parts):
                    worked.add(one.pid)
                newest = max(newest, one.timeStamp)
            if not -5 < time.time() - newest / 1e6 < 3600:
                self.wrong.append(f"{when}: the newest sample is of {newest}, which is no time of now in microseconds")
        pids = set[int]()
        if isinstance(running, str):
            self.wrong.append(f"{when}: processes: {running}")
        else:
            for one in running:  # type: ignore[attr-defined]
                print(f"  computes: pid {one.pid}, GPU instance {one.gpuInstanceId}, {one.usedGpuMemory} bytes")
                pids.add(one.pid)
        return percent, worked, pids, newest

    def expect(self, holds: bool, said: str) -> None:
        """Remember what does not hold."""
        print(f"  {'ok' if holds else 'WRONG'}: {said}")
        if not holds:
            self.wrong.append(said)


def main(index: int) -> int:
    """Look at a GPU without work, with work, and after it; return 1 where an answer is not as expected."""
    looks = Looks(index)
    start_us = int(time.time() * 1e6)
    time.sleep(PAUSE_S)
    percent, worked, pids, _ = looks.look("idle", start_us)
    looks.expect(percent == 0, "an idle GPU's utilization is 0")
    looks.expect(not worked, "no process worked on it")
    looks.expect(not pids, "no process computes on it")
    program = subprocess.Popen([sys.executable, __file__, BUSY, str(index)], stdout=subprocess.PIPE, text=True)
    try:
        assert program.stdout is not None
        looks.expect(program.stdout.readline().strip() == "busy", "the program got the GPU")
        time.sleep(WARM_S)
        percent, worked, pids, newest = looks.look("busy", start_us)
        looks.expect(percent > 0, "its utilization is more than 0")
        if on_host():
            looks.expect(program.pid in pids, f"process {program.pid} computes on it")
            looks.expect(program.pid in worked, f"process {program.pid} worked on it")
        else:
            print(f"  in a process namespace of its own {program.pid} may have another number for NVML, or none")
            looks.expect(bool(worked), "a process worked on it")
    finally:
        program.kill()
        program.wait()
    ended = time.monotonic()
    while True:
        time.sleep(PAUSE_S)
        percent, worked, pids, newest = looks.look(f"{time.monotonic() - ended:.0f} s after its end", newest)
        quiet = percent == 0 and not worked and not pids
        if quiet or time.monotonic() - ended > GONE_S:
            break
    looks.expect(quiet, "nothing is told of it any more")
    _, worked, _, _ = looks.look("asked for all since the beginning", start_us)
    print(f"  the driver still remembers the work: {bool(worked)}")
    print(f"{len(looks.wrong)} wrong", *looks.wrong, sep="\n")
    return 1 if looks.wrong else 0


if __name__ == "__main__":
    if sys.argv[1:2] == [BUSY]:
        busy(int(sys.argv[2]))
    else:
        sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
