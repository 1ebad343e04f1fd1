//! The walls of the code: which crates import which, as docs/ARCHITECTURE.md draws it, and no circle of files.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use syn::{Attribute, Item, UseTree, Visibility};

type Names = Vec<String>;
type Graph = BTreeMap<String, BTreeSet<String>>;

/// Crates of tests and tools, which may import whatever they try.
const TOOLS: [&str; 5] = ["e2e", "fuzz", "manual", "protocol-model", "test-clock"];

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The members of the workspace: each one's name, folder and Cargo.toml.
fn members() -> Vec<(String, PathBuf, toml::Table)> {
    let read = |path: &Path| -> toml::Table { fs::read_to_string(path).unwrap().parse().unwrap() };
    let workspace = read(&repository().join("Cargo.toml"));
    let members = workspace["workspace"]["members"].as_array().unwrap().iter().map(|member| {
        let folder = repository().join(member.as_str().unwrap());
        let manifest = read(&folder.join("Cargo.toml"));
        (manifest["package"]["name"].as_str().unwrap().to_owned(), folder, manifest)
    });
    members.collect()
}

#[test]
fn crates_import_what_the_map_draws() {
    let (members, mut actual, mut drawn) = (members(), Graph::new(), Graph::new());
    let names: BTreeSet<_> = members.iter().map(|(name, ..)| name.as_str()).collect();
    for (name, _, manifest) in &members {
        let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
        let ours = dependencies.into_iter().flat_map(toml::Table::keys);
        let ours = ours.filter(|it| names.contains(it.as_str())).cloned();
        let edges: BTreeSet<_> = ours.collect();
        if !edges.is_empty() && !TOOLS.contains(&name.as_str()) {
            actual.insert(name.clone(), edges);
        }
    }
    let page = fs::read_to_string(repository().join("docs/ARCHITECTURE.md")).unwrap();
    for (from, to) in page.lines().filter_map(|line| line.split_once(" --> ")) {
        let each =
            |side: &str| side.split('&').map(|name| name.trim().to_owned()).collect::<Names>();
        for from in each(from).into_iter().filter(|name| names.contains(name.as_str())) {
            drawn.entry(from).or_default().extend(each(to));
        }
    }
    assert_eq!(actual, drawn, "left: Cargo.toml; right: docs/ARCHITECTURE.md");
}

#[test]
fn only_netlink_holds_unsafe_code() {
    for (name, folder, _) in members() {
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
        for root in roots.iter().filter(|root| root.exists()) {
            let forbids = fs::read_to_string(root).unwrap().contains("#![forbid(unsafe_code)]");
            assert_eq!(
                forbids,
                !["netlink", "fuzz"].contains(&name.as_str()),
                "{}",
                root.display()
            );
        }
    }
}

/// A module: where it is, what it imports, and what it passes on by `pub use`, by the name that others know it by.
struct Module {
    file: PathBuf,
    imports: Vec<Names>,
    exports: BTreeMap<String, Names>,
}

type Modules = BTreeMap<Names, Module>;

fn is_test(attributes: &[Attribute]) -> bool {
    let test =
        |it: &Attribute| it.meta.require_list().is_ok_and(|list| list.tokens.to_string() == "test");
    attributes.iter().any(|it| it.path().is_ident("cfg") && test(it))
}

