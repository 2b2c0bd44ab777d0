"""Where the processor's time of an operation goes: samples of ``perf``, by what the function at the top is for.

Only where Linux has ``perf`` and lets us use it, and of a wheel with its symbols: ``make bench-peers STRIP=``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SAMPLES_PER_SECOND = 997
READY_SECONDS = 10
# The first that fits, by the name of the function; of the kernel's own below.
STAGES = {
    "zstd": r"ZSTD|HUF_|FSE_|HIST_",
    "hashes": r"crc|xxh|XXH|sha1|sha2|sha3|md5|[kK]eccak|ahash|hash_one",
    "copies": r"memcpy|memmove|memset|memcmp",
    "memory": r"malloc|calloc|realloc|_int_free|^c?free$|mi_|mimalloc|jemalloc|_rjem|__rust_(de)?alloc",
    "network": r"hyper|reqwest|rustls|object_store|quick_xml|httparse|mio\b|poll_",
    "Parquet": r"parquet",
    "Arrow": r"arrow|utf8",
}
KERNEL = {
    "memory": r"clear_page|fault|folio|pte|pmd|zap|unmap|mmap|madvise|lru|alloc_page|rmqueue|charge|unref|tlb|vma|anon",
}
NAMES = ("zstd", "Parquet", "Arrow", "copies", "memory", "hashes", "network", "kernel: files and sockets", "others")


@functools.cache
def available() -> bool:
    """Whether ``perf`` is there and may look at a process of ours."""
    if not shutil.which("perf"):
        return False
    command = ["perf", "record", "-q", "-o", os.devnull, "--", "true"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextlib.contextmanager
def recorded(path: str) -> Iterator[None]:
    """Samples of this process and its threads until the block ends; an empty path is none."""
    if not path:
        yield
        return
    (commands, command), (answer, answers) = os.pipe(), os.pipe()
    control = [f"--control=fd:{commands},{answers}", "-D", "-1"]
    rate = ["-F", str(SAMPLES_PER_SECOND), "-p", str(os.getpid())]
    process = subprocess.Popen(
        ["perf", "record", "-q", "-o", path, *rate, *control],
        pass_fds=(commands, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(answers)
    try:
        os.write(command, b"enable\n")
        if not os.read(answer, 16).startswith(b"ack"):
            raise RuntimeError("perf does not begin")
        yield
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(READY_SECONDS)
        os.close(command)
        os.close(answer)


def shares(path: Path) -> dict[str, float]:
    """Of the samples of a file, the share of each stage; empty if the wheel has no symbols."""
    command = ["perf", "script", "-i", str(path), "-F", "ip,sym,dso"]
    text = subprocess.run(command, check=True, capture_output=True, text=True, errors="replace").stdout
    samples = [line for line in text.splitlines() if line.strip()]
    ours = [line for line in samples if "_pds.abi3.so" in line]
    if 2 * sum("[unknown]" in line for line in ours) > len(ours):
        return {}
    counts = Counter(map(stage, samples))
    return {name: counts[name] / counts.total() for name in NAMES if counts[name]}


def stage(line: str) -> str:
    """What a sample is for: an address, a function, and in parentheses the file that it is from."""
    _, _, function = line.strip().partition(" ")
    if "kernel" in function.rpartition("(")[2]:
        patterns, rest = KERNEL, "kernel: files and sockets"
    else:
        patterns, rest = STAGES, "others"
    name = function.rpartition(" (")[0]
    return next((key for key, pattern in patterns.items() if re.search(pattern, name)), rest)
