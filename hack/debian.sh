# Debian's package sources, and the caches of what is built from packages. Sourced after lib.sh, never run.
# shellcheck shell=bash

codename() { (. /etc/os-release && say "${VERSION_CODENAME:-}"); }

# lock_cache FOLDER [VARIABLE]: creates the cache, or names the variable for another folder. Waits until no other
# process fills it.
lock_cache() {
    mkdir -p "$1" || die "cannot create the cache $1${2:+: set $2 to another folder}"
    exec {CACHE_LOCK}>"$1/lock"
    flock -n "$CACHE_LOCK" || { warn "waiting for another process that fills $1" && flock "$CACHE_LOCK"; }
}

unlock_cache() { exec {CACHE_LOCK}>&-; }

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# targets: the machine's apt sources, with suites and components.
targets() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages'
}

# own_sources: the machine's own Debian sources, with their backports.
own_sources() {
    local suite options=''
    suite=$(codename)
    [[ ! -e $KEYRING ]] || options="[signed-by=$KEYRING] "
    targets | awk -v suite="$suite" -v options="$options" '
        $3 != "main" || seen[$1 $2]++ { next }
        $2 == suite { print "deb " options $1 " " suite "-backports main" }
        $2 ~ "^" suite "($|-security|-updates)" { print "deb " options $1 " " $2 " main" }'
}

# next_sources: sources of Debian's next release, from the machine's mirror. The lists of a stopped mirror may be old;
# their age is not checked.
next_sources() {
    local suite options='[check-valid-until=no] '
    suite=$(codename)
    [[ ! -e $KEYRING ]] || options="[check-valid-until=no signed-by=$KEYRING] "
    targets | awk -v suite="$suite" -v options="$options" '
        $2 == suite && $3 == "main" && !seen++ { print "deb " options $1 " testing main" }'
}

# prepare_own_apt WORK ARCH [RELEASE]: prepares own_apt.
prepare_own_apt() {
    APT_RELEASE=${3:-}
    prepare_apt "$1" "$2" own_sources
}

# prepare_next_apt WORK ARCH: prepares own_apt for Debian's next release.
prepare_next_apt() {
    APT_RELEASE=''
    prepare_apt "$1" "$2" next_sources
}

prepare_apt() {
    APT_WORK=$1 APT_ARCH=$2
    mkdir -p "$APT_WORK"/{lists,archives}/partial
    : >"$APT_WORK/status"
    "$3" >"$APT_WORK/sources.list"
    [[ -s $APT_WORK/sources.list ]] || die "apt has no source for Debian's own $(codename)"
    own_apt apt-get update >/dev/null || die "apt cannot download Debian's lists"
}

# own_apt COMMAND...: apt with lists, archives and status of its own, for any architecture. It treats no package as
# installed, so that a package comes with all its dependencies. The machine's apt stays unchanged.
own_apt() {
    local setting options=()
    for setting in Dir::Etc::sourcelist="$APT_WORK/sources.list" Dir::Etc::sourceparts=- \
        Dir::State::lists="$APT_WORK/lists" Dir::State::status="$APT_WORK/status" \
        Dir::Cache="$APT_WORK" Dir::Cache::archives="$APT_WORK/archives" \
        APT::Architecture="$APT_ARCH" APT::Architectures="$APT_ARCH" APT::Default-Release="$APT_RELEASE" \
        APT::Install-Recommends=0 APT::Sandbox::User=root Debug::NoLocking=1 \
        Acquire::Languages=none Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false; do
        options+=(-o "$setting")
    done
    "$1" "${options[@]}" -q "${@:2}" </dev/null
}

# depends_on PACKAGE PATTERN: its dependencies with such a name.
depends_on() { own_apt apt-cache depends --no-recommends --no-suggests "$1" | sed -n "s/^ *Depends: \($2\)$/\1/p"; }
