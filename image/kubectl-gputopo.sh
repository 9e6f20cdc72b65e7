#!/bin/sh
# kubectl gputopo as Krew installs it: gputopo's wheel lies beside this file, and uv or pipx runs it with what it needs.
here=$(dirname "$(readlink -f "$0")")
# In an address % and # and ? mean something, and a space ends it.
path=$(printf '%s' "$here" | sed 's/%/%25/g; s/#/%23/g; s/?/%3F/g; s/ /%20/g')
spec="gpu-topology-dra[cli] @ file://$path/$WHEEL"
if command -v uv >/dev/null 2>&1; then
    exec uv tool run --quiet --from "$spec" kubectl-gputopo "$@"
fi
if command -v pipx >/dev/null 2>&1; then
    exec pipx run --quiet --spec "$spec" kubectl-gputopo "$@"
fi
echo "kubectl gputopo is written in Python and is run by uv or pipx: install one of them" >&2
exit 1
