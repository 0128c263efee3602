#!/bin/bash
# The same server while you watch: a node is asked for, then a shell on it.
set -euo pipefail
exec salloc --job-name=stoker-gemma-3-4b-it --cpus-per-task=8 --mem=32G --gres=gpu:1 --time=08:00:00 \
  srun --pty bash "$(dirname "$0")/stoker-gemma-3-4b-it.sbatch"
