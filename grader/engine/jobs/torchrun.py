"""torchrun, but silent where a process has ended with exit code 2: then the script has said in a line what is wrong
with its flags, and torchrun's traceback would only hide it.

A script of its own, run by its path; `machine.launch_command` is what a student would type instead.
"""

import logging
import os
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

if __name__ == "__main__":
    os.environ.setdefault("PET_LOG_DIR", os.devnull)  # or each call leaves an empty folder in /tmp
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its summary says all of it again
    try:
        main()
    except ChildFailedError as failed:
        if failed.get_first_failure()[1].exitcode == 2:
            sys.exit(2)
        raise
