//! Compiles the `.proto` files with protox, so that builds do not need protoc.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost::Message;

const FILES: [&str; 3] =
    ["offload/v1/types.proto", "offload/v1/workload_network.proto", "offload/v1/operator.proto"];

/// The codec of the generated code.
const CODEC: &str = "crate::codec::LeanCodec";

/// The messages with maps, generated as BTreeMap so that their encoding is deterministic.
const MAPS: &str = ".offload.v1.Sysctls";

/// APIs of other projects. They are not reflected and not serialised as JSON.
const FOREIGN: [&str; 3] =
    ["kubelet/deviceplugin.proto", "kubelet/podresources.proto", "metropolis/workloads.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=offload");
    let descriptors = protox::compile(FILES, ["."])?;
    let encoded = descriptors.encode_to_vec();
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("offload.v1.descriptors"), &encoded)?;
    let generator = tonic_prost_build::configure().codec_path(CODEC).btree_map(MAPS);
    generator.compile_fds(descriptors)?;
    foreign()?;
    serialisation(&encoded)
}

fn foreign() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=kubelet");
    println!("cargo:rerun-if-changed=metropolis");
    let descriptors = protox::compile(FOREIGN, ["."])?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}

/// Generates protobuf's JSON form with zeros and empty lists, because a reader also looks for `vf: 0`. Unknown fields
/// are ignored: the plugin and the agent's records hold attachments in this form, and an upgrade does not replace all
/// programs at once.
fn serialisation(descriptors: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut builder = pbjson_build::Builder::new();
    builder.register_descriptors(descriptors)?.emit_fields().ignore_unknown_fields();
    builder.btree_map([MAPS]);
    builder.build(&[".offload.v1"])?;
    with_plain_numbers(&PathBuf::from(env::var("OUT_DIR")?).join("offload.v1.serde.rs"))
}

/// Replaces JSON strings for 64-bit numbers by `crate::number`, because programs need numbers to count and sort.
/// Reading accepts both.
fn with_plain_numbers(generated: &Path) -> Result<(), Box<dyn Error>> {
    let code = fs::read_to_string(generated)?;
    let lines = code.lines().map(|line| match line.split_once("ToString::to_string(") {
        Some((before, value)) => {
            format!("{before}&crate::number::Number(*{}", value.replace(").as_str()", ")"))
        }
        None => line.to_owned(),
    });
    fs::write(generated, lines.collect::<Vec<_>>().join("\n"))?;
    Ok(())
}
