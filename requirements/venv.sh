#!/bin/sh
# Makes .venv from the pins in requirements/dev.txt, with headrace itself as an editable install.
#   requirements/venv.sh        make, repair or update .venv; at once when nothing has changed
#   requirements/venv.sh find   print the Python that would be used, or say what is missing
#
# Order: 1 lock; 2 compare the stamp; 3 mark the install as begun; 4 new environment where there is none that works;
# 5 pip and setuptools, then everything, by hash; 6 headrace; 7 write the stamp, remove the mark. A mark that is found at 4 tells
# of an interrupted install: nothing in that environment is trusted and it is made anew.
set -eu
cd "$(dirname "$0")/.."
venv=.venv

find_python() {
  tried=
  for name in ${PYTHON:-python3.11 python3.12 python3 python}; do
    # Run it: a pyenv shim is on the PATH for versions that it then refuses to start.
    if ! version=$("$name" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null); then
      command -v "$name" >/dev/null && tried="$tried $name does not start;"
      continue
    fi
    case $version in
      3.11 | 3.12) ;;
      *) tried="$tried $name is $version;" && continue ;;
    esac
    if "$name" -c 'import ensurepip, venv' 2>/dev/null; then
      "$name" -c 'import sys; print(sys.executable)'
      return
    fi
    tried="$tried $name ($version) lacks the modules venv and ensurepip (Debian: apt-get install python$version-venv);"
  done
  echo "headrace needs Python 3.11 or 3.12 with the modules venv and ensurepip.${tried:+ Found:$tried}" >&2
  echo "Install one, or name it: make setup PYTHON=/path/to/python3.11" >&2
  return 1
}

wanted() { # what .venv was made from: the pins, this package's own settings, this script, and where it stands
  cat requirements/build.txt requirements/dev.txt pyproject.toml requirements/venv.sh | cksum
  pwd
}

up_to_date() {
  [ ! -e $venv/installing ] && [ "$(cat $venv/stamp 2>/dev/null)" = "$(wanted)" ] && $venv/bin/python -c '' 2>/dev/null
}

install() {
  up_to_date && return
  python=$(find_python)
  if [ -e $venv/installing ] || ! $venv/bin/python -m pip --version >/dev/null 2>&1 || [ "$(tail -n 1 $venv/stamp 2>/dev/null)" != "$(pwd)" ]; then
    echo "setup: a new $venv with $python"
    mkdir -p $venv && touch $venv/installing
    find $venv -mindepth 1 -maxdepth 1 ! -name installing ! -name lock -exec rm -rf {} +
    "$python" -m venv $venv
  fi
  touch $venv/installing
  rm -f $venv/stamp
  pip="$venv/bin/python -m pip install --quiet --disable-pip-version-check"
  # Sources are built with what build.txt pins instead of whatever is newest today.
  $pip --require-hashes -r requirements/build.txt
  $pip --require-hashes --no-build-isolation -r requirements/dev.txt
  $pip --no-deps --no-build-isolation -e .
  wanted >$venv/stamp
  rm $venv/installing
}

case ${1:-} in
  find) find_python ;;
  '')
    mkdir -p $venv
    if command -v flock >/dev/null; then # two calls at once: the second waits, then finds nothing to do
      exec 9>$venv/lock
      flock 9
    fi
    install
    ;;
  *) sed -n '2,4p' "$0" >&2 && exit 2 ;;
esac
