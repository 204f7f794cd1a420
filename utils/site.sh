# What differs from machine to machine. Every batch file sources this in the course's folder, before
# it starts anything; change it for yours. Centres change their settings: where a job does not do what
# it should, look at the pages named here first, and run sbatch/preflight.sbatch or .pbs.
#
# A new machine needs no case below, only these, in your ~/.bashrc or as a case of its own; what is
# set already wins over the cases:
#
#     export SITE_MODULES="CUDA/12 Python/3.12"   # what `module load` brings
#     export SITE_INTERFACE=ib0                   # the interface on the network between nodes: ip -br addr
#     export SITE_SUFFIX=                         # what a node's name ends with on that network
#     export SITE_GPUS=4                          # on a node, where the scheduler does not say: PBS, Slurm without gres
#     export SITE_MACHINE=                        # its name in ./workbook plan, for preflight to compare with
#
# Keep the course in your project's or scratch folder rather than in $HOME: its .venv has some 50,000
# files, a torch for GPUs several GB, and $HOME has a quota of both (on Polaris 50 GB:
# docs.alcf.anl.gov/data-management/filesystem-and-storage/disk-quota; on JURECA: `jutil user dataquota`,
# unverified). `export HF_HOME=…` moves what ./workbook data downloads, too.
#
# A job ends at its time limit without a warning, unless it asks for one: sbatch --signal=TERM@120 sends
# SIGTERM to its processes two minutes before (man sbatch; up to a minute early). It ends them, unless the script
# catches it.

case "${SYSTEMNAME:-${PBS_O_HOST:-${SLURM_CLUSTER_NAME:-}}}" in
    jureca* | juwels* | jusuf*)
        # The "i" and ib0: pytorch/pytorch#73656, and gitlab.jsc.fz-juelich.de's torchrun_jsc. The stage is that of
        # 2026 in public job files; the centre's own PyTorch in it is 2.9; .venv has a newer one (docs/versions.md).
        # Which stage is current: `module avail Stages`. Modules are loaded only where the centre has them.
        : "${SITE_MODULES=Stages/2026 GCC Python}" # unverified
        : "${SITE_INTERFACE=ib0}" "${SITE_SUFFIX=i}" "${SITE_MACHINE=jureca}"
        ;;
    polaris*)
        # docs.alcf.anl.gov/polaris: data-science/frameworks/pytorch and containers/containers (the proxy)
        : "${SITE_GPUS=4}" "${SITE_MACHINE=polaris}"
        : "${SITE_INTERFACE=hsn0}" # unverified for Polaris; the centre's pages use hsn0 on Aurora
        module use /soft/modulefiles
        module load conda
        conda activate base
        export http_proxy=http://proxy.alcf.anl.gov:3128 https_proxy=http://proxy.alcf.anl.gov:3128
        # NCCL over Slingshot by the AWS plug-in: applications-and-libraries/libraries/nccl (read in August 2026). It
        # warns that some programs hang with it; SITE_FABRIC=none leaves it out.
        plugin=/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib
        if [ "${SITE_FABRIC:-}" != none ] && [ -d "$plugin" ]; then
            export NCCL_NET="AWS Libfabric" NCCL_NET_GDR_LEVEL=PHB NCCL_CROSS_NIC=1 NCCL_COLLNET_ENABLE=1
            export FI_CXI_DISABLE_HOST_REGISTER=1 FI_MR_CACHE_MONITOR=userfaultfd FI_CXI_DEFAULT_CQ_SIZE=131072
            export LD_LIBRARY_PATH=$plugin:/soft/libraries/hwloc/lib:${LD_LIBRARY_PATH:-}
        fi
        ;;
    aurora*)
        # docs.alcf.anl.gov/aurora: running-jobs-aurora, data-science/frameworks/pytorch and oneCCL, getting-started (the
        # proxy); all of it unverified. torch sees the two tiles of each GPU as two devices.
        : "${SITE_GPUS=12}" "${SITE_INTERFACE=hsn0}"
        module load frameworks
        export FI_MR_CACHE_MONITOR=userfaultfd
        case $(hostname) in
            aurora-uan*) ;; # the proxy does not work on login nodes
            *) export http_proxy=http://proxy.alcf.anl.gov:3128 https_proxy=http://proxy.alcf.anl.gov:3128 ;;
        esac
        ;;
    lumi*)
        # docs.lumi-supercomputer.eu: runjobs/scheduled-jobs/lumig-job and software/packages/pytorch; all of it
        # unverified, also that Slurm calls the cluster lumi. RCCL reads NCCL's variables.
        : "${SITE_INTERFACE=hsn0}" "${SITE_MACHINE=lumi}"
        export NCCL_NET_GDR_LEVEL=3
        ;;
esac

if [ -n "${SITE_MODULES:-}" ]; then
    # shellcheck disable=SC2086  # several names
    module load $SITE_MODULES || { echo "error: module load $SITE_MODULES fails here: see SITE_MODULES in utils/site.sh" >&2; exit 2; }
fi
if [ -n "${SITE_INTERFACE:-}" ]; then
    export NCCL_SOCKET_IFNAME=$SITE_INTERFACE GLOO_SOCKET_IFNAME=$SITE_INTERFACE
fi
NODE_SUFFIX=${SITE_SUFFIX:-} # for MASTER_ADDR
if [ -n "${SLURM_JOB_ID:-}" ]; then
    unset SLURM_EXPORT_ENV # of sbatch --export: srun would hand on no more than that, not even PATH
    export SLURM_GPUS_ON_NODE=${SLURM_GPUS_ON_NODE:-${SITE_GPUS:-0}}
    [ "$SLURM_GPUS_ON_NODE" -gt 0 ] 2>/dev/null || {
        echo "error: Slurm has granted this job no GPUs: ask for them (--gres=gpu:4) or, where Slurm does not count them, set SITE_GPUS to a node's number" >&2
        exit 2
    }
fi
[ -z "${SITE_GPUS:-}" ] || export SITE_GPUS
[ -z "${SITE_MACHINE:-}" ] || export SITE_MACHINE

# Python: the one that WORKBOOK_PYTHON names, else the course's own, else what the modules brought.
if [ -n "${WORKBOOK_PYTHON:-}" ]; then
    PATH=$(dirname "$WORKBOOK_PYTHON"):$PATH
elif [ -x .venv/bin/python ]; then
    PATH=$PWD/.venv/bin:$PATH
fi
[ ! -d utils/bin ] || PATH=$PWD/utils/bin:$PATH # the course's torchrun, which ends in one line
export PATH
python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null || {
    echo "error: no Python with torch on $(hostname): run ./workbook start on a login node, or set WORKBOOK_PYTHON before you submit" >&2
    exit 2
}
