"""WikiText-2: fetched where there is a network, read where there is none.

`datasets` downloads it once and keeps it in its cache, as Arrow files. Reading
them takes pyarrow alone: no import of `datasets`, which takes seconds, and no
question to the hub, which on a compute node waits for an answer that never comes.
"""

import os
import ssl
import threading
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

REPOSITORY, CONFIG = "Salesforce/wikitext", "wikitext-2-v1"
SPLITS = ("train", "validation", "test")
NO_NETWORK = "--data builtin, --data random and --data DIR need no network"


class DataError(Exception):
    """A corpus that cannot be used. The message is one line that says what to do next."""


def wikitext2_is_cached() -> bool:
    """Whether `load_corpus("wikitext-2")` needs no network. Looks at file names only."""
    return _cached_folder() is not None


def download_wikitext2() -> None:
    """Fetch WikiText-2 into the cache of `datasets` (13 MB); a proxy in the environment is used.

    The hub is asked twice before: without a network `datasets` would try for half a minute.

    Raises:
        DataError: the hub cannot be reached, or the cache cannot be written.
    """
    if _is_offline() or not any(_hub_answers(seconds) for seconds in (2.0, 5.0)):
        asked = "HF_HUB_OFFLINE or HF_DATASETS_OFFLINE is set" if _is_offline() else f"{_hub()} does not answer"
        raise DataError(
            f"WikiText-2 could not be downloaded: {asked}; run `./workbook data` where the network reaches it "
            f"(a login node, or with https_proxy set); {NO_NETWORK}"
        )
    try:
        from datasets import load_dataset

        load_dataset(REPOSITORY, CONFIG)
    except Exception as problem:  # no network, a proxy's refusal, a full disk: each has its own class
        reason = (str(problem).strip().splitlines() or [""])[0]
        raise DataError(
            f"WikiText-2 could not be downloaded ({type(problem).__name__}: {reason}); run `./workbook data` "
            f"where huggingface.co can be reached (a login node, or with https_proxy set); {NO_NETWORK}"
        ) from problem


def wikitext2_rows() -> dict[str, list[str]]:
    """The rows of each split, one line of text each.

    Raises:
        DataError: not in the cache, and the hub does not answer within two seconds.
    """
    folder = _cached_folder()
    if folder is None:
        if _is_offline() or not _hub_answers(seconds=2.0):
            raise DataError(
                "WikiText-2 is not in the cache and there is no network: "
                f"run `./workbook data` once on a login node; {NO_NETWORK}"
            )
        download_wikitext2()
        folder = _cached_folder()
        if folder is None:
            raise DataError(f"WikiText-2 was downloaded but is not in {_cache()}; {NO_NETWORK}")
    return {split: _read_arrow(folder, split) for split in SPLITS}


def _cache() -> Path:
    """Where `datasets` keeps what it has prepared, by the same variables that it reads."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or os.path.join(base, "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE") or os.path.join(home, "datasets")).expanduser()


def _cached_folder() -> Path | None:
    # <cache>/Salesforce___wikitext/wikitext-2-v1/<version>/<hash>/wikitext-train.arrow
    for folder in sorted(_cache().glob(f"*wikitext/{CONFIG}/*/*")):
        if folder.suffix == ".incomplete":  # a download under way, or one that was cut off
            continue
        if all(any(folder.glob(f"*-{split}*.arrow")) for split in SPLITS):
            return folder
    return None


def _read_arrow(folder: Path, split: str) -> list[str]:
    import pyarrow

    rows: list[str] = []
    try:
        for path in sorted(folder.glob(f"*-{split}*.arrow")):
            with pyarrow.memory_map(str(path)) as source:
                rows += pyarrow.ipc.open_stream(source).read_all()["text"].to_pylist()
    except (OSError, KeyError, pyarrow.ArrowException) as problem:
        raise DataError(
            f"the cached WikiText-2 cannot be read: delete {folder} and run `./workbook data`; {NO_NETWORK}"
        ) from problem
    return rows


def _hub() -> str:
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def _is_offline() -> bool:
    names = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in names)


def _hub_answers(seconds: float) -> bool:
    """Ask the hub for one header, through the environment's proxy if there is one."""
    answered = threading.Event()

    def ask() -> None:
        try:
            urlopen(Request(f"{_hub()}/datasets/{REPOSITORY}", method="HEAD"), timeout=seconds).close()
            answered.set()
        except HTTPError:  # still an answer: `datasets` says what is wrong
            answered.set()
        except URLError as problem:
            # Python may lack the certificates that `datasets` brings along: still an answer.
            if isinstance(problem.reason, ssl.SSLCertVerificationError):
                answered.set()
        except (OSError, ValueError, HTTPException):
            pass

    # A name look-up obeys no timeout, so it gets a thread that may be left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
