"""`python -m vitrail` and the script `vitrail`: the command line."""

import signal
import sys


def main() -> int:
    """Run the command line; until it has something to end well, Ctrl-C ends it at once and without a word."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from vitrail.cli import main as answer

    return answer()


if __name__ == "__main__":
    sys.exit(main())
