# Systems with nothing of ours in them, for packages to be installed in.  Sourced after scripts/lib.sh.
# shellcheck shell=bash
#
# make_system SUITE makes $WORK/SUITE, once: a release of Debian, of the mirror that this machine installs from,
# with python3.  It is the lower layer of an overlay, and never written to.
WORK=$ROOT/build-wheel

# The first mirror of Debian in the machine's apt sources.
find_mirror() {
  { sed -n 's/^URIs: *\([^ ]*\).*/\1/p' /etc/apt/sources.list.d/*.sources
    sed -n 's/^deb \(\[[^]]*\] \)\?\([^ ]*\) .*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.list; } 2>/dev/null |
    while read -r uri; do case $uri in */debian | */debian/) echo "$uri"; break ;; esac; done
}

make_system() {
  local suite=$1
  [ -e "$WORK/$suite/etc/made" ] && return
  say "debootstrap $suite"
  rm -rf "${WORK:?}/$suite"
  debootstrap --variant=minbase --include=python3-venv --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    "$suite" "$WORK/$suite" "$(find_mirror)" >"$WORK/$suite.log" 2>&1 || { tail -20 "$WORK/$suite.log" >&2; return 1; }
  touch "$WORK/$suite/etc/made"
}
