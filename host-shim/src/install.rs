//! Installs the plugin and the CNI configuration in a runtime's folders, and removes them. Used by the agent's
//! container image, whose files no package manager installs on the host.
//!
//! A runtime may start the plugin and read configurations at any moment, so each file is replaced by rename. With the
//! configuration in place the runtime starts pods: it is installed last and removed first. A killed run leaves old or
//! new files; the next run finishes.
//!
//! The lock is a `flock` of the plugin folder: agents of several DPUs, each in its own pod, may install the same plugin
//! at once.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::whole_file;

/// The plugin's file name, and `type` in its configurations.
const PLUGIN: &str = "host-shim";
/// A plugin without which containerd before 2.0 starts no pod.
const LOOPBACK: &str = "loopback";
const EXECUTABLE: u32 = 0o755;
const READABLE: u32 = 0o644;

/// What to do with a runtime's files.
#[derive(Debug, clap::Subcommand)]
pub enum Task {
    /// Put the CNI plugin, and then the CNI configuration, where the runtime looks for them
    Install {
        /// The plugin to install
        #[arg(long, value_name = "FILE", default_value = "/usr/bin/host-shim")]
        plugin: PathBuf,
        /// The CNI configuration to install
        #[arg(
            long,
            value_name = "FILE",
            default_value = "/etc/dpu-offload/10-dpu-offload.conflist"
        )]
        from: PathBuf,
        /// Where they go
        #[command(flatten)]
        places: Places,
    },
    /// Remove the CNI configuration, and then the CNI plugin
    Uninstall {
        /// Where they are
        #[command(flatten)]
        places: Places,
    },
}

/// The runtime's folders.
#[derive(Debug, clap::Args)]
pub struct Places {
    /// The runtime's folder of CNI plugins
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    plugin_folder: PathBuf,
    /// The CNI configuration in the runtime's folder of them
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-dpu-offload.conflist")]
    conflist: PathBuf,
}

/// Why installing or uninstalling failed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum InstallError {
    #[error("{} is no CNI configuration list: {why}; nothing is installed", path.display())]
    NoConflist { path: PathBuf, why: String },
    #[error(
        "cannot {doing}; the remaining steps were not done: remove the cause and run the command again"
    )]
    Io {
        /// The operation and its file.
        doing: String,
        source: io::Error,
    },
}

fn cannot(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let doing = format!("{doing} {}", path.display());
    move |source| InstallError::Io { doing, source }
}

/// Performs the task and returns one line for each file.
///
/// # Errors
/// See [`InstallError`].
pub fn run(task: &Task) -> Result<String, InstallError> {
    let lines = match task {
        Task::Install { plugin, from, places } => install(plugin, from, places)?,
        Task::Uninstall { places } => uninstall(places)?,
    };
    Ok(lines.join("\n") + "\n")
}

/// Both files are read and checked before anything is changed.
fn install(plugin: &Path, from: &Path, places: &Places) -> Result<Vec<String>, InstallError> {
    let conflist = fs::read(from).map_err(cannot("read the CNI configuration", from))?;
    check(&conflist, from)?;
    let plugin = fs::read(plugin).map_err(cannot("read the plugin", plugin))?;
    let folder = &places.plugin_folder;
    let _lock = made_and_locked(folder)?;
    let mut lines = vec![put(&folder.join(PLUGIN), &plugin, EXECUTABLE)?];
    saga::pass("plugin-installed");
    make(places.conflist.parent().unwrap_or(folder))?;
    lines.push(put(&places.conflist, &conflist, READABLE)?);
    saga::pass("conflist-installed");
    if !folder.join(LOOPBACK).exists() {
        lines.push(format!(
            "{}: there is no plugin `loopback`, which containerd before 2.0 needs: install the CNI plugins",
            folder.display()
        ));
    }
    Ok(lines)
}

/// Checks the list: a runtime silently ignores an invalid one, and pods would wait without an error.
fn check(conflist: &[u8], path: &Path) -> Result<(), InstallError> {
    let wrong = |why: String| InstallError::NoConflist { path: path.to_owned(), why };
    let list: Value = serde_json::from_slice(conflist).map_err(|error| wrong(error.to_string()))?;
    let mut plugins = list["plugins"].as_array().into_iter().flatten();
    if plugins.any(|plugin| plugin["type"] == PLUGIN) {
        return Ok(());
    }
    Err(wrong(format!("none of its `plugins` is of the type {PLUGIN}")))
}

fn put(path: &Path, content: &[u8], mode: u32) -> Result<String, InstallError> {
    if is_as(path, content, mode) {
        return Ok(format!("{}: unchanged", path.display()));
    }
    whole_file::replace_with_mode(path, content, mode).map_err(cannot("write", path))?;
    Ok(format!("{}: written", path.display()))
}

/// Whether the file already has this content and mode. A symbolic link does not count: a package may remove its target.
fn is_as(path: &Path, content: &[u8], mode: u32) -> bool {
    let is_file = |found: fs::Metadata| found.is_file() && found.mode() & 0o7777 == mode;
    fs::symlink_metadata(path).is_ok_and(is_file)
        && fs::read(path).is_ok_and(|found| found == content)
}

fn uninstall(places: &Places) -> Result<Vec<String>, InstallError> {
    let Places { plugin_folder: folder, conflist } = places;
    // Locking the folder would create it.
    if !folder.exists() {
        return Ok(vec![remove(conflist)?]);
    }
    let _lock = made_and_locked(folder)?;
    let mut lines = vec![remove(conflist)?];
    saga::pass("conflist-removed");
    let plugin = folder.join(PLUGIN);
    lines.push(match user_of_plugin(conflist) {
        Some(user) => format!("{}: stays, for {} names it", plugin.display(), user.display()),
        None => remove(&plugin)?,
    });
    saga::pass("plugin-removed");
    Ok(lines)
}

/// Another CNI configuration in the folder that names the plugin, for example that of a second DPU.
fn user_of_plugin(conflist: &Path) -> Option<PathBuf> {
    let named = format!("\"{PLUGIN}\"");
    let beside =
        fs::read_dir(conflist.parent()?).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let names = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(&named));
    beside.filter(|path| path != conflist && path != &whole_file::unfinished(conflist)).find(names)
}

/// Removes a file and the temporary file that a killed run may have left.
fn remove(path: &Path) -> Result<String, InstallError> {
    let removed = unless_missing(fs::remove_file(path)).map_err(cannot("remove", path))?;
    let unfinished = whole_file::unfinished(path);
    unless_missing(fs::remove_file(&unfinished)).map_err(cannot("remove", &unfinished))?;
    let folder = path.parent().unwrap_or(path);
    unless_missing(File::open(folder).and_then(|folder| folder.sync_all()))
        .map_err(cannot("write", folder))?;
    let what = if removed { "removed" } else { "was not there" };
    Ok(format!("{}: {what}", path.display()))
}

/// Whether the file existed.
fn unless_missing(done: io::Result<()>) -> io::Result<bool> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        done => done.map(|()| true),
    }
}

fn made_and_locked(folder: &Path) -> Result<File, InstallError> {
    make(folder)?;
    let lock = File::open(folder).map_err(cannot("open", folder))?;
    lock.lock().map_err(cannot("lock", folder))?;
    Ok(lock)
}

fn make(folder: &Path) -> Result<(), InstallError> {
    fs::create_dir_all(folder).map_err(cannot("create", folder))
}

#[cfg(test)]
mod tests;
