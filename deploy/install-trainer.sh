#!/bin/sh
# The trainer's packages into a new environment: install-trainer.sh FOLDER. Used by the Dockerfile.
# PADDLE and PADDLE_INDEX as the Dockerfile explains them; requirements lie beside this script.
set -eu
venv=$1
here=$(dirname "$0")
pip="$venv/bin/pip install -q --no-build-isolation"

if [ "${PADDLE:-}" = base ]; then
  python3 -m venv --system-site-packages "$venv"
else
  python3 -m venv "$venv"
fi
$pip --require-hashes -r "$here/build.txt"
if [ -z "${PADDLE:-}" ]; then
  $pip --require-hashes -r "$here/trainer.txt"
  "$venv/bin/pip" check
else
  # All but the CPU wheel, by hash. An entry ends at the first line without a backslash.
  awk '/^paddlepaddle==/ {skip = 1} !skip {print} skip && !/\\$/ {skip = 0}' "$here/trainer.txt" >"$here/others.txt"
  $pip --require-hashes -r "$here/others.txt"
  if [ "$PADDLE" != base ]; then
    # The wheel brings CUDA's libraries as packages of its own. What is pinned stays as it is.
    sed -n 's/^\([a-z].*[^ ]\) *\\$/\1/p' "$here/others.txt" >"$here/constraints.txt"
    if [ -n "${PADDLE_INDEX:-}" ]; then export PIP_EXTRA_INDEX_URL="$PADDLE_INDEX"; fi
    $pip -c "$here/constraints.txt" "$PADDLE"
  fi
fi
