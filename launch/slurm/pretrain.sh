#!/usr/bin/env bash
# Pre-train on several nodes: one torchrun per node, one rank per GPU. docs/clusters.md
#   sbatch launch/slurm/pretrain.sh --config configs/pretrain/scholarly_vanilla.yaml [key=value ...]
# Submit it in the checkout, with the environment activated.
#SBATCH --job-name=scimult
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@300
set -euo pipefail

ranks_per_node=${SLURM_GPUS_ON_NODE:-1}
read -r first_node < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
port=$((20000 + SLURM_JOB_ID % 20000))

# Before the time limit or at a preemption, end the step, which writes a checkpoint.
stopped=
trap 'stopped=yes; kill -TERM "$step" 2>/dev/null || true' TERM

srun --kill-on-bad-exit=1 torchrun \
  --nnodes "$SLURM_NNODES" --nproc-per-node "$ranks_per_node" \
  --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d --rdzv-endpoint "$first_node:$port" \
  launch/pretrain.py "$@" &
step=$!
code=0
wait "$step" || code=$?
if [[ -n $stopped ]]; then
  wait "$step" || code=$?          # the trap ended the first wait
  scontrol requeue "$SLURM_JOB_ID" # the same command continues the run
fi
exit "$code"
