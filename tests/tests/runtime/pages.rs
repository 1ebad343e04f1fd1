//! Commands that the pages of docs/ contain.

use std::{fs, path::Path};

/// A page of docs/.
pub(crate) fn page(name: &str) -> String {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    fs::read_to_string(docs.join(name)).unwrap()
}

/// The block of a page that contains these words.
pub(crate) fn shown(page: &str, words: &str) -> String {
    let mut blocks = page.split("\n```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(words));
    let block = block.unwrap_or_else(|| panic!("no block of the page has {words:?}"));
    let (_, lines) = block.split_once('\n').unwrap();
    format!("{lines}\n")
}

/// The command in a page's text with this start.
pub(crate) fn reported(page: &str, beginning: &str) -> String {
    let mut commands = page.split('`').filter(|code| code.starts_with(beginning));
    commands.next().unwrap_or_else(|| panic!("the page tells no {beginning:?}")).to_owned()
}

/// Script line that writes a file.
pub(crate) fn writes(path: &str, text: &str) -> String {
    format!("cat >{path} <<'END_OF_FILE'\n{text}END_OF_FILE\n")
}
