# The parts of hack/vm: QEMU, Debian's kernel, netdevsim with a switchdev driver, an initramfs. Sourced by hack/vm,
# never run.
# shellcheck shell=bash

# The first tested Debian kernel. QEMU's igb is older.
MIN_KERNEL=6.12
# The oldest supported Debian release, with the kernel of cards' images: 6.1.
OLD_SUITE=bookworm
# Modules that find the machine's files, unless they are built in, and report their state.
BOOT_MODULES=(virtio_pci virtio_console 9p 9pnet_virtio overlay)
# The modules that tests may need; indexing the others takes long.
MODULE_FOLDERS=(arch block crypto fs lib mm net virt drivers/{block,char,dca,i2c,iommu,net,pps,ptp,vfio,virtio})
LIBRARIES=usr/lib/x86_64-linux-gnu

# shellcheck source=hack/debian.sh
source "$ROOT/hack/debian.sh"

CACHE=${OFFLOAD_VM_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/dpu-offload/vm}
RECIPE=$(cat "$ROOT"/hack/vm.d/{prepare.sh,switchdevsim/*} "$ROOT/hack/debian.sh" | sha256sum)
# Not empty: the kernel of OLD_SUITE is used.
OLD=
TREE=$CACHE/${RECIPE:0:12}

# use_old_kernel: for the rest of the script.
use_old_kernel() { OLD=1 TREE+=-old; }

prepare() {
    no_more "$@"
    [[ -e $TREE ]] && return
    [[ $(uname -m) == x86_64 ]] || die "hack/vm needs an x86-64 machine, this is $(uname -m)"
    need apt-get=apt dpkg-deb=dpkg flock=util-linux make=make cc=build-essential xz=xz-utils || exit 1
    lock_cache "$CACHE" OFFLOAD_VM_DIR
    [[ -e $TREE ]] || build_tree
    unlock_cache
}

# The tree gets its name when it is complete.
build_tree() {
    local began=$EPOCHREALTIME
    WORK=$CACHE/work
    NEW=$WORK/tree
    rm -rf "$WORK"
    mkdir -p "$NEW"
    warn "preparing the virtual machine in $CACHE"
    download
    unpack
    netdevsim
    switchdevsim
    tool depmod -b "$NEW" "$VERSION"
    initramfs
    say "$VERSION" >"$NEW/version"
    remove_old_trees
    mv "$NEW" "$TREE"
    rm -rf "$WORK"
    warn "kernel $VERSION, netdevsim and QEMU are ready, $(ms_since "$began") ms"
}

# The machine's own suite if its kernel is new enough, otherwise its backports. Both have QEMU for the old kernel.
download() {
    local packages kernel
    prepare_own_apt "$WORK" amd64
    new_enough || APT_RELEASE=$(codename)-backports
    new_enough || die "Debian has no kernel $MIN_KERNEL or newer for $(codename), not even in its backports"
    own_apt apt-get install -y --download-only qemu-system-x86 busybox-static kmod >/dev/null ||
        die "apt cannot download QEMU, busybox-static and kmod"
    [[ ! $OLD ]] || prepare_old_apt
    kernel=$(depends_on linux-image-amd64 'linux-image-[0-9].*')
    VERSION=${kernel#linux-image-}
    mapfile -t packages < <(kernel_packages)
    (cd "$WORK/archives" && own_apt apt-get download "$kernel" "${packages[@]}" >/dev/null) ||
        die "apt cannot download $kernel ${packages[*]}"
}

prepare_old_apt() {
    APT_RELEASE=''
    prepare_apt "$WORK/$OLD_SUITE" amd64 old_sources
}

# old_sources: that suite, from the machine's mirror.
old_sources() {
    local options='[check-valid-until=no] '
    [[ ! -e $KEYRING ]] || options="[check-valid-until=no signed-by=$KEYRING] "
    targets | awk -v suite="$(codename)" -v old="$OLD_SUITE" -v options="$options" '
        $2 == suite && $3 == "main" && !seen++ { print "deb " options $1 " " old " main" }'
}

new_enough() {
    local version
    version=$(kernel_version)
    [[ -n $version ]] && dpkg --compare-versions "$version" ge "$MIN_KERNEL"
}

kernel_version() { own_apt apt-cache policy linux-image-amd64 | sed -n 's/^ *Candidate: //p'; }

# The sources of modules. Debian's kernels lack netdevsim.
kernel_packages() {
    local headers=linux-headers-$VERSION
    say "$headers"
    depends_on "$headers" 'linux-\(headers\|kbuild\)-.*'
    say "linux-source-$(kernel_version | cut -d. -f1,2)"
}

unpack() {
    local package folder folders
    mkdir -p "$WORK/build" "$NEW"/usr/{bin,sbin,lib,lib64}
    for folder in bin sbin lib lib64; do ln -s "usr/$folder" "$NEW/$folder"; done
    for package in "$WORK"/archives/*.deb; do
        case ${package##*/} in
            linux-source-*) ;;
            linux-headers-* | linux-kbuild-*) dpkg-deb -x "$package" "$WORK/build" ;;
            linux-image-*)
                mapfile -t folders < <(module_folders "$package")
                extract "$package" './boot/vmlinuz-*' '*/modules.*' "${folders[@]}"
                ;;
            *) extract "$package" ;;
        esac || die "${package##*/} cannot be unpacked"
    done
}

