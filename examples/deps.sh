#!/bin/sh
# deps.sh PACKAGE... - installs the Debian packages of the list that are missing.
set -eu
missing=
for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing="$missing $p"
done
if [ -z "$missing" ]; then
    echo "  deps: all installed"
    exit 0
fi
echo "  deps: installing$missing"
if [ "$(id -u)" -ne 0 ]; then
    echo "mascon: these packages are missing and need root: apt-get install$missing" >&2
    exit 1
fi
apt-get update -qq
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
