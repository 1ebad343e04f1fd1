//! Puts the plugin and the CNI configuration where a runtime looks for them, and takes them away: for the agent's
//! image, whose files no package manager installs on the host.
//!
//! A runtime may start the plugin and read its configurations at any moment, so each file is replaced as a whole, by
//! rename; and with the configuration there the runtime starts pods, so it is the last to come and the first to go.
//! Whoever is killed in between leaves old or new files, and finishes when called again.
//!
//! Locked is the folder of plugins (`flock`): the agents of a host with several DPUs, each in a pod of its own,
//! install the same plugin, perhaps at once. Nobody else writes these files.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use serde_json::Value;

use crate::whole_file;

/// The plugin's name: `type` of its configurations, and its file's.
const PLUGIN: &str = "host-shim";
/// A file without which containerd before 2.0 starts no pod.
const LOOPBACK: &str = "loopback";
const EXECUTABLE: u32 = 0o755;
const READABLE: u32 = 0o644;

/// What to do with the files of a runtime, rather than to be its agent.
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
    /// Take the CNI configuration, and then the CNI plugin, away
    Uninstall {
        /// Where they are
        #[command(flatten)]
        places: Places,
    },
}

/// Where a runtime looks.
#[derive(Debug, clap::Args)]
pub struct Places {
    /// The runtime's folder of CNI plugins
    #[arg(long, value_name = "FOLDER", default_value = "/opt/cni/bin")]
    plugin_folder: PathBuf,
    /// The CNI configuration in the runtime's folder of them
    #[arg(long, value_name = "FILE", default_value = "/etc/cni/net.d/10-dpu-offload.conflist")]
    conflist: PathBuf,
}

/// Why it can't be done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InstallError {
    /// What is to be installed is no configuration list.
    #[error("{} is no CNI configuration list: {why}; nothing is installed", path.display())]
    NoConflist {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The system refused something.
    #[error("can't {doing}, and what comes after it is not done: see to the cause and call again")]
    Io {
        /// What.
        doing: String,
        /// Why.
        source: io::Error,
    },
}

fn cannot(doing: &str, path: &Path) -> impl FnOnce(io::Error) -> InstallError {
    let doing = format!("{doing} {}", path.display());
    move |source| InstallError::Io { doing, source }
}

/// Does it, and returns what it did: a line for each file.
///
/// # Errors
/// [`InstallError`].
pub fn run(task: &Task) -> Result<String, InstallError> {
    let lines = match task {
        Task::Install { plugin, from, places } => install(plugin, from, places)?,
        Task::Uninstall { places } => uninstall(places)?,
    };
    Ok(lines.join("\n") + "\n")
}

/// Nothing is changed before both files were read and found good.
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
    let needs_loopback =
        "there is no plugin `loopback`, which containerd before 2.0 needs: install the CNI plugins";
    if !folder.join(LOOPBACK).exists() {
        lines.push(format!("{}: {needs_loopback}", folder.display()));
    }
    Ok(lines)
}

/// A runtime passes over what it can't read: its pods would wait for ever, and nobody would know for what.
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
        return Ok(format!("{}: is as it was", path.display()));
    }
    whole_file::replace_with_mode(path, content, mode).map_err(cannot("write", path))?;
    Ok(format!("{}: written", path.display()))
}

/// A link is none, whatever it leads to: a package may take that away.
fn is_as(path: &Path, content: &[u8], mode: u32) -> bool {
    let is_file = |found: fs::Metadata| found.is_file() && found.mode() & 0o7777 == mode;
    fs::symlink_metadata(path).is_ok_and(is_file)
        && fs::read(path).is_ok_and(|found| found == content)
}

fn uninstall(places: &Places) -> Result<Vec<String>, InstallError> {
    let Places { plugin_folder: folder, conflist } = places;
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

/// Another CNI configuration beside this one that names the plugin, as that of a second DPU.
fn user_of_plugin(conflist: &Path) -> Option<PathBuf> {
    let named = format!("\"{PLUGIN}\"");
    let beside =
        fs::read_dir(conflist.parent()?).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let names = |path: &PathBuf| fs::read_to_string(path).is_ok_and(|text| text.contains(&named));
    beside.filter(|path| path != conflist && path != &whole_file::unfinished(conflist)).find(names)
}

/// With what one that was killed has left of it.
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

/// Whether there was anything.
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
