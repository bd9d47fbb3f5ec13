#!/usr/bin/env bash
# Evaluate many models on one suite: one array task per model. docs/clusters.md
#   sbatch --array=0-2 launch/slurm/evaluate.sh SUITE DATA OUT NAME=FOLDER NAME=FOLDER NAME=FOLDER
#   scimult report OUT --out REPORT          # when all are done
#SBATCH --job-name=scimult-evaluate
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=08:00:00
#SBATCH --output=%x-%A_%a.log
#SBATCH --requeue
set -euo pipefail

suite=$1 data=$2 out=$3
models=("${@:4}")
if ((SLURM_ARRAY_TASK_ID >= ${#models[@]})); then
  echo "error: no model number $SLURM_ARRAY_TASK_ID of ${#models[@]}. Fix: sbatch --array=0-$((${#models[@]} - 1))" >&2
  exit 1
fi
# Existing scores are kept, so a preempted task resumes.
exec srun scimult evaluate --suite "$suite" --data "$data" --out "$out" --resume \
  --model "${models[$SLURM_ARRAY_TASK_ID]}"
