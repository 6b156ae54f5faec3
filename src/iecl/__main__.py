"""`python -m iecl` is the command."""

import sys

from iecl.cli import main

sys.exit(main())
