"""Other answers to TODOs 10 and 11 of resilient_training."""

from grader.kit import Answer

WRONG = [
    # 10: trap 56
    Answer(10, "USR1 to all, torchrun too", swap=('trap "" USR1; ', ""), says="the signal ends torchrun"),
    Answer(
        10,
        "torchrun is safe, and nobody asks for a signal",
        ["#SBATCH --signal=0@0", None],
        says="no signal has reached the training",
    ),
    Answer(
        10,
        "to the shell alone, which dies of it",
        swap=("--signal=USR1@120", "--signal=B:USR1@120"),
        says="goes to the shell",
    ),
    Answer(
        10,
        "the batch shell ignores it, of which srun's tasks are no children",
        swap=(('trap "" USR1; ', ""), ("srun --cpu", 'trap "" USR1\nsrun --cpu')),
        says="the signal ends torchrun",
    ),
    Answer(10, "too late", swap=("USR1@120", "USR1@5"), says="5 seconds before the limit"),
    Answer(10, "half an hour is lost", swap=("USR1@120", "USR1@3000"), says="3000 seconds before the limit"),
    Answer(
        10, "TERM, and its exit code is a failure", ["#SBATCH --signal=TERM@120", None], says="ends as if it had failed"
    ),
    Answer(
        10,
        "another signal",
        swap=(("USR1@120", "USR2@120"), ('trap "" USR1', 'trap "" USR2')),
        says="no signal has reached the training",
    ),
    Answer(
        10,
        "PBS: torchrun's exit code counts",
        swap=(" || [ $? -eq 124 ]", ""),
        says="ends as if it had failed",
        file=".pbs",
    ),
    Answer(
        10,
        "PBS: to mpiexec",
        swap=((" timeout -s TERM 3400", ""), ("mpiexec -n", "timeout -s TERM 3400 mpiexec -n")),
        says="sends the signal to mpiexec",
        file=".pbs",
    ),
    Answer(10, "PBS: USR1 to torchrun", swap=("-s TERM", "-s USR1"), says="the signal ends torchrun", file=".pbs"),
    Answer(10, "PBS: after the limit", swap=("3400", "3600"), says="0 seconds before the limit", file=".pbs"),
    Answer(10, "PBS: killed at once", swap=("-s TERM", "-s KILL"), says="the signal ends torchrun", file=".pbs"),
    Answer(
        10,
        "PBS: any failure is none",
        swap=(" || [ $? -eq 124 ]", " || [ $? -eq 2 ]"),
        says="ends as if it had failed",
        file=".pbs",
    ),
    # 11
    Answer(
        11,
        "again and again, done or not",
        'scontrol requeue "$SLURM_JOB_ID"',
        says="after a job that is done another follows",
    ),
    Answer(
        11,
        "only when it is done",
        '[ ! -f "$RUN/model-final.pt" ] || scontrol requeue "$SLURM_JOB_ID"',
        says="none follows",
    ),
    Answer(
        11,
        "a job that is done ends as if it had failed",
        '[ ! -e "$RUN/model-final.pt" ] && scontrol requeue "$SLURM_JOB_ID"',
        says="ends as if it had failed",
    ),
    Answer(11, "by its name", swap=('"$SLURM_JOB_ID"', '"$SLURM_JOB_NAME"'), says="none follows"),
    Answer(11, "the best model is always there", swap=("model-final.pt", "model-best.pt"), says="none follows"),
    Answer(
        11,
        "in another folder",
        swap=("$RUN/model-final.pt", "model-final.pt"),
        says="after a job that is done another follows",
    ),
    Answer(
        10,
        "the shell goes on after an error",
        edits=(("set -eo pipefail", "set -o pipefail"),),
        says="fails with its own error",
    ),
    Answer(11, "PBS: the next one stays", [None, ":"], says="after a job that is done another follows", file=".pbs"),
    Answer(11, "PBS: whatever happens", swap=("afterok", "afterany"), says="fails with its own error", file=".pbs"),
    Answer(11, "PBS: only after an error", swap=("afterok", "afternotok"), says="none follows", file=".pbs"),
    Answer(11, "PBS: the next one begins anew", swap=("-v ARGS,RUN", "-v ARGS"), says="is not told RUN", file=".pbs"),
    Answer(
        11, "PBS: the next one has no arguments", swap=("-v ARGS,RUN", "-v RUN"), says="is not told ARGS", file=".pbs"
    ),
    Answer(
        11,
        "PBS: this job is deleted",
        swap=('qdel "$NEXT"', 'qdel "$PBS_JOBID"'),
        says="after a job that is done another follows",
        file=".pbs",
    ),
    Answer(
        10,
        "unquoted arguments",
        swap=('train/resilient_training.py "$@"\'', "train/resilient_training.py $@'"),
        says="one has blanks in it",
    ),
    Answer(
        10,
        "PBS: any exit code is allowed",
        swap=(" || [ $? -eq 124 ]", " || true"),
        says="fails with its own error",
        file=".pbs",
    ),
    Answer(
        10,
        "whatever happens, the job is a success",
        swap=('train/resilient_training.py "$@"\' bash "$@"', 'train/resilient_training.py "$@"\' bash "$@" || true'),
        says="fails with its own error",
    ),
    Answer(10, "PBS: as Ctrl-C", swap=("-s TERM", "-s INT"), says="gets SIGINT, to which", file=".pbs"),
    Answer(10, "INT before the limit", ["#SBATCH --signal=INT@120", None], says="gets SIGINT, to which"),
    Answer(
        10,
        "PBS: killed five seconds after the signal",
        swap=("timeout -s TERM 3400", "timeout --kill-after=5 3400"),
        says="5 s after its signal",
        file=".pbs",
    ),
    Answer(
        11,
        "any model ends it",
        swap=('[ -f "$RUN/model-final.pt" ]', 'ls "$RUN"/model-*.pt >/dev/null'),
        says="none follows",
    ),
    Answer(
        11,
        "in the folder of submission",
        swap=('[ -f "$RUN/model-final.pt" ]', '[ -f "$SLURM_SUBMIT_DIR/$RUN/model-final.pt" ]'),
        says="after a job that is done another follows",
    ),
]


