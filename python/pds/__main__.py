"""`python -m pds`."""

import sys

from pds.cli import main

sys.exit(main())
