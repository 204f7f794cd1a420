# RUN, a run's folder: what --out names in the arguments, else RUN as it was given, else a folder of this job's own.

RUN=${RUN:-runs/${SLURM_JOB_NAME:-$PBS_JOBNAME}-${SLURM_JOB_ID:-${PBS_JOBID%%.*}}}
before=
for word in "$@"; do
    [ "$before" != --out ] || RUN=$word
    [ "${word#--out=}" = "$word" ] || RUN=${word#--out=}
    before=$word
done
