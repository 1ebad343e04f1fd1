//! Replays every input of the corpus once.

use std::{fs::File, io::Read, path::Path, thread};

use flate2::read::GzDecoder;
use tar::Archive;

struct Input {
    name: String,
    bytes: Vec<u8>,
}

/// Prints the input's name if a check panics.
struct Named<'a>(&'a str);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("with the input {}", self.0);
        }
    }
}

pub(crate) fn all(name: &str, check: fn(&[u8])) {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let inputs = inputs(&corpora.join(format!("{name}.tar.gz")));
    assert!(!inputs.is_empty(), "the corpus of {name} is empty");
    for input in &inputs {
        let _named = Named(&input.name);
        check(&input.bytes);
    }
    println!("figure: {} hostile inputs replayed", inputs.len());
}

/// The archive's inputs in their order.
fn inputs(archive: &Path) -> Vec<Input> {
    let file = File::open(archive).unwrap_or_else(|error| {
        panic!("{}, the target's corpus: {error}", archive.display());
    });
    let mut archive = Archive::new(GzDecoder::new(file));
    archive.entries().unwrap().map(|entry| input(entry.unwrap())).collect()
}

fn input(mut entry: tar::Entry<'_, impl Read>) -> Input {
    let name = entry.path().unwrap().display().to_string();
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).unwrap();
    Input { name, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "no_such_target.tar.gz, the target's corpus: No such file")]
    fn a_target_without_a_corpus_fails() {
        all("no_such_target", |_| {});
    }

    #[test]
    #[should_panic(expected = "given")]
    fn every_input_is_given_to_the_check() {
        all("cni_input", |_| panic!("given"));
    }
}
