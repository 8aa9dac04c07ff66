#!/bin/bash
# One run on several machines: sbatch --nodes=4 deploy/slurm/machines.sh FOLDER [OPTION]... (docs/clusters.md). Exclusive:
# at its end Ray stops every Ray cluster that this user has on these machines.
#SBATCH --job-name=fedpriv
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --exclusive
#SBATCH --time=04:00:00
set -eu
folder=$1
shift
export PATH="$PWD/.venv/bin:$PATH"
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1):6379
exec srun ray symmetric-run --address "$head" --min-nodes "$SLURM_JOB_NUM_NODES" -- \
    python -m fedpriv engine=ray "engine.address=$head" "hydra.run.dir=$folder" "$@"
