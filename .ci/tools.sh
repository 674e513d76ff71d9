#!/usr/bin/env bash
# Gets what the tests need from the system's packages. Used by the Makefile and by .ci/run.
#
#   .ci/tools.sh server   a server to test against: redis-server, unless one of the two is there already
#   .ci/tools.sh redis    redis-server
#   .ci/tools.sh valkey   valkey-server, on Debian from the backports suite if need be
#   .ci/tools.sh build    make and a C compiler, which the race detector needs
#   .ci/tools.sh java     a JDK and Maven, for the tests beside Redisson
#   .ci/tools.sh has_cc   installs nothing: is there a C compiler that works?
#
# What is there already is left alone. What is missing is installed where apt-get is there to do it and this is
# root or may become root without a password; elsewhere it says what to install, and fails. No service is left
# running or enabled: the tests start servers of their own, on free ports.
set -euo pipefail

readonly backports=/etc/apt/sources.list.d/holdfast-backports.sources

say() { printf '%s\n' "$*"; }
have() { command -v "$1" >/dev/null 2>&1; }

# root runs a command as root.
root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

may_install() {
  have apt-get && { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }
}

# apt runs apt-get and shows what it says only if it fails.
apt() {
  local out
  out=$(root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 -o Acquire::Retries=3 "$@" 2>&1) ||
    { printf 'apt-get %s:\n%s\n' "$*" "$out" >&2; return 1; }
}

# known tells whether apt-get could install a package.
known() { [[ $(LC_ALL=C apt-cache policy "$1" 2>/dev/null) == *'Candidate: '[!\(]* ]]; }

updated=no
update() {
  [ "$updated" = no ] || return 0
  # A third party's source that is down must not stop us: installing says whether what we need is there.
  apt update || say 'tools.sh: apt-get update failed; going on with the lists that are there' >&2
  updated=yes
}

# install installs packages and keeps the services among them from being started.
install() {
  say "tools.sh: installing $*"
  local policy=/usr/sbin/policy-rc.d ours=no status=0 service
  if [ ! -e "$policy" ]; then
    ours=yes
    # shellcheck disable=SC2064 # the path of now is the one meant
    trap "root rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null
    root chmod 755 "$policy"
  fi
  apt install -y --no-install-recommends "$@" || status=$?
  if [ "$ours" = yes ]; then
    root rm -f "$policy"
    trap - EXIT
  fi
  for service in "$@"; do
    case $service in
    redis-server | valkey-server)
      # Nor at the next boot. Without systemd there is nothing to do but to stop what a policy of somebody's let start.
      if [ -d /run/systemd/system ]; then
        root systemctl disable --now --quiet "$service" 2>/dev/null || true
      elif [ "$ours" = no ] && [ -x "/etc/init.d/$service" ]; then
        root "/etc/init.d/$service" stop >/dev/null 2>&1 || true
      fi
      ;;
    esac
  done
  return "$status"
}

# add_backports adds the backports suite of this Debian, from the mirror that the main suite comes from.
add_backports() {
  local codename mirror keyring=/usr/share/keyrings/debian-archive-keyring.gpg
  # shellcheck disable=SC1091 # every system has its own
  codename=$(. /etc/os-release && [ "${ID:-}" = debian ] && printf '%s' "${VERSION_CODENAME:-}") || return 1
  # shellcheck disable=SC2016 # apt-get expands it
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Label: Debian' \
    "Codename: $codename" 'Component: main')
  mirror=${mirror%%$'\n'*}
  [ -n "$codename" ] && [ -n "$mirror" ] || return 1
  say "tools.sh: adding $codename-backports from $mirror ($backports)"
  {
    printf 'Types: deb\nURIs: %s\nSuites: %s-backports\nComponents: main\n' "$mirror" "$codename"
    [ ! -e "$keyring" ] || printf 'Signed-By: %s\n' "$keyring"
  } | root tee "$backports" >/dev/null
  # Only this source is read, and what is known of the others is kept.
  apt update -o Dir::Etc::sourcelist="$backports" -o Dir::Etc::sourceparts=- -o APT::Get::List-Cleanup=0 && known valkey-server
}

# missing says what to install by hand, and fails.
missing() {
  cat >&2 <<TXT
tools.sh: $1 is missing and cannot be installed from here.
  Debian, Ubuntu:  sudo apt-get install $2
  Fedora:          sudo dnf install $3
  macOS:           $4
TXT
  return 1
}

redis() {
  have redis-server && return
  local hint=(redis-server redis-server 'redis (or valkey)' 'brew install redis')
  may_install || missing "${hint[@]}"
  update
  install redis-server || missing "${hint[@]}"
}

valkey() {
  have valkey-server && return
  local hint=(valkey-server 'valkey-server (Debian 12: from bookworm-backports)' valkey 'brew install valkey')
  may_install || missing "${hint[@]}"
  update
  if ! known valkey-server && ! add_backports; then
    [ ! -e "$backports" ] || root rm -f "$backports"
    missing "${hint[@]}"
  fi
  install valkey-server || missing "${hint[@]}"
}

# both installs redis-server, and valkey-server too where apt already knows one.
both() {
  redis
  have valkey-server || ! known valkey-server || install valkey-server || true
}

# server makes sure that there is a server for the tests to start, the one that HOLDFAST_SERVER names if it is set.
server() {
  local want=${HOLDFAST_SERVER:-}
  case $want in
  redis-server) redis ;;
  valkey-server) valkey ;;
  '') have redis-server || have valkey-server || both ;;
  *) have "$want" || { say "tools.sh: HOLDFAST_SERVER=$want: no such program" >&2; return 1; } ;;
  esac
}

# has_cc checks for the C library's headers too, which Debian's gcc only recommends.
has_cc() {
  local cc
  read -ra cc <<<"${CC:-$(go env CC 2>/dev/null || printf cc)}"
  printf '#include <stdlib.h>\n' | "${cc[@]}" -fsyntax-only -x c - >/dev/null 2>&1
}

build() {
  has_cc && have make && return
  local hint=('make or a C compiler' 'make gcc libc6-dev' 'make gcc glibc-devel' 'xcode-select --install')
  may_install || missing "${hint[@]}"
  update
  install make gcc libc6-dev || missing "${hint[@]}"
}

java() {
  have javac && have mvn && return # a JDK has java too, which as a function of this script says nothing
  local hint=('Java (a JDK) or Maven' 'default-jdk-headless maven' 'java-latest-openjdk-devel maven' 'brew install openjdk maven')
  may_install || missing "${hint[@]}"
  update
  install default-jdk-headless maven || missing "${hint[@]}"
}

case ${1:-} in
server | redis | valkey | build | java | has_cc) "$1" ;;
*)
  sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2
  exit 2
  ;;
esac
