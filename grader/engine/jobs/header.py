"""What the header of a batch file requests: Slurm's and PBS's directives."""

import difflib
import re
import shlex

GPUS = 4  # on a node of JURECA-DC and of Polaris

SHORT = {
    "N": "nodes",
    "n": "ntasks",
    "G": "gpus",
    "t": "time",
    "p": "partition",
    "A": "account",
    "J": "job-name",
    "o": "output",
    "c": "cpus-per-task",
}


def header(text: str) -> dict[str, str]:
    """The directives of a batch file: long names -> values; PBS's resources by their own names. Each scheduler reads
    only its own directives; a file with a #PBS directive is PBS's.
    """
    found: dict[str, str] = {}
    pbs = re.search(r"^#PBS ", text, re.MULTILINE)
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            break  # Slurm reads no further
        if line.startswith("#SBATCH") and not pbs:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            for word, after in zip(words, [*words[1:], ""]):
                if word.startswith("--"):
                    name, _, value = word[2:].partition("=")
                    found[name] = value or after
                elif word.startswith("-") and word[1:2] in SHORT:
                    found[SHORT[word[1]]] = word[2:].removeprefix("=") or after
        elif line.startswith("#PBS -l"):
            for part in line.removeprefix("#PBS -l").strip().split(","):
                name, _, value = part.partition("=")
                found[name] = value
    return found


# Long options of sbatch (its man page, 24.05) that a course's job may use.
KNOWN = set(SHORT.values()) | set(
    """
    array begin chdir comment constraint contiguous core-spec cpu-freq cpus-per-gpu dependency distribution error
    exclude exclusive export get-user-env gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task gres gres-
    flags hint hold input licenses mail-type mail-user mem mem-bind mem-per-cpu mem-per-gpu mincpus network nice
    nodelist no-requeue ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode overcommit
    oversubscribe parsable power priority profile qos quiet reboot requeue reservation signal sockets-per-node
    spread-job switches thread-spec threads-per-core time-min tmp tres-per-task uid verbose wait wckey
    """.split()
)


def slip(text: str) -> str:
    """Why a directive of a batch file may not be read as intended; "" if all look right."""
    over = False
    for line in text.splitlines():
        over = over or bool(line.strip() and not line.startswith("#"))
        if over and line.startswith(("#SBATCH", "#PBS")):
            return f"“{line}” is below the first command, where directives are no longer read"
        if not over and re.match(r"#\s+(SBATCH|PBS)\b|#(sbatch|pbs|Sbatch|SBACTH)\b", line):
            return f"“{line}” is a comment; a directive begins with #SBATCH or #PBS, without a space"
    options = header(text)
    if re.search(r"^#PBS ", text, re.MULTILINE):
        if other := re.search(r"^#SBATCH.*", text, re.MULTILINE):
            return f"“{other.group()}” is Slurm's, and PBS does not read it"
        return "PBS refuses -l nodes=… beside -l place=…; it is select=…" if "nodes" in options else ""
    unknown = next((name for name in options if name not in KNOWN), "")
    close = difflib.get_close_matches(unknown, KNOWN, n=1)
    if not unknown and options.get("gres", "gpu").partition(":")[0] != "gpu":
        return f"in --gres={options['gres']} nothing is called gpu"
    return f"Slurm has no option --{unknown}" + (f"; --{close[0]}?" if close else "") if unknown else ""


def nodes_asked(text: str) -> int:
    """The number of nodes that the header requests; by default 1. With select=1:…+1:… PBS grants two."""
    options = header(text)
    if re.search(r"^#PBS ", text, re.MULTILINE):
        chunks = [re.match(r"\d+", chunk) for chunk in options.get("select", "1").split("+")]
        return sum(int(chunk.group()) if chunk else 1 for chunk in chunks)
    number = re.match(r"\d+", options.get("nodes", "1"))
    return int(number.group()) if number else 1


def gpus_asked(text: str) -> int:
    """The GPUs per node that a Slurm header requests."""
    options = header(text)
    if "gpus" in options and options["gpus"].rpartition(":")[2].isdecimal():
        return int(options["gpus"].rpartition(":")[2]) // nodes_asked(text)
    for name in ("gres", "gpus-per-node", "gpus-per-task"):
        pattern = r"gpu(?::[^,:]+)?:(\d+)" if name == "gres" else r"(?:[^,:]+:)?(\d+)"
        asked = options.get(name, "").split(",")[0]
        found = re.fullmatch(pattern, "gpu:1" if asked == "gpu" else asked)
        if found:
            return int(found.group(1)) * (int(options.get("ntasks-per-node", 1)) if name == "gpus-per-task" else 1)
    return 0


def number_or_zero(text: str) -> int:
    """A positive number, or 0 for anything else, such as an option whose variable was empty."""
    return int(text) if text.strip().isdecimal() and len(text.strip()) < 6 else 0
