"""What the header of a batch file requests: Slurm's and PBS's directives."""

import difflib
import re
import shlex

GPUS = 4  # on a node of JURECA-DC and of Polaris

# sbatch's options (its man page, 22.05 to 24.05) with a value, short names first; then those without one, or with
# one that may be left out and so stands behind "=".
SHORT = dict(
    a="array", A="account", B="extra-node-info", b="begin", c="cpus-per-task", C="constraint", d="dependency",
    D="chdir", e="error", F="nodefile", G="gpus", i="input", J="job-name", L="licenses", m="distribution",
    M="clusters", n="ntasks", N="nodes", o="output", p="partition", q="qos", S="core-spec", t="time", w="nodelist",
    x="exclude",
)  # fmt: skip
VALUED = set(SHORT.values()) | set(
    """
    bb bbf cluster-constraint comment container cores-per-socket cpu-freq cpus-per-gpu deadline delay-boot export
    export-file gid gpu-bind gpu-freq gpus-per-node gpus-per-socket gpus-per-task gres gres-flags hint mail-type
    mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket open-mode power prefer priority profile reservation signal sockets-per-node
    switches thread-spec threads-per-core time-min tmp tres-per-task uid wckey wrap
    """.split()
)
SHORT_ALONE = dict(H="hold", k="no-kill", O="overcommit", Q="quiet", s="oversubscribe", v="verbose", W="wait")
ALONE = set(SHORT_ALONE.values()) | set(
    """
    contiguous exclusive get-user-env ignore-pbs nice no-requeue parsable propagate reboot requeue spread-job
    test-only use-min-nodes
    """.split()
)
KNOWN = VALUED | ALONE
PBS = re.compile(r"^#PBS ", re.MULTILINE)


def header(text: str) -> dict[str, str]:
    """The directives of a batch file: long names -> values; PBS's resources by their own names. Nothing from a file
    that sbatch refuses: `slip` says why. Each scheduler reads only its own directives; a file with a #PBS directive
    is PBS's.
    """
    if PBS.search(text):
        return of_pbs(text)
    try:
        return of_slurm(text)
    except ValueError:
        return {}


def of_pbs(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in head(text):
        if line.startswith("#PBS -l"):
            for part in line.removeprefix("#PBS -l").strip().split(","):
                name, _, value = part.partition("=")
                found[name] = value
    return found


def head(text: str) -> list[str]:
    """The lines in which directives count: up to the first command. An indented comment ends nothing."""
    lines = text.splitlines()
    command = (number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    return lines[: next(command, len(lines))]


def of_slurm(text: str) -> dict[str, str]:
    """Slurm's directives; a later one counts. Raises ValueError, in words, where sbatch refuses the file."""
    if not text.startswith("#!"):
        raise ValueError("sbatch takes a file only if its first line begins with #!, as in #!/bin/bash")
    found: dict[str, str] = {}
    for line in head(text):
        if line.startswith("#SBATCH"):  # in the first column
            try:
                words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
            except ValueError:
                raise ValueError(f"in “{line}” a quotation mark is not closed") from None
            while words:
                name, value = option(words, line)
                found[name] = value
    return found


def option(words: list[str], line: str) -> tuple[str, str]:
    """Take the next option, and its value, from the words of a directive."""
    word = words.pop(0)
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        matching = [known for known in KNOWN if known.startswith(name)]
        name = matching[0] if name not in KNOWN and len(matching) == 1 else name  # abbreviated
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            raise ValueError(f"Slurm has no option --{name}" + (f"; --{close[0]}?" if close else ""))
    elif word[1:2] in SHORT_ALONE and word.startswith("-"):
        if rest := word[2:]:
            words.insert(0, f"-{rest}")
        return SHORT_ALONE[word[1]], ""
    elif word[1:2] in SHORT and word.startswith("-"):
        name, equals, value = SHORT[word[1]], word[2:], word[2:]
        if value.startswith("="):
            raise ValueError(f"in “{line}” a short option has its value without “=”: -{word[1]} {value[1:]}")
    else:
        raise ValueError(f"in “{line}” “{word}” is not an option: sbatch refuses the file")
    if name in VALUED and not equals and words:
        value = words.pop(0)
    return name, value


def slip(text: str) -> str:
    """Why a directive of a batch file may not be read as intended; "" if all look right."""
    above = len(head(text))
    for number, line in enumerate(text.splitlines()):
        if number >= above and line.startswith(("#SBATCH", "#PBS")):
            return f"“{line}” is below the first command, where directives are no longer read"
        if number < above and re.match(r"#\s+(SBATCH|PBS)\b|#(sbatch|pbs|Sbatch|SBACTH)\b", line):
            return f"“{line}” is a comment; a directive begins with #SBATCH or #PBS, without a space"
        if number < above and re.match(r"\s+#(SBATCH|PBS)\b", line):
            return f"“{line}” is a comment: a directive begins in the first column"
    if PBS.search(text):
        if other := re.search(r"^#SBATCH.*", text, re.MULTILINE):
            return f"“{other.group()}” is Slurm's, and PBS does not read it"
        return "PBS refuses -l nodes=… beside -l place=…; it is select=…" if "nodes" in header(text) else ""
    try:
        options = of_slurm(text)
    except ValueError as refused:
        return str(refused)
    if options.get("gres", "gpu").partition(":")[0] != "gpu":
        return f"in --gres={options['gres']} nothing is called gpu"
    return ""


def nodes_asked(text: str) -> int:
    """The number of nodes that the header requests; by default 1. With select=1:…+1:… PBS grants two."""
    options = header(text)
    if PBS.search(text):
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
