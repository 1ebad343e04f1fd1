# Reads cargo's metadata: $package with all crates that $crate contains.

def purl: "pkg:cargo/\(.name)@\(.version)";

def component($kind):
    {type: $kind, "bom-ref": purl, name, version, purl: purl}
    + if .license then {licenses: [{expression: (.license | gsub("/"; " OR "))}]} else {} end
    + ($sums[0]["\(.name) \(.version)"] | if . then {hashes: [{alg: "SHA-256", content: .}]} else {} end);

# Dependencies at run time, without those only for tests or the build.
def needs: [.deps[] | select(any(.dep_kinds[]; .kind == null)) | .pkg];

def reached($nodes; $from):
    {seen: [], next: $from}
    | until(.next == []; .seen = (.seen + .next | unique) | .seen as $seen
        | .next = ([.next[] | $nodes[.][]] | unique | . - $seen))
    | .seen;

(.packages | INDEX(.id)) as $packages
| (.resolve.nodes | map({key: .id, value: needs}) | from_entries) as $nodes
| (.packages[] | select(.name == $crate and .source == null)) as $root
| reached($nodes; [$root.id]) as $ids
| {
    bomFormat: "CycloneDX",
    specVersion: "1.5",
    version: 1,
    metadata: {
        timestamp: $time,
        component: ($root | component("application") + {name: $package, version: $version}),
    },
    components: [$ids[] | select(. != $root.id) | $packages[.] | component("library")] | sort_by(.purl),
    dependencies: [$ids[] as $id | {
        ref: ($packages[$id] | purl),
        dependsOn: ([$nodes[$id][] | $packages[.] | purl] | unique),
    }] | sort_by(.ref),
}
