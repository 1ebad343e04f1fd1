//! Settings of the calling thread's network namespace below `/proc/sys/net`.

use std::{fmt, fs, path::PathBuf};

use nix::errno::Errno;

use crate::Error;

/// Which protocol a setting is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4, and ARP.
    V4,
    /// IPv6, and neighbour discovery.
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

/// Sets `net.<family>.conf.<interface>.<key>` of the calling thread's namespace: what
/// `/proc/sys/net` shows depends on the thread that looks. A move of the link resets it.
///
/// # Errors
/// When there is no such interface or key, or `/proc/sys` is mounted read-only.
pub fn set_sysctl(family: Family, interface: &str, key: &str, value: &str) -> Result<(), Error> {
    let path = path(family, interface, key)?;
    fs::write(&path, value)
        .map_err(|error| Error::io(format!("write {value} to {}", path.display()), &error))
}

/// Reads `net.<family>.conf.<interface>.<key>` of the calling thread's namespace.
///
/// # Errors
/// When there is no such interface or key.
pub fn read_sysctl(family: Family, interface: &str, key: &str) -> Result<String, Error> {
    let path = path(family, interface, key)?;
    fs::read_to_string(&path)
        .map(|value| value.trim_end().to_owned())
        .map_err(|error| Error::io(format!("read {}", path.display()), &error))
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
    fn names_cannot_leave_the_folder() {
        for (interface, key) in [("..", "x"), ("eth0", "../../x"), ("", "x"), ("eth0", "")] {
            assert!(path(Family::V4, interface, key).unwrap_err().is_not_found());
        }
        let path = path(Family::V6, "eth0.7", "accept_ra").unwrap();
        assert_eq!(path.to_str(), Some("/proc/sys/net/ipv6/conf/eth0.7/accept_ra"));
    }
}
