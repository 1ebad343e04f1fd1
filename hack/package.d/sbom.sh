# Bills of materials, CycloneDX 1.5. Sourced by hack/package, never run.
# shellcheck shell=bash
#
# They are derived from cargo's metadata: cargo-cyclonedx takes minutes to build, and makes a bill for each crate of the
# workspace instead of each package. A bill lists the crates that a program contains on that processor, without those
# that only tests or the build need. Checksums are those of Cargo.lock.

# The crate with a package's dependencies.
declare -A CRATE=([dpu-offload-host]=host-shim [dpu-offload-dpu]=dpu-service [dpuctl]=dpuctl [dpu-offload-lab]=virtual-nic)

make_bills() {
    local architecture package
    progress "listing the crates of the programs"
    sums_of_crates >"$WORK/sums.json"
    for architecture in $ARCHITECTURES; do
        metadata "$architecture" >"$WORK/metadata.json"
        for package in "${!CRATE[@]}"; do make_bill "$package" >"$(bill "$package" "$architecture")"; done
    done
}

# bill PACKAGE ARCHITECTURE: its file.
bill() { say "$OUT/$1_${VERSION}_$2.cdx.json"; }

metadata() {
    local processor=x86_64
    [[ $1 == amd64 ]] || processor=aarch64
    cargo metadata --manifest-path "$ROOT/Cargo.toml" --format-version 1 --locked --features "$FEATURES" \
        --filter-platform "$processor-unknown-linux-musl" || die "cargo metadata failed"
}

sums_of_crates() {
    awk -F'"' '/^name = /{name=$2} /^version = /{version=$2} /^checksum = /{print name, version, $2}' "$ROOT/Cargo.lock" |
        jq -Rn '[inputs | split(" ") | {key: "\(.[0]) \(.[1])", value: .[2]}] | from_entries'
}

make_bill() {
    jq --from-file "$ROOT/hack/package.d/sbom.jq" --slurpfile sums "$WORK/sums.json" \
        --arg package "$1" --arg version "$VERSION" --arg crate "${CRATE[$1]}" \
        --arg time "$(date --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" "$WORK/metadata.json"
}