/// Notes a module of these items, and those below it. `folder`: where files of those are.
fn note(items: &[Item], file: &Path, folder: &Path, path: &Names, modules: &mut Modules) {
    let mut module = Module { file: file.into(), imports: vec![], exports: BTreeMap::new() };
    for item in items {
        match item {
            // What another crate's tests lend is no module of this crate's own.
            Item::Mod(inner) if inner.attrs.iter().any(|it| it.path().is_ident("path")) => {}
            Item::Mod(inner) if !is_test(&inner.attrs) => {
                let name = inner.ident.to_string();
                let (folder, path) = (folder.join(&name), [path.clone(), vec![name]].concat());
                match &inner.content {
                    Some((_, items)) => note(items, file, &folder, &path, modules),
                    None => {
                        let flat = folder.with_extension("rs");
                        let file = if flat.exists() { flat } else { folder.join("mod.rs") };
                        let source = syn::parse_file(&fs::read_to_string(&file).unwrap()).unwrap();
                        note(&source.items, &file, &folder, &path, modules);
                    }
                }
            }
            Item::Use(used) if !is_test(&used.attrs) => {
                leaves(&used.tree, vec![], &mut |names, known_as| match used.vis {
                    Visibility::Inherited => module.imports.push(names),
                    _ => drop(module.exports.insert(known_as, names)),
                });
            }
            _ => {}
        }
    }
    modules.insert(path.clone(), module);
}

fn leaves(tree: &UseTree, before: Names, note: &mut impl FnMut(Names, String)) {
    match tree {
        UseTree::Path(it) => leaves(&it.tree, [before, vec![it.ident.to_string()]].concat(), note),
        UseTree::Name(it) => {
            note([before, vec![it.ident.to_string()]].concat(), it.ident.to_string());
        }
        UseTree::Rename(it) => {
            note([before, vec![it.ident.to_string()]].concat(), it.rename.to_string());
        }
        UseTree::Glob(_) => note(before, "*".into()),
        UseTree::Group(group) => group.items.iter().for_each(|it| leaves(it, before.clone(), note)),
    }
}

/// The file that defines what a module of this path names so. `None`: another crate does.
fn defined_in<'a>(modules: &'a Modules, at: &[String], names: &[String]) -> Option<&'a Path> {
    let (first, rest) = names.split_first()?;
    let absolute = match first.as_str() {
        "crate" => rest.to_vec(),
        "self" => [at, rest].concat(),
        "super" if rest.first().is_some_and(|next| next == "super") => {
            return defined_in(modules, &at[..at.len() - 1], rest);
        }
        "super" => [&at[..at.len() - 1], rest].concat(),
        _ => [at, names].concat(),
    };
    let length = (0..=absolute.len()).rev().find(|it| modules.contains_key(&absolute[..*it]))?;
    let (path, below) = absolute.split_at(length);
    let is_foreign = !["crate", "self", "super"].contains(&first.as_str()) && length <= at.len();
    match below.first().and_then(|name| modules[path].exports.get(name)) {
        _ if is_foreign => None,
        Some(target) => defined_in(modules, path, target).or(Some(&modules[path].file)),
        None => Some(&modules[path].file),
    }
}

#[test]
fn no_files_import_in_a_circle() {
    let mut circles = BTreeSet::new();
    for (_, folder, _) in members().into_iter().filter(|(name, ..)| !TOOLS.contains(&name.as_str()))
    {
        let roots = ["src/lib.rs", "src/main.rs"].map(|root| folder.join(root));
        for root in roots.iter().filter(|root| root.exists()) {
            let (mut modules, mut graph) = (Modules::new(), BTreeMap::<_, BTreeSet<_>>::new());
            let source = syn::parse_file(&fs::read_to_string(root).unwrap()).unwrap();
            note(&source.items, root, &folder.join("src"), &vec![], &mut modules);
            for (path, module) in &modules {
                let used =
                    module.imports.iter().filter_map(|names| defined_in(&modules, path, names));
                let others = used.filter(|file| *file != module.file);
                graph.entry(module.file.as_path()).or_default().extend(others);
            }
            for start in graph.keys() {
                let (mut seen, mut next) = (BTreeSet::new(), vec![*start]);
                while let Some(file) = next.pop() {
                    next.extend(graph[file].iter().filter(|it| seen.insert(**it)));
                }
                circles.extend(seen.contains(start).then(|| start.display().to_string()));
            }
        }
    }
    assert!(
        circles.is_empty(),
        "files that import each other, by way of others or not: {circles:#?}"
    );
}
