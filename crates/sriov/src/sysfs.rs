//! Access to files and links below /sys.

use std::{
    fs, io,
    path::{Path, PathBuf},
    str::FromStr,
};

use crate::{Error, PciAddress};

/// The root of sysfs: `/sys`, or a test's folder.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::at("/sys")
    }
}

impl Sysfs {
    /// Uses the sysfs below `root`.
    #[must_use]
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn bus(&self) -> PathBuf {
        self.root.join("bus/pci")
    }

    pub(crate) fn device(&self, address: PciAddress) -> PathBuf {
        self.bus().join("devices").join(address.to_string())
    }

    /// Lists all PCI devices by address.
    pub(crate) fn addresses(&self) -> Result<Vec<PciAddress>, Error> {
        let names = entries(&self.bus().join("devices"))?;
        let mut addresses: Vec<_> = names.iter().filter_map(|name| name.parse().ok()).collect();
        addresses.sort_unstable();
        Ok(addresses)
    }
}

/// Lists the names in a folder. A folder that does not exist is empty.
pub(crate) fn entries(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error::Read { path: folder.to_owned(), source };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    entries
        .map(|entry| Ok(entry.map_err(failed)?.file_name().to_string_lossy().into_owned()))
        .collect()
}

/// Reads a file without its final newline. `None`: the file does not exist.
pub(crate) fn text(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Reads a number. `None`: the file does not exist.
pub(crate) fn number<N: FromStr>(path: &Path) -> Result<Option<N>, Error> {
    let Some(text) = text(path)? else { return Ok(None) };
    match text.parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::Content { path: path.to_owned(), text, expected: "number" }),
    }
}

/// The last component of a symbolic link's target. `None`: the link does not exist.
pub(crate) fn link_target(path: &Path) -> Result<Option<String>, Error> {
    match fs::read_link(path) {
        Ok(target) => Ok(target.file_name().map(|name| name.to_string_lossy().into_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// The device that a symbolic link points to. `None`: the link does not exist.
pub(crate) fn linked_device(path: &Path) -> Result<Option<PciAddress>, Error> {
    let Some(name) = link_target(path)? else { return Ok(None) };
    match name.parse() {
        Ok(address) => Ok(Some(address)),
        Err(_) => {
            Err(Error::Content { path: path.to_owned(), text: name, expected: "PCI address" })
        }
    }
}

pub(crate) fn write(path: &Path, value: &str) -> Result<(), Error> {
    let refused =
        |source| Error::Write { path: path.to_owned(), value: value.trim_end().into(), source };
    let mut file = fs::OpenOptions::new().write(true).open(path).map_err(refused)?;
    io::Write::write_all(&mut file, value.as_bytes()).map_err(refused)
}
