//! Declares `cfg(fuzzing)`. A declaration in the manifest would replace the workspace's lints.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
}
