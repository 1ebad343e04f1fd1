# Debian packages. Sourced by hack/package, never run.
# shellcheck shell=bash
#
# The packages are staged here and built by dpkg-deb. cargo-deb would have to be built first, packs only cargo's own
# targets, and cannot pack programs from a folder.
#
# Each folder here is a package: its control file and its maintainer scripts. `common` is prepended to each script.

MAINTAINER='The dpu-offload authors <dpu-offload@users.noreply.github.com>'
SCRIPTS=(postinst prerm postrm)

make_debs() {
    local architecture package
    write_manual "$WORK/manual"
    for architecture in $ARCHITECTURES; do
        for package in "${!CRATE[@]}"; do make_deb "$package" "$architecture"; done
    done
}

# write_manual FOLDER: with the program `manual` of a folder of programs, if it runs on this machine.
write_manual() {
    local folder
    progress "writing the manual pages"
    for folder in "${FROM[@]}" ${OFFLOAD_BIN_DIR:+"$OFFLOAD_BIN_DIR"}; do
        "$folder/manual" "$1" 2>/dev/null && return
    done
    progress "building the program that writes them: $(printf '%s ' "${FROM[@]}")has no manual for this machine"
    build_manual && "$MANUAL" "$1" || die "the manual can't be written"
}

# build_manual: in the programs' profile, so that their libraries are not compiled again. MANUAL is its path.
build_manual() {
    local folder profile=demo target=${CARGO_TARGET_DIR:-$ROOT/target}
    if [[ $BUILT == yes ]]; then
        folder=$("$ROOT/hack/cross" --profile "$PROFILE" --only manual "$(uname -m)") || return
        MANUAL=$folder/manual
        return
    fi
    for folder in "${FROM[@]}"; do
        [[ $folder/.. -ef $target ]] && profile=$(basename "$folder")
    done
    (cd "$ROOT" && cargo build --profile "${profile/#debug/dev}" --locked --features "$FEATURES" --bin manual) || return
    MANUAL=$target/$profile/manual
}

# make_deb PACKAGE ARCHITECTURE
make_deb() {
    local tree=$WORK/$2/$1
    progress "packing $1 for $2"
    FOLDER=$ROOT/hack/package.d/$1 BIN=${FROM[$2]}
    mkdir -p "$tree/DEBIAN"
    "stage_${1//-/_}" "$tree"
    stage_documents "$tree" "$1" "$2"
    stage_control "$tree" "$1" "$2"
    dpkg-deb --root-owner-group --build "$tree" "$OUT" >/dev/null || die "dpkg-deb can't build $1"
}

stage_dpu_offload_host() {
    program "$1" host-shim-agent
    install -D "$BIN/host-shim" "$1/usr/lib/cni/host-shim"
    # Networks of podman refer to the plugin by this name.
    install -d "$1/usr/lib/netavark"
    ln -s ../cni/host-shim "$1/usr/lib/netavark/dpu-offload"
    configuration "$1" minimal/host-shim.toml
    example "$1" dpu-offload-host host-shim.toml
    units "$1" dpu-offload-agent.service dpu-offload-agent.socket dpu-offload-agent@.service dpu-offload-agent@.socket
    example "$1" dpu-offload-host 10-dpu-offload.conflist
}

stage_dpu_offload_dpu() {
    program "$1" dpu-service
    configuration "$1" minimal/dpu-service.toml
    example "$1" dpu-offload-dpu dpu-service.toml
    units "$1" dpu-offload-service.service
}

stage_dpuctl() {
    program "$1" dpuctl
    configuration "$1" dpuctl.toml
    example "$1" dpuctl network.yaml
    example "$1" dpuctl prometheus/dpu-offload.rules.yml
    example "$1" dpuctl prometheus/dpu-offload.test.yml
    example "$1" dpuctl grafana/dpu-offload.json
}

# The lab expects all programs in one folder, and its files as in a clone.
stage_dpu_offload_lab() {
    local lab=$1/usr/share/dpu-offload-lab links=$1/usr/lib/dpu-offload-lab program
    program "$1" virtual-nic
    install -D "$FOLDER/dpu-offload-lab" "$1/usr/bin/dpu-offload-lab"
    mkdir -p "$lab/hack" "$links"
    sed 's|hack/lab|dpu-offload-lab|g' "$ROOT/hack/lab" >"$lab/hack/dpu-offload-lab"
    chmod 755 "$lab/hack/dpu-offload-lab"
    install -m 644 "$ROOT/hack/lib.sh" "$lab/hack/lib.sh"
    install -D -m 644 "$ROOT/tests/fixtures/networks.toml" "$lab/tests/fixtures/networks.toml"
    for program in "${PROGRAMS[@]}"; do ln -s "../../bin/$program" "$links/$program"; done
    ln -sf ../cni/host-shim "$links/host-shim"
    units "$1" dpu-offload-card.service
    install -m 644 "$ROOT/configs/systemd/dpu-offload-service-card.conf" "$lab/card.conf"
    page_of_help "$ROOT/hack/lab" | compress >"$1/usr/share/man/man8/dpu-offload-lab.8.gz"
    example "$1" dpu-offload-lab ci/pods.yml
}

