"""`python -m pds.cli`."""

import sys

from pds.cli import main

sys.exit(main())
