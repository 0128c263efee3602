#!/bin/bash
# The same server while you watch: a node is asked for, then a shell on it.
set -euo pipefail
exec salloc --job-name=stoker-smollm2-135m --cpus-per-task=8 --mem=32G --time=08:00:00 \
  srun --pty bash "$(dirname "$0")/stoker-smollm2-135m.sbatch"
