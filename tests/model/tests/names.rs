//! Checks that the functions in the model's comments exist in the programs. A name is text in backticks with `::`
//! in it, unless it is a link: a file's path, and a function in that file.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The folders of the paths in names.
const ROOTS: [&str; 3] = ["host-shim/src/agent", "dpu-service/src", "crates"];

fn files_below(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        match path.is_dir() {
            true => files.extend(files_below(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

fn names_in(line: &str) -> Vec<String> {
    // Quoted and unquoted pieces alternate.
    let pieces: Vec<_> = line.split('`').collect();
    let quoted = pieces.chunks_exact(2).filter(|pair| !pair[0].ends_with('['));
    let names = quoted.map(|pair| pair[1]).filter(|quoted| quoted.contains("::"));
    names.map(str::to_owned).collect()
}

fn is_in_the_programs(name: &str) -> bool {
    let Some((file, function)) = name.split_once("::") else { return false };
    let definitions = [format!("fn {function}("), format!("fn {function}<")];
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let sources = ROOTS.map(|root| fs::read_to_string(repository.join(root).join(file)));
    let has_it = |source: &String| definitions.iter().any(|it| source.contains(it));
    sources.iter().flatten().any(has_it)
}

#[test]
fn functions_in_comments_exist() -> io::Result<()> {
    let mut names = Vec::new();
    for file in files_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"))? {
        let source = fs::read_to_string(file)?;
        let comments = source.lines().filter(|line| line.trim_start().starts_with("//"));
        names.extend(comments.flat_map(names_in));
    }
    assert!(names.len() > 50, "only {} names were found", names.len());
    names.retain(|name| !is_in_the_programs(name));
    assert!(names.is_empty(), "not as FILE::FUNCTION in any of {ROOTS:?}: {names:#?}");
    Ok(())
}

#[test]
fn unknown_function_names_are_found() {
    let line = "/// `Agent::attach`, `dpu/calls.rs::no_such`, `calls.rs::detach_by_key`: [`crate::agent`].";
    let names = names_in(line);
    assert_eq!(names, ["Agent::attach", "dpu/calls.rs::no_such", "calls.rs::detach_by_key"]);
    assert!(!names.iter().any(|name| is_in_the_programs(name)));
    assert!(is_in_the_programs("dpu/calls.rs::detach_by_key"));
}
