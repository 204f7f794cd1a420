"""Checks of resilient_training, TODOs 10 and 11: batch files.

| TODO | achievement                      | evidence                                                                    | needs |
|------|----------------------------------|-----------------------------------------------------------------------------|-------|
| 10   | told before the limit            | the batch file, run to the limit: which signals reach the training and torchrun, and when |       |
| 11   | the job is resubmitted           | the batch file, done, failed, and at the limit: whether another job follows | 10    |
"""  # noqa: E501

import math
import re

from grader.kit import check_launches, expect, batch_header, hinted, todo

from .ranks import ends_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: the batch file


BATCH_FILE = "a batch file is a process of its own, which keeps nothing"


JOB, NEXT = "12320769", "12320999"  # the job's number, and the number of a job that it submits


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def ended(student, unit):
    return student.call(ends_on_rank, world=1, group=False, text=unit.text, kind=unit.name.rpartition(".")[2]).evidence[
        0
    ]


def last_words(seen):
    return next((f": {line.strip()}" for line in reversed(seen["said"].splitlines()) if line.strip()), "")


@todo(10, once=BATCH_FILE)
def test_todo10_told(student):
    for unit in student.batch_files(10):
        ways = ended(student, unit)
        seen = ways["limit"]
        check_told(unit, seen)
        notice, least = notice_of(unit, seen)
        expect(
            least <= notice <= 1800,
            f"{unit.name}: the training is told {notice:g} seconds before the limit",
            f"{least} to 1800 seconds",
            f"{notice:g} seconds",
            hint=(
                "From the signal to the limit there must be time to finish a step and to save. How many seconds are"
                " left?"
            ),
        )
        expect(
            seen["code"] == 0,
            f"{unit.name}: the training has saved and ended normally, but the batch file ends as if it had"
            f" failed{last_words(seen)}",
            "exit code 0",
            f"exit code {seen['code']}",
            hint=(
                "After a stop that was asked for, one command has an exit code that is not 0. Which one, and what is"
                " it?"
            ),
        )
        expect(
            ways["fails"]["code"] != 0,
            f"{unit.name}: the training fails with its own error, and the batch file ends as if it had not",
            "an exit code that is not 0",
            "exit code 0",
            hint=(
                "Which exit codes does your line turn into success? At most one of them says that the run was asked to"
                " stop."
            ),
        )
        kill = min((seconds for seconds in map(seconds_of, seen["kills"]) if seconds), default=math.inf)
        expect(
            kill >= least,
            f"{unit.name}: {kill:g} s after its signal, timeout kills torchrun, and so the processes"
            " that are about to save",
            f"{least} s or more, or no -k",
            f"{kill:g} s",
            hint="What does -k of timeout do, and after how many seconds? A step must end until then, and a save.",
        )
        with hinted("The signals are right now. Which words of the command that starts the training have changed?"):
            check_launches(student, unit)


def check_told(unit, seen):
    """A signal reaches the training's processes, and does not end them."""
    expect(
        not seen["killed"] or seen["told"] or seen["code"] != -9,
        f"{unit.name}: the job reaches its time limit, and no signal has reached the training",
        "USR1 or TERM, a minute or more before the limit",
        "no signal",
    )
    expect(
        seen["code"] in (0, -9) or seen["code"] > 0,
        f"{unit.name}: the signal goes to the shell that reads this file, to no other process, and ends it",
        "a signal that reaches the processes that srun starts",
        "the shell ends, and the job with it",
        hint="A directive can ask for a signal to the shell, or to what srun has started. Which does yours?",
    )
    expect(
        not {"mpiexec", "mpirun"} & set(seen["ends"]),
        f"{unit.name}: timeout sends the signal to mpiexec, not to the torchrun that mpiexec starts on each node",
        "timeout in front of torchrun",
        "timeout in front of mpiexec",
        hint="What does each node run? timeout sends the signal to the command that follows it.",
    )
    expect(
        not seen["killed"],
        f"{unit.name}: the signal ends torchrun{last_words(seen)}; its processes end with it",
        "torchrun continues until its processes have saved",
        "torchrun is killed",
    )
    expect(
        not seen["stopped"] or seen["told"],
        f"{unit.name}: the training gets {seen['stopped']}, to which the script does not listen: it ends at once,"
        " without a checkpoint",
        "USR1 or TERM",
        seen["stopped"],
        hint="torchrun passes on the signal that it gets. To which of those that it passes on does the script listen?",
    )
    expect(
        seen["told"],
        f"{unit.name}: no signal reaches the training's processes before the limit{last_words(seen)}",
        "USR1 or TERM",
        "no signal",
    )