# program TREE PROGRAM: with its manual pages and completions.
program() {
    local file of_it=("$WORK/manual/"*/*/{_"$2","$2"{,-*}.*})
    install -D "$BIN/$2" "$1/usr/bin/$2"
    for file in "${of_it[@]}"; do
        [[ -e $file ]] || continue
        install -D -m 644 "$file" "$1/usr/share/${file#"$WORK/manual/"}"
    done
    find "$1/usr/share/man" -type f ! -name '*.gz' -exec gzip -9n {} +
}

# configuration TREE FILE: a conffile: dpkg keeps the administrator's changes.
configuration() {
    local file=/etc/dpu-offload/${2##*/}
    install -D -m 644 "$ROOT/configs/$2" "$1$file"
    mkdir -p "$1/etc/dpu-offload/tls"
    say "$file" >"$1/DEBIAN/conffiles"
}

# units TREE UNIT...
units() {
    local unit
    for unit in "${@:2}"; do
        install -D -m 644 "$ROOT/configs/systemd/$unit" "$1/usr/lib/systemd/system/$unit"
    done
}

# example TREE PACKAGE FILE
example() { install -D -m 644 "$ROOT/configs/$3" "$1/usr/share/doc/$2/examples/${3##*/}"; }

# stage_documents TREE PACKAGE ARCHITECTURE: the documents that Debian requires, and the bill of materials.
stage_documents() {
    local documents=$1/usr/share/doc/$2
    mkdir -p "$documents" "$1/usr/share/lintian/overrides"
    install -m 644 "$ROOT/hack/package.d/copyright" "$documents/copyright"
    install -m 644 "$(bill "$2" "$3")" "$documents/sbom.cdx.json"
    compress <"$ROOT/CHANGELOG.md" >"$documents/CHANGELOG.md.gz"
    changelog "$2" | compress >"$documents/changelog.gz"
    install -m 644 "$FOLDER/lintian-overrides" "$1/usr/share/lintian/overrides/$2"
}

changelog() {
    cat <<TEXT
$1 ($VERSION) unstable; urgency=medium

  * CHANGELOG.md.gz beside this file lists the changes.

 -- $MAINTAINER  $(date --rfc-email --date="@$SOURCE_DATE_EPOCH")
TEXT
}

compress() { gzip -9n; }

# page_of_help SCRIPT: its help text as a manual page.
page_of_help() {
    say '.TH DPU-OFFLOAD-LAB 8 "" "" dpu-offload'
    say '.SH NAME'
    say 'dpu-offload-lab \- host and DPU of dpu-offload made of software'
    say '.SH DESCRIPTION'
    say '.nf'
    sed -n '2,/^[^#]/{s/^# \{0,1\}//p}' "$1" | sed 's|hack/lab|dpu-offload-lab|g; s/\\/\\e/g; s/-/\\-/g; s/^[.'\'']/\\\&&/'
}

# stage_control TREE PACKAGE ARCHITECTURE: dpkg's metadata.
stage_control() {
    local script
    for script in "${SCRIPTS[@]}"; do
        [[ ! -e $FOLDER/$script ]] || stage_script "$1" "$2" "$script"
    done
    (cd "$1" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$1/DEBIAN/md5sums"
    {
        say "Package: $2"
        say "Version: $VERSION"
        say "Architecture: $3"
        say "Maintainer: $MAINTAINER"
        say "Installed-Size: $(du -k --apparent-size --summarize --exclude=DEBIAN "$1" | cut -f1)"
        depends "$1"
        sed '/^Depends: /d' "$FOLDER/control"
    } >"$1/DEBIAN/control"
}

stage_script() {
    {
        say '#!/bin/sh'
        say "PACKAGE=$2"
        cat "$ROOT/hack/package.d/common" "$FOLDER/$3"
    } >"$1/DEBIAN/$3"
    chmod 755 "$1/DEBIAN/$3"
}

# depends TREE: the package's own dependencies, and the libraries of dynamic programs.
depends() {
    local named libraries
    named=$(sed -n "s/^Depends: //p" "$FOLDER/control" | sed "s/@VERSION@/$VERSION/g")
    libraries=$(libraries "$1")
    [[ -z $named$libraries ]] || say "Depends: $named${named:+${libraries:+, }}$libraries"
}

# dpkg-shlibdeps needs a Debian source tree.
libraries() {
    local program dynamic=()
    while read -r program; do
        is_static "$program" || dynamic+=("$program")
    done < <(find "$1/usr" -type f -perm /111 -size +64k | sort)
    ((${#dynamic[@]})) || return 0
    mkdir -p "$WORK/sources/debian"
    printf 'Source: dpu-offload\n\nPackage: dpu-offload\nArchitecture: any\n' >"$WORK/sources/debian/control"
    (cd "$WORK/sources" && dpkg-shlibdeps -O "${dynamic[@]}" 2>"$WORK/complaints") | sed -n 's/^shlibs:Depends=//p' ||
        die "the libraries of the programs are not Debian's: $(<"$WORK/complaints")"
}
