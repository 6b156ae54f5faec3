"""`python -m iecl` is the command."""

import sys

from iecl.cli.command import main

sys.exit(main())
