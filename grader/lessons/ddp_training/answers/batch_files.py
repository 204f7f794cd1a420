"""Other answers to TODOs 14 to 18 of ddp_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        15,
        "divides by the nodes",
        swap=("SLURM_GPUS_ON_NODE - 1", "SLURM_GPUS_ON_NODE / SLURM_NNODES - 1"),
        says="each of its 2 nodes has 4",
    ),
    Answer(
        16,
        "the last four digits, an octal number",
        swap=("20000 + SLURM_JOB_ID % 20000", "20000 + ${SLURM_JOB_ID: -4}"),
        says="no MASTER_PORT",
    ),
    # The batch files. Traps: GPUs asked but not visible; one python for four GPUs; a variable that expands too early,
    # so that every node is the rendezvous' host; a port that all jobs share.
    Answer(14, "two of four", "#SBATCH --gres=gpu:2", says="asks for 2 GPUs"),
    Answer(
        14,
        "below the first command, where Slurm reads no more",
        "",
        edits=(("set -eo pipefail\n", "set -eo pipefail\n#SBATCH --gres=gpu:4\n"),),
        says="is below the first command",
    ),
    Answer(
        14,
        "indented",
        "",
        edits=(("#SBATCH --time", "  #SBATCH --gres=gpu:4\n#SBATCH --time"),),
        says="begins in the first column",
    ),
    Answer(
        18,
        "a word that is no option, so sbatch refuses the file",
        "#SBATCH --nodes=2 nodes",
        says="“nodes” is not an option",
    ),
    Answer(14, "a space too many", "# SBATCH --gres=gpu:4", says="without a space"),
    Answer(14, "an option that is none", "#SBATCH --gress=gpu:4", says="--gres?"),
    Answer(14, "not exported", "GPUS=4", says="is it exported", file=".pbs"),
    Answer(15, "the GPUs counted from 1", "export CUDA_VISIBLE_DEVICES=1,2,3,4", says="see GPU 1, 2, 3, 4"),
    Answer(15, "how many, not which", "export CUDA_VISIBLE_DEVICES=4", says="see GPU 4"),
    Answer(15, "how many, not which, on Polaris", "export CUDA_VISIBLE_DEVICES=$GPUS", says="see GPU 4", file=".pbs"),
    Answer(
        16,
        "every node is its own master",
        """
        export MASTER_ADDR=localhost
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="each node itself",
    ),
    Answer(
        16,
        "a fixed port",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=7010
        """,
        says="port 7010 in every job",
    ),
    Answer(
        16,
        "a port by the last digit of the job's number",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)$NODE_SUFFIX
        export MASTER_PORT=$((29500 + SLURM_JOB_ID % 10))
        """,
        says="in every job",
    ),
    Answer(
        16,
        "not exported",
        """
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        edits=(('--master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"', ""),),
        says="told no MASTER_ADDR",
    ),
    Answer(
        16,
        "the list as Slurm abbreviates it",
        """
        export MASTER_ADDR=$SLURM_JOB_NODELIST
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="jrc[9-10]",
    ),
    Answer(
        16,
        "the job's whole name in the arithmetic",
        """
        export MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
        export MASTER_PORT=$((20000 + PBS_JOBID % 20000))
        """,
        says="told no MASTER_PORT; it says",
        file=".pbs",
    ),
    Answer(
        16,
        "the last node",
        """
        export MASTER_ADDR=$(tail -n 1 "$PBS_NODEFILE")
        export MASTER_PORT=$((20000 + ${PBS_JOBID%%.*} % 20000))
        """,
        says="not the first node",
        file=".pbs",
    ),
    Answer(
        17, "python where torchrun belongs", 'srun --cpu-bind=none python train/ddp_training.py "$@"', says="1 process"
    ),
    Answer(
        17,
        "only on the first node",
        """
        torchrun --nnodes="$SLURM_NNODES" --node-rank=0 --nproc-per-node=gpu --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"
        """,
        says="node 1 starts nothing",
    ),
    Answer(
        17,
        "the node's number in double quotes",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID --nproc-per-node=gpu \\
            --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train/ddp_training.py $*"
        """,
        says="both start rank 0",
    ),
    Answer(
        17,
        "every node is the host of the rendezvous",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \\
            --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv-conf=is_host=$(if ((SLURM_NODEID)); then echo 0; else echo 1; fi) \\
            train/ddp_training.py $*"
        """,
        says="the host of the rendezvous is node 0, 1",
    ),
    Answer(
        17,
        "a rendezvous id of its own on each node",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu --rdzv-id=$RANDOM --rdzv-backend=c10d \\
            --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train/ddp_training.py "$@"' bash "$@"
        """,
        says="rendezvous id",
    ),
    Answer(
        17,
        "each node for itself",
        """
        srun --cpu-bind=none torchrun --nproc-per-node=gpu --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"
        """,
        says="world of 4 ranks",
    ),
    Answer(
        17,
        "the number of nodes forgotten",
        """
        srun --cpu-bind=none bash -c 'torchrun --node-rank="$SLURM_NODEID" --nproc-per-node=gpu --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="how many nodes",
    ),
    Answer(
        17,
        "an option that torchrun does not know",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nprocs-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="torchrun refuses its arguments: unrecognized arguments: --nprocs-per-node",
    ),
    Answer(
        17,
        "one process on each node",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="1 process",
    ),
    Answer(
        17,
        "the path of the start folder",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" ../train/ddp_training.py "$@"' bash "$@"
        """,
        says="not train/ddp_training.py",
    ),
    Answer(
        17,
        "four torchruns on each node",
        """
        mpiexec -n "$((NODES * GPUS))" --ppn "$GPUS" --hostfile "$PBS_NODEFILE" bash -c 'torchrun --nnodes="$NODES" --node-rank="$PMI_RANK" \\
            --nproc-per-node="$GPUS" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="starts 16 processes",
        file=".pbs",
    ),
    Answer(
        17,
        "the rank expands on the first node",
        """
        mpiexec -n "$NODES" --ppn 1 --hostfile "$PBS_NODEFILE" bash -c "torchrun --nnodes=$NODES --node-rank=${PMI_RANK:-0} \\
            --nproc-per-node=$GPUS --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train/ddp_training.py $*"
        """,
        says="both start rank 0",
        file=".pbs",
    ),
    Answer(
        17,
        "the shell's name forgotten",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' "$@"
        """,
        says="not given the batch file's arguments",
    ),
    Answer(
        17,
        "the arguments forgotten",
        """
        mpiexec -n "$NODES" --ppn 1 bash -c 'torchrun --nnodes="$NODES" --node-rank="$PMI_RANK" --nproc-per-node="$GPUS" \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py'
        """,
        says="not given the batch file's arguments",
        file=".pbs",
    ),
    Answer(17, "a command that is not there", "srun tochrun train/ddp_training.py", says="tochrun"),
    Answer(
        16,
        "a command that is not there",
        """
        export MASTER_ADDR=$(scontrl show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="scontrl: command not found",
    ),
    Answer(
        16,
        "the job's number as the port",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=$SLURM_JOB_ID
        """,
        says="meet at port",
    ),
    Answer(14, "a typing error", "#SBATCH --gres=gpus:4", says="nothing is called gpu"),
    Answer(18, "the GPUs of the whole job", "#SBATCH --nodes=2\n#SBATCH --gpus=4", says="of the whole job"),
    Answer(18, "four nodes", "#SBATCH --nodes=4", says="asks for 4 nodes"),
    Answer(18, "tasks, not nodes", "#SBATCH --ntasks=2", says="asks for 1 node"),
    Answer(
        18,
        "one node with two of something else",
        "#PBS -l select=1:ncpus=2:system=polaris",
        says="asks for 1 node",
        file=".pbs",
    ),
    Answer(
        16,
        "the suffix left out",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nMASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\nexport MASTER_ADDR MASTER_PORT',
        says="its name on the slow network",
    ),
    Answer(
        16,
        "a port that may be too high",
        swap=("SLURM_JOB_ID % 20000", "SLURM_JOB_ID % 50000"),
        says="meet at port “69999”",
    ),
    Answer(
        16,
        "a port that may be too low",
        swap=("$((20000 + SLURM_JOB_ID % 20000))", "$((SLURM_JOB_ID % 65536))"),
        says="meet at port “1”",
    ),
    Answer(
        17,
        "each node its own master",
        swap=('--master-addr="$MASTER_ADDR"', '--master-addr="$(hostname)"'),
        says="the nodes do not meet in one place",
    ),
    Answer(
        17,
        "in the background",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &'),
        says="still run in the background",
    ),
    Answer(
        17,
        "on Polaris, in the background",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &'),
        says="still run in the background",
        file=".pbs",
    ),
    Answer(15, "GPUs from one on", swap=("seq -s , 0 $((SLURM_GPUS_ON_NODE - 1))", "seq -s , 1 $SLURM_GPUS_ON_NODE")),
    Answer(
        16,
        "pbs: the first by name",
        swap=('head -n 1 "$PBS_NODEFILE"', 'sort "$PBS_NODEFILE" | head -n 1'),
        file=".pbs",
        says="which is not the first node",
    ),
    Answer(
        17,
        "pbs: all look for the first by name",
        swap=('--master-addr="$MASTER_ADDR"', '--master-addr="$(sort "$PBS_NODEFILE" | head -n 1)"'),
        file=".pbs",
        says="which is not the first node",
    ),
    Answer(16, "the last node's name", swap=("head -n 1", "tail -n 1")),
    Answer(18, "one node or two", "#SBATCH --nodes=1-2"),
    Answer(16, "a port by the number of nodes", swap=("SLURM_JOB_ID % 20000", "SLURM_NNODES"), says="in two jobs"),
    Answer(
        17,
        "an unquoted $@ inside",
        swap=('train/ddp_training.py "$@"\'', "train/ddp_training.py $@'"),
        says="one has blanks in it",
    ),
    Answer(17, "an unquoted $@ outside", swap=('\' bash "$@"', "' bash $@"), says="one has blanks in it"),
    Answer(
        17,
        "$* in quotes",
        swap=('train/ddp_training.py "$@"\'', 'train/ddp_training.py "$*"\''),
        says="one has blanks in it",
    ),
    Answer(
        18,
        "Slurm's directive",
        swap=("#PBS -l select=2:system=polaris", "#SBATCH --nodes=2"),
        says="PBS does not read it",
        file=".pbs",
    ),
    Answer(18, "two chunks that may be on one node", swap=("select=2", "nodes=2"), says="it is select=", file=".pbs"),
    Answer(14, "a GPU without a number", "#SBATCH --gres=gpu", says="asks for 1 GPU per node"),
    Answer(
        14,
        "a line with a carriage return",
        edits=(("#SBATCH --gres=gpu:4\n", "#SBATCH --gres=gpu:4\r\n"),),
        says="end as on Windows",
    ),
    Answer(
        17,
        "the port behind the script",
        swap=(
            (' --master-port="$MASTER_PORT"', ""),
            ("train/ddp_training.py", 'train/ddp_training.py --master-port="$MASTER_PORT"'),
        ),
        says="--master-port stands after the script",
    ),
    Answer(17, "torchrun's own port", swap=(' --master-port="$MASTER_PORT"', ""), says="at port 29500 in every job"),
]


RIGHT = [
    Answer(14, "by another option", "#SBATCH --gpus-per-node=4"),
    Answer(
        14,
        "below an indented comment, at which Slurm reads on",
        [None],
        edits=(("#SBATCH --job-name", "  # a name\n#SBATCH --job-name"),),
    ),
    Answer(14, "with the kind of GPU", "#SBATCH --gres=gpu:A100:4"),
    Answer(14, "on Polaris", "GPUS=4\nexport GPUS", file=".pbs"),
    Answer(15, "the list written out", "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
    Answer(15, "with spaces", 'export CUDA_VISIBLE_DEVICES="0, 1, 2, 3"'),
    Answer(15, "left to Slurm, which sets it", ":"),
    Answer(15, "hidden from nobody", "unset CUDA_VISIBLE_DEVICES", file=".pbs"),
    Answer(
        16,
        "by its address, as the name server has it",
        """
        MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
        MASTER_ADDR="${MASTER_ADDR}i"
        export MASTER_ADDR="$(nslookup "$MASTER_ADDR" | grep -oP '(?<=Address: ).*')"
        export MASTER_PORT=$((10000 + 10#${SLURM_JOB_ID: -4}))
        """,
    ),
    Answer(
        16,
        "this script runs on the first node",
        """
        export MASTER_ADDR=$(hostname)$NODE_SUFFIX
        export MASTER_PORT=$((20000 + RANDOM % 20000))
        """,
    ),
    Answer(
        17,
        "a rendezvous of torchrun's own",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --rdzv_backend c10d --nproc_per_node=gpu --rdzv_id $RANDOM \\
            --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv_conf=is_host=\\$(if ((SLURM_NODEID)); then echo 0; else echo 1; fi) \\
            train/ddp_training.py $(printf '%q ' "$@")"
        """,
    ),
    Answer(
        17,
        "c10d, without a word on the host",
        """
        srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \\
            --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" train/ddp_training.py "$@"
        """,
    ),
    Answer(
        17,
        "no torchrun: Slurm starts every process, SLURM_PROCID is the rank",
        """
        srun --ntasks-per-node="$SLURM_GPUS_ON_NODE" --cpus-per-task=32 python train/ddp_training.py "$@"
        """,
    ),
    Answer(
        17,
        "no torchrun: PMI_RANK is the rank",
        """
        mpiexec -n "$((NODES * GPUS))" --ppn "$GPUS" --depth=8 --cpu-bind depth --hostfile "$PBS_NODEFILE" python train/ddp_training.py "$@"
        """,
        file=".pbs",
    ),
    Answer(
        17,
        "torchrun as a module",
        """
        mpiexec -n "$NODES" --ppn 1 bash -c 'python -m torch.distributed.run --nnodes="$NODES" --node-rank="$PMI_RANK" \\
            --nproc-per-node="$GPUS" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        file=".pbs",
    ),
    Answer(
        17,
        "a loop over the nodes",
        """
        node=0
        for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
            srun --nodes=1 --ntasks=1 -w "$name" torchrun --nnodes="$SLURM_NNODES" --node-rank=$node --nproc-per-node=gpu \\
                --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@" &
            node=$((node + 1))
        done
        wait
        """,
    ),
    Answer(
        16,
        "a port by Python",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)$NODE_SUFFIX
        export MASTER_PORT=$(python -c "import os; print(20000 + int(os.environ['SLURM_JOB_ID']) % 20000)")
        """,
    ),
    Answer(18, "by the short option", "#SBATCH -N 2"),
    Answer(18, "on Polaris, with more said of a node", "#PBS -l select=2:ncpus=64:ngpus=4:system=polaris", file=".pbs"),
    Answer(
        16,
        "SLURMD_NODENAME of the first node, and a port of Slurm's own",
        "export MASTER_ADDR=$SLURMD_NODENAME$NODE_SUFFIX\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID % 40000))",
    ),
    Answer(
        17,
        "an exported function",
        'launch() {\n    exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node="$SLURM_GPUS_ON_NODE" \\\n        --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"\n}\nexport -f launch\nsrun --cpu-bind=none bash -c \'launch "$@"\' bash "$@"',
    ),
    Answer(
        17,
        "in the background, and waited for",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &\nwait'),
    ),
    Answer(14, "the newer option", "#SBATCH --gpus-per-node=4"),
    Answer(17, "Slurm's number of the process, of which each node has one", swap=("SLURM_NODEID", "SLURM_PROCID")),
    Answer(
        15,
        "the numbers that Slurm gives the step, or else the job",
        "export CUDA_VISIBLE_DEVICES=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}",
    ),
]
