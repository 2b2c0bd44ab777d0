"""What a read or a write of a dataset cannot do without, measured alone; started by ``peers.py``, not by hand.

The argument is that of ``measure.py``. Three parts are measured, each with as many threads as there are cores, on the
bytes of the ``data.parquet`` that pds wrote:

- zstd: every page of the columns is decompressed, or compressed at the level of the comparison;
- memory: a read copies the bytes of its result into memory that nothing was in before, a write looks at all bytes of
  its input once, by copying them to where there is room for a small part;
- store: the compressed bytes are read from the page cache, or written to a new file and synced; on an S3 server they
  go from one process to another over the loopback, without HTTP.

Each part is done a few times, and its least time and least processor time count. No system is faster than the store,
nor than the processor time of all parts spread over all cores: the larger of the two is the limit. Encodings,
checksums, hashes, requests and files beside the data are not in it.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import data
import numpy as np
import pages_of_file
import pyarrow as pa
from systems import CODEC, LEVEL, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

CORES = len(os.sched_getaffinity(0))
PIECE_BYTES = 4 * 2**20
REPEATS = 5


def spread(work: Callable[[int], object], count: int) -> tuple[float, float]:
    """Does numbered work by all cores; wall time and processor time."""
    with ThreadPoolExecutor(CORES) as threads:
        list(threads.map(lambda _: time.sleep(0.01), range(CORES)))  # starts the threads
        cpu, start = _cpu_seconds(), time.perf_counter()
        list(threads.map(work, range(count)))
        return time.perf_counter() - start, _cpu_seconds() - cpu


def best(part: Callable[[], tuple[float, float]]) -> tuple[float, float]:
    """The least of both times."""
    walls, cpus = zip(*(part() for _ in range(REPEATS)), strict=True)
    return min(walls), min(cpus)


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def zstd(pages: Sequence[pages_of_file.Page], *, compress: bool) -> tuple[float, float]:
    """The pages of a file, decompressed or compressed anew."""
    codecs = threading.local()

    def codec() -> pa.Codec:
        if not hasattr(codecs, "codec"):
            codecs.codec = pa.Codec(CODEC, compression_level=LEVEL)
        return codecs.codec

    plain = [codec().decompress(page.body, page.plain_size) for page in pages] if compress else []

    def work(number: int) -> None:
        if compress:
            codec().compress(plain[number])
        else:
            codec().decompress(pages[number].body, pages[number].plain_size)

    return spread(work, len(pages))


def memory(table: pa.Table, *, fresh: bool) -> tuple[float, float]:
    """The bytes of a table copied: to new memory, or to a place that stays in the processor's cache."""
    arrays = [chunk for column in table.columns for chunk in column.chunks]
    buffers = [np.frombuffer(b, np.uint8) for a in arrays for b in a.buffers() if b]
    pieces = [b[at : at + PIECE_BYTES] for b in buffers for at in range(0, len(b), PIECE_BYTES)]
    places = np.cumsum([0, *(len(piece) for piece in pieces)])
    target = np.empty(int(places[-1]) if fresh else 0, np.uint8)
    local = threading.local()

    def work(number: int) -> None:
        piece = pieces[number]
        if fresh:
            np.copyto(target[places[number] : places[number + 1]], piece)
            return
        if not hasattr(local, "small"):
            local.small = np.empty(256 * 1024, np.uint8)
        for at in range(0, len(piece), len(local.small)):
            part = piece[at : at + len(local.small)]
            np.copyto(local.small[: len(part)], part)

    return spread(work, len(pieces))


def read_file(path: Path, ranges: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Ranges of a file, from the page cache."""
    pieces = [(a + at, min(PIECE_BYTES, n - at)) for a, n in ranges for at in range(0, n, PIECE_BYTES)]
    local = threading.local()
    file = os.open(path, os.O_RDONLY)

    def work(number: int) -> None:
        if not hasattr(local, "buffer"):
            local.buffer = bytearray(PIECE_BYTES)
        offset, size = pieces[number]
        os.preadv(file, [memoryview(local.buffer)[:size]], offset)

    try:
        return spread(work, len(pieces))
    finally:
        os.close(file)


def write_file(folder: Path, content: bytes) -> tuple[float, float]:
    """A new file, on the disk at the end."""
    with tempfile.TemporaryFile(dir=folder) as file:
        view, handle = memoryview(content), file.fileno()
        count = -(-len(content) // PIECE_BYTES)

        def work(number: int) -> None:
            at = number * PIECE_BYTES
            os.pwrite(handle, view[at : at + PIECE_BYTES], at)

        wall, cpu = spread(work, count)
        start, before = time.perf_counter(), _cpu_seconds()
        os.fsync(handle)
        return wall + time.perf_counter() - start, cpu + _cpu_seconds() - before


def loopback(size: int) -> tuple[float, float]:
    """So many bytes from a child process, by a connection for each core."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = os.fork()
        if child == 0:
            _send(server, size // CORES)
        address = server.getsockname()
        connections = [socket.create_connection(address) for _ in range(CORES)]

        def work(number: int) -> None:
            buffer, connection = bytearray(PIECE_BYTES), connections[number]
            connection.sendall(b"x")
            while connection.recv_into(buffer):
                pass

        wall, cpu = spread(work, CORES)
        for connection in connections:
            connection.close()
        _, _, usage = os.wait4(child, 0)
    return wall, cpu + usage.ru_utime + usage.ru_stime


def _send(server: socket.socket, size: int) -> None:
    """The other process: sends zeros to everyone who asks."""
    content = memoryview(bytes(PIECE_BYTES))

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(1)
            for at in range(0, size, PIECE_BYTES):
                connection.sendall(content[: size - at])

    threads = [threading.Thread(target=serve, args=(server.accept()[0],)) for _ in range(CORES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0)


def measure(op: str, data_set: str, place: Place, name: str) -> dict[str, float]:
    """The parts of an operation, and the limit that follows from them."""
    path = place.files(name) / "data.parquet"
    columns = data.DATA[data_set].few_columns if op == "columns" else None
    chunks = pages_of_file.chunks(path, columns)
    pages = [page for offset, size in chunks for page in pages_of_file.pages(path, offset, size)]
    table = data.load(data_set)
    size = sum(length for _, length in chunks)
    writing = op == "write"
    result = table.select(columns) if columns else table
    if place.server:
        store = best(lambda: loopback(size))
    elif writing:
        content = path.read_bytes()
        store = best(lambda: write_file(path.parent, content))
    else:
        store = best(lambda: read_file(path, chunks))
    parts = {
        "store": store,
        "memory": best(lambda: memory(result, fresh=not writing)),
        "zstd": best(lambda: zstd(pages, compress=writing)),
    }
    cpu = sum(cpu for _, cpu in parts.values())
    cpus = {f"{part}_cpu": used for part, (_, used) in parts.items()}
    return {"wall": max(cpu / CORES, store[0]), "cpu": cpu, "store_wall": store[0], **cpus}


def main() -> None:
    """Reads the order, prints the figures."""
    order = json.loads(sys.argv[1])
    place = Place.parse(order["place"])
    print(json.dumps(measure(order["op"], order["data"], place, order["name"])), flush=True)


if __name__ == "__main__":
    main()
