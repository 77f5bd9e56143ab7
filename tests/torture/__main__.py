"""`python -m tests.torture --minutes 20 --seed 0`: try every promise at random, and say how often and what broke."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # where pytest finds what tests share

from torture import Area, find_areas, torture


def main() -> int:
    """Torture for some minutes, or repeat one attempt; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0, help="other attempts for each number")
    parser.add_argument("--area", help="one area alone")
    parser.add_argument("--attempt", type=int, help="this attempt of the area alone, to look at what broke")
    arguments = parser.parse_args()
    areas = find_areas()
    if arguments.area is not None:
        names = [area.name for area in areas]
        areas = [area for area in areas if area.name == arguments.area]
        if not areas:
            parser.error(f"no area {arguments.area!r}: there are {', '.join(names)}")
    if arguments.attempt is not None:
        if len(areas) > 1:
            parser.error("--attempt needs --area")
        areas[0].try_once(seed=arguments.seed, number=arguments.attempt)
        _tell_last(areas[0])
    else:
        for area in torture(areas, seconds=60 * arguments.minutes, seed=arguments.seed):
            _tell_last(area)
    print(f"{'area':16} {'tried':>8} {'failed':>8} {'seconds':>8}")
    for area in areas:
        print(f"{area.name:16} {area.num_tried:8,} {len(area.failures):8,} {area.seconds:8.0f}")
    return int(any(area.failures for area in areas))


_told: dict[str, int] = {}


def _tell_last(area: Area) -> None:
    """Print what broke in the last attempt, if anything did."""
    for failure in area.failures[_told.get(area.name, 0) :]:
        print(failure, flush=True)
    _told[area.name] = len(area.failures)


if __name__ == "__main__":
    raise SystemExit(main())
