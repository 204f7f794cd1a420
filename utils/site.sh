# What differs from machine to machine. Every batch file sources this in the course's folder, before
# it starts anything; change it for yours.
#
# For JURECA-DC and Polaris it follows the centres' user guides (apps.fz-juelich.de/jsc/hps/jureca,
# docs.alcf.anl.gov/polaris).

NODE_SUFFIX= # what a node's name ends with on the fast network
case "${SYSTEMNAME:-${PBS_O_HOST:-}}" in
    jureca* | juwels* | jusuf*)
        NODE_SUFFIX=i
        export NCCL_SOCKET_IFNAME=ib0 GLOO_SOCKET_IFNAME=ib0
        ;;
    polaris*)
        module use /soft/modulefiles
        module load conda
        conda activate base
        ;;
esac

# Python: the one that WORKBOOK_PYTHON names, else the course's own, else what the modules brought.
if [ -n "${WORKBOOK_PYTHON:-}" ]; then
    PATH=$(dirname "$WORKBOOK_PYTHON"):$PATH
elif [ -x .venv/bin/python ]; then
    PATH=$PWD/.venv/bin:$PATH
fi
export PATH
python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)' 2>/dev/null || {
    echo "error: no Python with torch on $(hostname): run ./workbook start on a login node, or set WORKBOOK_PYTHON before you submit" >&2
    exit 2
}
