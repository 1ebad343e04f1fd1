# Where Debian's packages are had from, and the caches of what is made of them. Sourced after lib.sh, never run.
# shellcheck shell=bash

codename() { (. /etc/os-release && say "${VERSION_CODENAME:-}"); }

# lock_cache FOLDER [VARIABLE]: makes it, or says which variable names another, and waits until nobody else fills it.
lock_cache() {
    mkdir -p "$1" || die "the cache $1 can't be made${2:+: name a folder by $2}"
    exec {CACHE_LOCK}>"$1/lock"
    flock -n "$CACHE_LOCK" || { warn "waiting for another who fills $1" && flock "$CACHE_LOCK"; }
}

unlock_cache() { exec {CACHE_LOCK}>&-; }

KEYRING=/usr/share/keyrings/debian-archive-keyring.gpg

# targets: where the machine's own apt has which suite and which component of it from.
targets() {
    # shellcheck disable=SC2016 # apt's own variables
    apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages'
}

# own_sources: the machine's own Debian sources, and their backports beside them.
own_sources() {
    local suite options=''
    suite=$(codename)
    [[ ! -e $KEYRING ]] || options="[signed-by=$KEYRING] "
    targets | awk -v suite="$suite" -v options="$options" '
        $3 != "main" || seen[$1 $2]++ { next }
        $2 == suite { print "deb " options $1 " " suite "-backports main" }
        $2 ~ "^" suite "($|-security|-updates)" { print "deb " options $1 " " $2 " main" }'
}

# next_sources: what is to be Debian's next release, from where the machine has its own. A mirror may stand still:
# how old its lists are says nothing against them.
next_sources() {
    local suite options='[check-valid-until=no] '
    suite=$(codename)
    [[ ! -e $KEYRING ]] || options="[check-valid-until=no signed-by=$KEYRING] "
    targets | awk -v suite="$suite" -v options="$options" '
        $2 == suite && $3 == "main" && !seen++ { print "deb " options $1 " testing main" }'
}

# prepare_own_apt WORK ARCH [RELEASE]: what own_apt then works with.
prepare_own_apt() {
    APT_RELEASE=${3:-}
    prepare_apt "$1" "$2" own_sources
}

# prepare_next_apt WORK ARCH: likewise, with what is to be Debian's next release.
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
    own_apt apt-get update >/dev/null || die "apt can't get Debian's lists"
}

# own_apt COMMAND...: apt with lists, archives and status of our own, for any architecture. It takes
# nothing for installed, so that a package comes with all that it needs, and leaves the machine's apt
# as it was.
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

# depends_on PACKAGE PATTERN: the packages of that name which it depends on.
depends_on() { own_apt apt-cache depends --no-recommends --no-suggests "$1" | sed -n "s/^ *Depends: \($2\)$/\1/p"; }
