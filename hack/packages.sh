# Unpacks Debian's packages, and makes an image of one. Sourced after debian.sh, never run.
# shellcheck shell=bash

IMAGE=localhost/pod:1

# download PACKAGE...: with all dependencies, by the prepared apt. A missing package ends the script, by name.
download() {
    local package
    for package in "$@"; do
        [[ -n $(version_of "$package") ]] ||
            die "$(awk '{print $(NF-1); exit}' "$APT_WORK/sources.list") of Debian has no package $package"
    done
    own_apt apt-get install -y --download-only "$@" >/dev/null || die "apt cannot download $*"
}

version_of() { own_apt apt-cache policy "$1" | sed -n 's/^ *Candidate: \([^(].*\)$/\1/p'; }

# unpack ARCHIVES TREE
unpack() {
    local package folder
    mkdir -p "$2"/usr/{bin,sbin,lib,lib64} "$2/etc"
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$2/$folder"; done
    for package in "$1"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" |
            tar -x -C "$2" --keep-directory-symlink --exclude='./usr/share/doc' --exclude='./usr/share/locale' ||
            die "${package##*/} cannot be unpacked"
        dpkg-deb -f "$package" Package Version | paste -s | awk '{print $2, $4}' >>"$2/versions"
    done
}

# image TREE: an image with only BusyBox, which sleeps, as an archive that runtimes load without a registry.
image() (
    set -e
    cd "$1"
    mkdir -p image/{bin,etc,proc,sys,dev,tmp}
    install -m 755 bin/busybox image/bin/busybox
    for applet in sh sleep ping ip cat hostname httpd nc nslookup wget test touch rm; do
        ln -s busybox "image/bin/$applet"
    done
    tar -c -C image --owner 0 --group 0 . >layer.tar
    rm -r image
    jq -n --arg layer "sha256:$(digest layer.tar)" --arg arch "$(dpkg --print-architecture)" '{
        architecture: $arch, os: "linux", rootfs: {type: "layers", diff_ids: [$layer]},
        config: {Entrypoint: ["/bin/sleep"], Cmd: ["infinity"], Env: ["PATH=/bin"]}}' >config.json
    jq -n --arg image "$IMAGE" '[{Config: "config.json", RepoTags: [$image], Layers: ["layer.tar"]}]' >manifest.json
    tar -c manifest.json config.json layer.tar >image.tar
    rm manifest.json config.json layer.tar
)

digest() { sha256sum "$1" | cut -d' ' -f1; }
