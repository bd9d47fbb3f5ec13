#!/usr/bin/env bash
# Encode a library with many GPUs: one array task per part. docs/clusters.md
#   sbatch --array=0-15 launch/slurm/encode.sh PAPERS --model M --task search --out OUT
#SBATCH --job-name=scimult-encode
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --output=%x-%A_%a.log
#SBATCH --requeue
set -euo pipefail

# Finished shards are skipped, so a preempted task resumes.
part=$(((SLURM_ARRAY_TASK_ID - SLURM_ARRAY_TASK_MIN) / ${SLURM_ARRAY_TASK_STEP:-1}))
exec srun scimult encode "$@" --part "$part/$SLURM_ARRAY_TASK_COUNT"
