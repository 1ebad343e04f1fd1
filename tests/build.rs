//! Compiles the container runtimes' interface with protox, so that nobody has to install protoc.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cri.proto");
    let descriptors = protox::compile(["cri.proto"], ["."])?;
    tonic_prost_build::configure().build_server(false).compile_fds(descriptors)?;
    Ok(())
}
