#!/bin/bash
#SBATCH --job-name=fp8-parity
#SBATCH --nodes=1
#SBATCH --gpus-per-node=8
#SBATCH --array=0-1
#SBATCH --requeue
#SBATCH --time=01:00:00
set -euo pipefail
export FP8PARITY_COMMIT=$(git rev-parse HEAD)
pytest -m h100 suites/convergence -n 8 --parity-shard auto --parity-records "records-$SLURM_ARRAY_TASK_ID" --parity-resume
