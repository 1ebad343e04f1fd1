# The parts of the Arm machine: Debian's kernel, BusyBox, iproute2. Sourced by hack/arm-dpu, never run.
# shellcheck shell=bash

CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/arm
MODULES=(virtio_pci virtio_net virtio_blk virtio_console ext4 bridge veth sch_tbf sch_ingress cls_bpf)
TOOLS=(ip bridge tc)

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"

# fetch: downloads what `up` needs, unless it exists.
fetch() {
    no_more "$@"
    need qemu-system-aarch64=qemu-system-arm mke2fs=e2fsprogs cpio=cpio || exit 1
    can_make_taps || exit 1
    is_fetched && return
    need dpkg-deb=dpkg apt-get=apt depmod=kmod modprobe=kmod readelf=binutils flock=util-linux || exit 1
    lock_cache "$CACHE"
    is_fetched || fetch_all
    unlock_cache
}

is_fetched() { [[ $(cat "$CACHE/recipe" 2>/dev/null) == "$(recipe)" ]]; }

# A change of these scripts downloads the parts again.
recipe() { cat "$ROOT/hack/arm-dpu.d/parts.sh" "$ROOT/hack/debian.sh" | sha256sum; }

fetch_all() {
    rm -rf "$CACHE/recipe" "$CACHE/new"
    download
    tools
    rm -rf "$CACHE/new"
    recipe >"$CACHE/recipe"
}

can_make_taps() {
    [[ -r /dev/net/tun && -w /dev/net/tun ]] || { warn "the user $(id -un) cannot open /dev/net/tun, which taps need" && return 1; }
}

# Kernel, BusyBox, iproute2 and its libraries, unpacked.
download() (
    warn "downloading Debian's arm64 kernel and tools"
    prepare_own_apt "$CACHE/new/apt" arm64
    own_apt apt-get install -y --download-only iproute2 busybox-static >/dev/null ||
        die "apt cannot download Debian's arm64 iproute2 and busybox-static"
    cd "$CACHE/new/apt/archives"
    own_apt apt-get download "$(depends_on linux-image-arm64 'linux-image-[0-9].*')" >/dev/null ||
        die "apt cannot download Debian's arm64 kernel"
    mkdir "$CACHE/new/unpacked"
    for package in *.deb; do dpkg-deb -x "$package" "$CACHE/new/unpacked"; done
)

# tools: kernel and programs in the layout of QEMU and the kernel.
tools() {
    local from=$CACHE/new/unpacked to=$CACHE/new/root tool
    install -D "$(unpacked "$from" busybox)" "$to/bin/busybox"
    for tool in "${TOOLS[@]}"; do
        install -D "$(unpacked "$from" "$tool")" "$to/usr/local/bin/$tool"
        add_libraries "$from" "$to/usr/local/bin/$tool" "$to/lib"
    done
    add_modules "$from" "$to"
    archive "$to" >"$CACHE/tools.cpio"
    cp "$from"/boot/vmlinuz-* "$CACHE/vmlinuz"
}

# unpacked FOLDER PROGRAM: its path; its folder differs between Debian's releases.
unpacked() { find "$1" -path "*bin/$2" -type f -print -quit; }

# add_libraries FROM PROGRAM TO: the libraries of the program or library, recursively.
add_libraries() {
    local name
    for name in $(readelf -d "$2" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'); do
        [[ -e $3/$name ]] && continue
        install -D "$(find "$1" -name "$name" -print -quit)" "$3/$name"
        add_libraries "$1" "$3/$name" "$3"
    done
}

# add_modules FROM TO: the modules named above and their dependencies.
add_modules() {
    local version file module
    version=$(ls "$1/lib/modules")
    depmod -b "$1" "$version"
    for module in "${MODULES[@]}"; do
        for file in $(modprobe -d "$1" -S "$version" --show-depends "$module" | sed -n 's/^insmod //p'); do
            install -D "$file" "$2/${file#"$1"/}"
        done
    done
    cp "$1/lib/modules/$version"/modules.{builtin,builtin.modinfo,order} "$2/lib/modules/$version/"
    depmod -b "$2" "$version"
}

# archive FOLDER: the kernel's initial file system.
archive() { (cd "$1" && find . | cpio --quiet -o -H newc -R 0:0); }

# initramfs FILE: the tools, and the machine's init script.
initramfs() {
    { cat "$CACHE/tools.cpio" && archive "$ROOT/hack/arm-dpu.d/root"; } >"$1"
}
