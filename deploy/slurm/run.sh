#!/bin/bash
# One run on one GPU: sbatch deploy/slurm/run.sh FOLDER [OPTION]... (docs/clusters.md). As an array, a run of each seed:
# sbatch --array=0-7 deploy/slurm/run.sh FOLDER [OPTION]... A job that begins again goes on from its last checkpoint.
#SBATCH --job-name=fedpriv
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --gpus-per-task=1
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
set -eu
folder=$1
shift
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    folder=$folder/$SLURM_ARRAY_TASK_ID
    set -- "$@" "seed=$SLURM_ARRAY_TASK_ID"
fi
if [ -e "$folder/summary.json" ]; then exit 0; fi
if [ -e "$folder/config.yaml" ]; then set -- "resume=$folder"; else set -- "$@" "hydra.run.dir=$folder"; fi
exec srun .venv/bin/python -m fedpriv "$@"