RIGHT = [
    Answer(
        10,
        "passed on by torchrun",
        [
            None,
            """
    srun --cpu-bind=none bash -c 'exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \\
        --signals-to-handle=SIGTERM,SIGINT,SIGUSR1 \\
        --nproc-per-node="$SLURM_GPUS_ON_NODE" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\
        train/resilient_training.py "$@"' bash "$@" || [ $? -eq 138 ]
    """,
        ],
    ),
    Answer(
        10,
        "TERM, which torchrun passes on",
        [
            "#SBATCH --signal=SIGTERM@300",
            """
    srun --cpu-bind=none bash -c 'exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" \\
        --nproc-per-node="$SLURM_GPUS_ON_NODE" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \\
        train/resilient_training.py "$@"' bash "$@" || [ $? -eq 143 ]
    """,
        ],
    ),
    Answer(10, "PBS: killed where it does not end", swap=("timeout -s", "timeout -k 100s -s"), file=".pbs"),
    Answer(10, "PBS: minutes", swap=("timeout -s TERM 3400", "timeout --signal=TERM 55m"), file=".pbs"),
    Answer(
        10,
        "PBS: the other way to write it",
        swap=(("timeout -s TERM 3400", "timeout 3300"), (" || [ $? -eq 124 ]", " || { [ $? = 124 ] || exit 1; }")),
        file=".pbs",
    ),
    Answer(
        11,
        "with if",
        """
    if [ ! -e "$RUN/model-final.pt" ]; then
        scontrol requeue $SLURM_JOBID
    fi
    """,
    ),
    Answer(
        11,
        "PBS: submitted at the end",
        [":", '[ -f "$RUN/model-final.pt" ] || qsub -V sbatch/resilient_training.pbs'],
        file=".pbs",
    ),
    Answer(11, "PBS: all variables", swap=("-v ARGS,RUN", "-V"), file=".pbs"),
]
