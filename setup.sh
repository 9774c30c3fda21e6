# Sourced by demo, check and .ci/run. Makes .venv with Python 3.11 or newer and leaves .venv/bin/remat.

unset PYTHONDONTWRITEBYTECODE # without cached bytecode each new process compiles every module it imports

# pip_install ARGUMENTS: at the pinned versions.
pip_install() {
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$@"
}

# install_into_venv EXTRAS: nothing is done when the pins and the project file are those of the last time.
install_into_venv() {
    local extras=$1 python stamp kernels
    for python in python3.11 python3.12 python3.13 python3; do
        if command -v "$python" >/dev/null && "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            break
        fi
        python=
    done
    [ -n "$python" ] || { echo "remat needs Python 3.11 or newer; install it and try again" >&2; return 1; }
    stamp="$(cat pyproject.toml constraints.txt | sha256sum | cut -d' ' -f1) $extras"
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    # No bytecode of modules that nothing imports, in later installations as well: PyTorch and what it needs have 4,500.
    [ -f .venv/pip.conf ] || printf '[install]\nno-compile = no\n' >.venv/pip.conf # pip reads "no" as: without
    if ! grep -qxF "$stamp" .venv/installed 2>/dev/null; then
        echo "installing into .venv ..." >&2
        pip_install numba numpy # all that kernels need: they are compiled while the rest is installed
        .venv/bin/python -m planner.warm >&2 &
        kernels=$!
        pip_install -e ".$extras" || { kill "$kernels"; return 1; }
        wait "$kernels"
        echo "$stamp" >>.venv/installed
    fi
}