def notice_of(unit, seen):
    """Seconds from the signal to the limit, and the least allowed."""
    if unit.name.endswith(".sbatch"):
        seconds = batch_header.header(unit.text).get("signal", "").rpartition("@")[2]
        return (int(seconds) if seconds.isdecimal() else 60), 60
    hours, minutes, seconds = (int(part) for part in batch_header.header(unit.text)["walltime"].split(":"))
    return 3600 * hours + 60 * minutes + seconds - max(map(seconds_of, seen["after"]), default=0), 60


def seconds_of(duration):
    """As `timeout` and `sleep` read it: 3400, 55m, 0.5h; 0 if it is not a duration."""
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([smhd]?)", duration)
    return float(found[1]) * UNITS[found[2] or "s"] if found else 0


@todo(11, once=BATCH_FILE, needs=(10,))
def test_todo11_again(student):
    for unit in student.batch_files(11):
        seen = ended(student, unit)
        for how, told in (
            ("limit", "stopped at its limit, before the training is done"),
            ("done", "that is done"),
            ("fails", "that fails with its own error"),
        ):
            again, asked = follows(seen[how]), "; ".join(seen[how]["asked"])
            expect(
                again == (how == "limit"),
                f"after a job {told} "
                + ("another follows" if again else f"none follows{last_words(seen[how])}")
                + f", by {unit.name}",
                "another job" if how == "limit" else "no further job",
                asked or "no request to the scheduler",
            )
        expect(
            seen["done"]["code"] == 0,
            f"{unit.name}: the training is done, and the batch file ends as if it had failed{last_words(seen['done'])}",
            "exit code 0",
            f"exit code {seen['done']['code']}",
            hint="A batch file's exit code is its last command's; `[ … ] && command` has 1 if the answer is no.",
        )
        for call in seen["limit"]["asked"]:
            check_handed_on(unit, call)


def follows(seen):
    """Whether another job runs after this one, judging by the calls to the scheduler, in order."""
    again = False
    for call in seen["asked"]:
        words = call.split()
        if words[0] == "scontrol":
            again = again or (words[1] == "requeue" and words[-1] == JOB)
        elif words[0] == "qdel":
            again = again and words[-1].split(".")[0] != NEXT
        elif words[0] == "qsub":
            found = re.search(r"depend=(\w+):(\d+)", call)
            kind = found[1] if found and found[2] == JOB else ("never" if found else "afterany")
            again = {"afterok": seen["code"] == 0, "afternotok": seen["code"] != 0, "afterany": True}.get(kind, False)
    return again


def check_handed_on(unit, call):
    if not call.startswith("qsub"):
        return
    handed = re.search(r"-v ?(\S+)", call)
    names = [part.partition("=")[0] for part in handed[1].split(",")] if handed else []
    for name, what in (
        ("RUN", "writes into a different folder, and starts from scratch"),
        ("ARGS", "has different arguments"),
    ):
        expect(
            name in names or " -V" in call,
            f"with {unit.name} the next job is not told {name}: it {what}",
            "-v ARGS,RUN",
            call,
            hint="The next job starts with none of this job's variables. Which ones does it need to continue this run?",
        )
