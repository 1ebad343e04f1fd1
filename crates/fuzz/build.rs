//! Declares `cfg(fuzzing)`. In the manifest that would take the place of the workspace's lints.
#![allow(clippy::print_stdout, reason = "how a build script speaks to cargo")]

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
}
