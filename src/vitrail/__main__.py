"""`python -m vitrail`: the command line, for where the script is not on the path."""

import sys

from vitrail.cli import main

sys.exit(main())
