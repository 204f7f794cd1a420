# For a job of PBS that submits the job after it. A job has its account, queue and resources from the options of qsub,
# and its variables from -v; the next one would have none of them. This qsub adds what PBS says of the running job. And
# where qsub refuses, as without a budget, it says so, and the running job trains nevertheless.

same=() variables=
[ -z "${PBS_O_QUEUE:-}" ] || same+=(-q "$PBS_O_QUEUE") # where it was submitted; a routing queue has moved it since
job=$(qstat -f "$PBS_JOBID" 2>/dev/null) || job=
while IFS= read -r line; do
    name=${line%% = *} name=${name##* } value=${line#* = }
    case $name in
        Account_Name) same+=(-A "$value") ;;
        project) [ "$value" = _pbs_project_default ] || same+=(-P "$value") ;;
        Resource_List.select | Resource_List.place | Resource_List.walltime | Resource_List.filesystems)
            same+=(-l "${name#*.}=$value")
            ;;
        Variable_List)
            while IFS= read -r each; do
                each=${each%%=*}
                [[ ! $each =~ ^[A-Za-z_][A-Za-z_0-9]*$ || $each == PBS_* || -z ${!each+set} ]] || variables+=,$each
            done <<<"${value//,/$'\n'}"
            ;;
    esac
done <<<"${job//$'\n\t'/}" # long lines are folded

qsub() {
    local given=("$@") place
    for place in "${!given[@]}"; do
        [ "${given[place]}" != -v ] || given[place + 1]+=$variables
    done
    command qsub "${same[@]}" "${given[@]}" || echo "warning: qsub refuses, so no job follows this one" >&2
}

qdel() {
    [ -z "$1" ] || command qdel "$@"
}
