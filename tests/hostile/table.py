"""python tests/hostile/table.py [PART OF A NAME]…: the corpus, attack by attack: what it deserves, what it got, what stopped it."""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1])]

from grader.engine import sandbox
from hostile.corpus import ATTACKS
from hostile.trials import said, trials


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="only attacks whose name holds one of these")
    parser.add_argument("--landlock", action="store_true", help="behind Landlock instead of bubblewrap")
    parser.add_argument("--say", action="store_true", help="also what is said of it")
    args = parser.parse_args()
    chosen = [attack for attack in ATTACKS if (not args.names or any(part in attack.name for part in args.names)) and (attack.landlock or not args.landlock)]
    guards = sandbox.LANDLOCK if args.landlock else sandbox.BUBBLEWRAP
    bad = 0
    print(f"{'attack':50} {'deserved':>8} {'given':>5} {'s':>5}  guard")
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials(Path(folder) / "class", guards, chosen):
            attack = trial.attack
            print(f"{attack.name:50} {attack.marks:8} {trial.marks:5g} {trial.seconds:5.1f}  {attack.guard}", flush=True)
            if args.say:
                print(f"    {said(trial.record)}")
            for problem in trial.wrong:
                print(f"    WRONG: {problem}", flush=True)
            bad += bool(trial.wrong)
    return bad


if __name__ == "__main__":
    sys.exit(min(main(), 99))
