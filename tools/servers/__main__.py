"""``python -m servers install NAME …`` puts servers into the cache."""

import argparse

from servers.process import TOOLS, install

parser = argparse.ArgumentParser(prog="servers", description="Install the servers the tests need.")
parser.add_argument("command", choices=["install"])
parser.add_argument("names", nargs="+", choices=sorted(TOOLS))
for name in parser.parse_args().names:
    install(name)
