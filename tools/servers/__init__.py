"""The servers that the tests, the examples and the benchmarks talk to.

Each is pinned in ``process``, installed once into the cache (``make servers``, ``make azure``)
and runs on a free loopback port for as long as a ``with`` block lasts::

    with S3Server.start() as s3:
        store = pds.Store(s3.url("data"), storage_options=s3.options())

A server that is not installed or does not start is an error, never a reason to skip.
"""

from servers.azure import AzureServer
from servers.network import Proxy, Toxiproxy
from servers.s3 import S3Server, Traffic

__all__ = ["AzureServer", "Proxy", "S3Server", "Toxiproxy", "Traffic"]
