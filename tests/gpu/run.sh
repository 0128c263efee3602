#!/bin/sh
# What a GPU must show, in at most eight minutes:  tests/gpu/run.sh [--dry] [FOLDER]
# Figures and log go to FOLDER (default: $OUT, else gpu-figures). --dry: a CPU, Triton's interpreter, tiny sizes.
set -eu
cd "$(dirname "$0")/../.."
dry=
if [ "${1:-}" = --dry ]; then dry=--dry; shift; fi
out=${1:-${OUT:-gpu-figures}}
mkdir -p "$out"
python=${PYTHON:-.venv/bin/python}
[ -x "$python" ] || python=python3
if [ -z "$dry" ]; then
  { nvidia-smi || rocm-smi; } > "$out/device.txt" 2>&1 || true
fi
exec timeout "${GPU_TIMEOUT_S:-480}" "$python" -m tests.gpu.measure $dry --out "$out"
