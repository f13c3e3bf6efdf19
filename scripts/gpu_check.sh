#!/bin/sh
# Tests and measures on a machine with an NVIDIA GPU: see scripts/gpu_check.sh --help.
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
