# OCI images with nothing but a static program, as archives of an OCI layout. Sourced by hack/package, never run.
# shellcheck shell=bash
#
# An archive contains an index with the image for each processor, like one of `docker buildx`. podman, skopeo and
# containerd read it without a registry.

make_images() {
    make_image dpu-offload-agent host-shim-agent host-shim.toml host-shim
    make_image dpu-offload-service dpu-service dpu-service.toml
}

# make_image NAME PROGRAM CONFIGURATION [PLUGIN]: with the plugin at the installer's path.
make_image() {
    local name=$1 architecture manifests='[]'
    progress "making the image $name"
    LAYOUT=$WORK/$name
    mkdir -p "$LAYOUT/blobs/sha256"
    for architecture in $ARCHITECTURES; do
        fill_root "$WORK/root" "${FROM[$architecture]}" "$2" "${@:4}"
        manifests=$(make_manifest "$architecture" "$2" "$3" | jq --argjson all "$manifests" '$all + [.]')
    done
    jq -n --argjson manifests "$manifests" \
        '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: $manifests}' |
        put application/vnd.oci.image.index.v1+json | name_it "localhost/$name:${VERSION//+/-}" >"$LAYOUT/index.json"
    say '{"imageLayoutVersion":"1.0.0"}' >"$LAYOUT/oci-layout"
    archive "$LAYOUT" >"$OUT/${name}_$VERSION.oci.tar"
}

# fill_root ROOT FROM PROGRAM...: the image's files.
fill_root() {
    local root=$1 from=$2 program
    rm -rf "$root"
    mkdir -p "$root"/{etc/dpu-offload/tls,run/dpu-offload,usr/bin,var/lib/dpu-offload}
    for program in "${@:3}"; do
        is_static "$from/$program" || [[ $LIBRARIES == yes ]] ||
            die "$from/$program is not static, and an image has no libraries; hack/cross builds static ones, --only deb makes no images"
        install "$from/$program" "$root/usr/bin/"
        is_static "$from/$program" || add_libraries "$root" "$from/$program"
    done
}

# add_libraries ROOT PROGRAM: the libraries that the program loads on this machine, at the same paths.
add_libraries() {
    local library
    while read -r library; do
        install -D "$library" "$1$library"
    done < <(ldd "$2" | grep -o '/[^ ]*')
}

# make_manifest ARCHITECTURE PROGRAM CONFIGURATION: for the filled root. Prints its descriptor for an index.
make_manifest() {
    local layer config difference
    archive "$WORK/root" >"$WORK/layer"
    difference=sha256:$(sum "$WORK/layer")
    layer=$(gzip "-$(compression)n" <"$WORK/layer" | put application/vnd.oci.image.layer.v1.tar+gzip)
    config=$(image_config "$difference" "$@" | put application/vnd.oci.image.config.v1+json)
    jq -n --argjson config "$config" --argjson layer "$layer" \
        '{schemaVersion: 2, mediaType: "application/vnd.oci.image.manifest.v1+json", config: $config, layers: [$layer]}' |
        put application/vnd.oci.image.manifest.v1+json |
        jq --arg architecture "$1" '. + {platform: {architecture: $architecture, os: "linux"}}'
}

# Images that are not distributed are compressed quickly.
compression() { if [[ $LIBRARIES == yes ]]; then say 1; else say 9; fi; }

# image_config DIFFERENCE ARCHITECTURE PROGRAM CONFIGURATION
image_config() {
    jq -n --arg difference "$1" --arg architecture "$2" --arg program "/usr/bin/$3" \
        --arg configuration "/etc/dpu-offload/$4" --arg version "$VERSION" --arg revision "$(commit)" \
        --arg time "$(date --date="@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" '{
            created: $time, architecture: $architecture, os: "linux",
            config: {
                Entrypoint: [$program],
                Cmd: ["--config", $configuration],
                Env: ["PATH=/usr/bin"],
                WorkingDir: "/",
                Labels: {
                    "org.opencontainers.image.version": $version,
                    "org.opencontainers.image.revision": $revision,
                    "org.opencontainers.image.licenses": "Apache-2.0",
                },
            },
            rootfs: {type: "layers", diff_ids: [$difference]},
            history: [{created: $time, created_by: "hack/package"}],
        }'
}

# name_it NAME: writes the layout's index, which refers to the one index in it.
name_it() {
    jq --arg name "$1" '{schemaVersion: 2, mediaType: "application/vnd.oci.image.index.v1+json", manifests: [. + {
        annotations: {"org.opencontainers.image.ref.name": $name, "io.containerd.image.name": $name}}]}'
}

# put TYPE: stores standard input as a blob of the layout, and prints its descriptor.
put() {
    local blob=$LAYOUT/blobs/blob digest
    cat >"$blob"
    digest=$(sum "$blob")
    jq -n --arg type "$1" --arg digest "sha256:$digest" --argjson size "$(stat --format=%s "$blob")" \
        '{mediaType: $type, digest: $digest, size: $size}'
    mv "$blob" "$LAYOUT/blobs/sha256/$digest"
}

sum() { sha256sum <"$1" | cut -d' ' -f1; }

# archive FOLDER: a tar that depends only on the folder's files.
archive() {
    (cd "$1" && tar --create --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -- *)
}