# module_folders PACKAGE: those of MODULE_FOLDERS that it has. Kernels differ in what is built in.
module_folders() {
    local folder list
    list=$(dpkg-deb --fsys-tarfile "$1" | tar -t)
    for folder in "${MODULE_FOLDERS[@]}"; do
        [[ $list != *"/$VERSION/kernel/$folder/"* ]] || say "*/$VERSION/kernel/$folder"
    done
}

# extract PACKAGE [PATTERN...]: into the new tree, whose layout is the same for all Debian releases.
extract() {
    dpkg-deb --fsys-tarfile "$1" | tar -x -C "$NEW" --keep-directory-symlink --wildcards \
        --exclude='./usr/share/doc' --exclude='./var' --exclude='*/drivers/net/wireless' "${@:2}"
}

netdevsim() {
    local source=$WORK/source driver=drivers/net/netdevsim
    mkdir -p "$source" "$WORK/libraries"
    dpkg-deb --fsys-tarfile "$WORK"/archives/linux-source-*.deb | tar -xO --wildcards '*/linux-source-*.tar.xz' |
        xz -dcT0 | tar -x -C "$source" --strip-components=1 --wildcards "*/$driver/*"
    module netdevsim "$source/$driver"
}

# The driver that refuses what a BlueField's driver refuses.
switchdevsim() {
    cp -r "$ROOT/hack/vm.d/switchdevsim" "$WORK/switchdevsim"
    module switchdevsim "$WORK/switchdevsim"
}

# module NAME FOLDER: builds and installs the module.
module() {
    build_module "$2" >"$WORK/$1.log" 2>&1 || die "$1 does not build: $(tail -n 5 "$WORK/$1.log")"
    install -Dm644 "$2/$1.ko" "$NEW/lib/modules/$VERSION/updates/$1.ko"
}

# build_module FOLDER: Debian's makefiles refer to each other by absolute paths, its objtool needs a rare library, and
# type information needs pahole.
build_module() {
    local headers=$WORK/build/usr/src/linux-headers-$VERSION
    sed -i "s# /usr/src/# $WORK/build/usr/src/#" "$headers/Makefile"
    rm -f "$headers/vmlinux"
    cp -P "$NEW/$LIBRARIES"/libelf* "$WORK/libraries/"
    LD_LIBRARY_PATH=$WORK/libraries make -s -j"$(nproc)" -C "$headers" M="$1" CONFIG_NETDEVSIM=m CC=cc modules
}

# The common part of all initramfs: busybox, and the modules that find the machine's files.
initramfs() {
    local root=$WORK/initramfs module name
    mkdir -p "$root"/{bin,modules,proc,sys,dev,lower,upper,root}
    cp "$NEW/usr/bin/busybox" "$root/bin/"
    boot_modules | while read -r module; do
        name=$(basename "$module" .xz)
        # Older kernels' modules are not compressed and stay unchanged.
        xz -dcf "$module" >"$root/modules/$name"
        say "$name" >>"$root/modules/order"
    done
    archive "$NEW" "$root" >"$NEW/initramfs"
}

# The modules' files in the order of loading.
boot_modules() {
    tool modprobe -d "$NEW" -S "$VERSION" -a --show-depends "${BOOT_MODULES[@]}" |
        awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# archive TREE FOLDER: an initial file system of the kernel, or a part of one.
archive() { (cd "$2" && find . | "$1/usr/bin/busybox" cpio -o -H newc 2>/dev/null); }

# tool NAME ARGUMENTS...: runs a program of the new tree's kmod.
tool() { in_tree "$NEW" --argv0 "$1" "$NEW/usr/bin/kmod" "${@:2}"; }

# in_tree TREE PROGRAM ARGUMENTS...: runs it with the tree's own libraries.
in_tree() { "$1/$LIBRARIES/ld-linux-x86-64.so.2" --library-path "$1/$LIBRARIES" "${@:2}"; }

# Trees that no machine uses any more.
remove_old_trees() {
    local old in_use
    for old in "$CACHE"/*/; do
        # The other kernel's tree has the same recipe.
        case ${old%/} in "$WORK" | "$CACHE/${RECIPE:0:12}"*) continue ;; esac
        exec {in_use}<"$old"
        if flock -xn "$in_use"; then rm -rf "$old"; fi
        exec {in_use}<&-
    done
}
