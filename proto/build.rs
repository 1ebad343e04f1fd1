//! Compiles the `.proto` files with protox, so that nobody has to install protoc.

use std::{
    env,
    error::Error,
    fs,
    path::{Path, PathBuf},
};

use prost::Message;

const FILES: [&str; 3] =
    ["offload/v1/types.proto", "offload/v1/workload_network.proto", "offload/v1/operator.proto"];

/// What the generated code has messages encoded by.
const CODEC: &str = "crate::codec::LeanCodec";

/// What has maps, which are written in order.
const MAPS: &str = ".offload.v1.Sysctls";

/// Others' own interfaces, which are not part of ours: nothing reflects or serialises them.
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

/// Protobuf's JSON form, with zeros and empty lists: a program that reads it looks for `vf: 0`, too.
/// Fields of a later version are passed over: the plugin and the agent's records have attachments in
/// this form, and an upgrade does not replace all programs at once.
fn serialisation(descriptors: &[u8]) -> Result<(), Box<dyn Error>> {
    let mut builder = pbjson_build::Builder::new();
    builder.register_descriptors(descriptors)?.emit_fields().ignore_unknown_fields();
    builder.btree_map([MAPS]);
    builder.build(&[".offload.v1"])?;
    with_plain_numbers(&PathBuf::from(env::var("OUT_DIR")?).join("offload.v1.serde.rs"))
}

/// Protobuf's JSON form has numbers of 64 bits as strings. Programs that count and sort need numbers, which
/// `crate::number` writes; the reading code takes both.
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
