//! Sysctls of the calling thread's network namespace, below `/proc/sys/net`.

use std::{
    fmt,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

use crate::error::Error;

/// Longest value: a number and a newline.
const LONGEST: usize = 24;

/// The protocol that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, including ARP.
    V4,
    /// IPv6, including neighbour discovery.
    V6,
}

impl fmt::Display for Family {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        })
    }
}

/// Sets `net.<family>.conf.<interface>.<key>` in the calling thread's namespace, unless it has the value already.
///
/// `/proc/sys/net` shows the namespace of the thread that opens it. The comparison avoids a write, because some
/// settings take RTNL. A move of the link resets its settings.
///
/// # Errors
/// If the interface or key does not exist, or the value differs and `/proc/sys` is read-only.
pub fn set_sysctl(family: Family, interface: &str, key: &str, value: &str) -> Result<(), Error> {
    let path = path(family, interface, key)?;
    set(&path, value)
        .map_err(|error| Error::io(format!("write {value} to {}", path.display()), &error))
}

/// Reads `net.<family>.conf.<interface>.<key>` in the calling thread's namespace.
///
/// # Errors
/// If the interface or key does not exist.
pub fn sysctl(family: Family, interface: &str, key: &str) -> Result<String, Error> {
    let path = path(family, interface, key)?;
    let text = fs::read_to_string(&path)
        .map_err(|error| Error::io(format!("read {}", path.display()), &error))?;
    Ok(text.trim_end().to_owned())
}

/// Raises the number in `net.<family>.neigh.default.<key>` to `least` if it is lower. Only the initial network
/// namespace has this setting; all namespaces share it.
///
/// # Errors
/// If the key does not exist, or its value is lower and cannot be written.
pub fn raise_neighbour_threshold(family: Family, key: &str, least: u32) -> Result<(), Error> {
    let path = PathBuf::from(format!("/proc/sys/net/{family}/neigh/default/{key}"));
    raise(&path, least)
        .map_err(|error| Error::io(format!("raise {} to {least}", path.display()), &error))
}

fn raise(path: &Path, least: u32) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    match text.trim_end().parse::<u32>() {
        Ok(number) if number >= least => Ok(()),
        _ => set(path, &least.to_string()),
    }
}

fn set(path: &Path, value: &str) -> io::Result<()> {
    let opened = File::options().read(true).write(true).open(path);
    let (file, refusal) = match opened {
        Ok(file) => (file, None),
        Err(refusal) => (File::open(path)?, Some(refusal)),
    };
    if is(&file, value)? {
        return Ok(());
    }
    // The kernel accepts one write at offset 0.
    refusal.map_or_else(|| file.write_all_at(value.as_bytes(), 0), Err)
}

fn is(file: &File, value: &str) -> io::Result<bool> {
    let mut text = [0; LONGEST];
    let length = file.read_at(&mut text, 0)?;
    Ok(text[..length].trim_ascii_end() == value.as_bytes())
}

fn path(family: Family, interface: &str, key: &str) -> Result<PathBuf, Error> {
    let names_a_file =
        |name: &str| !name.is_empty() && !name.contains('/') && !name.starts_with('.');
    if names_a_file(interface) && names_a_file(key) {
        Ok(PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{key}")))
    } else {
        let operation = format!("find the setting {key:?} of the interface {interface:?}");
        Err(Error::errno_of(operation, Errno::ENOENT))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbour_threshold_is_never_lowered() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("gc_thresh3");
        for (before, after) in [("1024\n", "65536"), ("65536\n", "65536\n"), ("99999\n", "99999\n")]
        {
            fs::write(&path, before).unwrap();
            raise(&path, 65_536).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap().trim_end(), after.trim_end());
        }
        assert!(raise(&folder.path().join("none"), 1).is_err());
    }

    #[test]
    fn sysctl_names_cannot_leave_the_folder() {
        for (interface, key) in [("..", "x"), ("eth0", "../../x"), ("", "x"), ("eth0", "")] {
            assert!(path(Family::V4, interface, key).unwrap_err().is_not_found());
        }
        let path = path(Family::V6, "eth0.7", "accept_ra").unwrap();
        assert_eq!(path.to_str(), Some("/proc/sys/net/ipv6/conf/eth0.7/accept_ra"));
    }
}
