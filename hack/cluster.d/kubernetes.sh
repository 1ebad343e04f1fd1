# Kubernetes, built from Debian's source package. Sourced by prepare.sh, never run.
#
# Debian builds only kubectl, and since trixie its source package contains only kubectl.
# shellcheck shell=bash

# The build depends on the version of the source and on this number, not on the scripts' text, because it takes minutes.
KUBERNETES_RECIPE=2
KUBERNETES_PROGRAMS=(kubelet kube-apiserver kube-controller-manager kube-scheduler kube-proxy)

# The source packages that own_apt knows.
add_sources() {
    sed -i 's/^deb \(.*\)/&\ndeb-src \1/' "$APT_WORK/sources.list"
    own_apt apt-get update >/dev/null || die "apt cannot download the lists of Debian's sources"
}

source_version() {
    local version
    version=$(own_apt apt-cache showsrc --only-source kubernetes | sed -n 's/^Version: //p' | sort -V | tail -n 1)
    [[ $version ]] || die "Debian has no source package kubernetes for $(codename)"
    say "$version"
}

# kubernetes FOLDER WORK: the programs in FOLDER, which gets its name when they are complete.
kubernetes() {
    local began=$EPOCHREALTIME source
    [[ ! -e $1 ]] || return 0
    warn "building ${KUBERNETES_PROGRAMS[*]}, which takes minutes of processor time"
    mkdir "$2/source" "$2/programs"
    (cd "$2/source" && own_apt apt-get source --download-only kubernetes >/dev/null &&
        tar -xf kubernetes_*.orig.tar.*) || die "apt cannot download the source package kubernetes"
    source=$(echo "$2"/source/kubernetes-*)
    [[ -e $source/cmd/kubelet ]] ||
        die "the source package kubernetes of Debian's $(codename) has no kubelet: bookworm's has"
    prepare_own_apt "$2/go-apt" "$(dpkg --print-architecture)"
    download golang-go
    unpack "$2/go-apt/archives" "$2/go"
    # Not in a condition, in which set -e has no effect.
    build_kubernetes "$source" "$2"
    mv "$2/programs" "$1"
    warn "Kubernetes is built, $(ms_since "$began") ms"
}

# build_kubernetes SOURCE WORK: without modules, as debian/rules does.
build_kubernetes() (
    set -e
    version=${1##*/kubernetes-}
    GOROOT=$(echo "$2"/go/usr/lib/go-*)
    export GOROOT GOPATH=$2/gopath GOCACHE=$2/gocache GO111MODULE=off GOPROXY=off GOFLAGS='' CGO_ENABLED=0
    # Compiling is the cost here, not running: without inlining and debug information, and with rare garbage collection,
    # the build takes a quarter less processor time.
    export GOGC=400
    PATH=$GOROOT/bin:$PATH
    mkdir -p "$GOPATH/src/k8s.io"
    ln -s "$1" "$GOPATH/src/k8s.io/kubernetes"
    cd "$GOPATH/src/k8s.io/kubernetes"
    generate_openapi "$2/openapi-gen"
    package=k8s.io/kubernetes/vendor/k8s.io/component-base/version
    IFS=. read -r major minor _ <<<"$version"
    flags="-s -w -X $package.gitVersion=v$version -X $package.gitMajor=$major -X $package.gitMinor=$minor"
    for program in "${KUBERNETES_PROGRAMS[@]}"; do
        nice go build -gcflags "all=-l -dwarf=false" -ldflags "$flags" -o "$2/programs/$program" "k8s.io/kubernetes/cmd/$program"
    done
)

# generate_openapi GENERATOR: the API servers' OpenAPI definitions, which the source lacks.
generate_openapi() {
    local types=staging/src/k8s.io/apimachinery/pkg
    nice go build -o "$1" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    openapi "$1" pkg/generated/openapi staging/src/k8s.io pkg cmd
    openapi "$1" staging/src/k8s.io/apiextensions-apiserver/pkg/generated/openapi \
        $types/apis/meta/v1 $types/runtime $types/version staging/src/k8s.io/api/autoscaling/v1
}

# openapi GENERATOR PACKAGE FOLDER...: for the types below these folders that need a definition.
openapi() {
    "$1" --logtostderr --input-dirs "$(tagged "${@:3}")" --output-package "k8s.io/kubernetes/$2" \
        --output-file-base zz_generated.openapi --report-filename /dev/null \
        --go-header-file vendor/k8s.io/code-generator/hack/boilerplate.go.txt
}

# tagged FOLDER...: the packages below, by import path, separated by commas.
tagged() {
    grep -rl --include='*.go' '+k8s:openapi-gen=' "$@" | xargs -n 1 dirname | LC_ALL=C sort -u |
        grep -vE '_test|/testdata|code-generator|sample-apiserver' |
        sed -e 's,^staging/src/,k8s.io/kubernetes/vendor/,' -e 't' -e 's,^,k8s.io/kubernetes/,' | paste -sd,
}
