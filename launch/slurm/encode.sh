#!/usr/bin/env bash
# Encode a library with many GPUs: a task of the array for each part. docs/clusters.md
#   sbatch --array=0-15 launch/slurm/encode.sh PAPERS --model M --task search --out OUT
#SBATCH --job-name=scimult-encode
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --output=%x-%A_%a.log
#SBATCH --requeue
set -euo pipefail

# Shards that are there are not encoded again, so a task that was preempted goes on with what is left.
exec srun scimult encode "$@" \
  --part "$((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN))/$SLURM_ARRAY_TASK_COUNT"
