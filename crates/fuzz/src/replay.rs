//! Every input of the corpus, once.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
};

/// Names the input at which a check panicked.
struct Named<'a>(&'a Path);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("with the input {}", self.0.display());
        }
    }
}

pub(crate) fn all(name: &str, check: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    let inputs = inputs(&folder);
    assert!(!inputs.is_empty(), "the corpus {} is empty", folder.display());
    for path in &inputs {
        let _named = Named(path);
        check(&fs::read(path).unwrap());
    }
    println!("figure: {} hostile inputs replayed", inputs.len());
}

fn inputs(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}
