//! What the kernel refuses, and how it is told.

use std::{
    error, fmt, io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

/// A request that the kernel refused or did not answer.
///
/// Shown as `cannot <operation>: <why>`, where why is the kernel's own sentence if it gave one,
/// and the text of its error number if not.
#[derive(Debug)]
#[expect(clippy::error_impl_error, reason = "its users read it as netlink::Error")]
pub struct Error {
    operation: String,
    cause: Cause,
}

#[derive(Debug)]
enum Cause {
    /// The kernel said no, in a sentence or by number.
    Refused { errno: Errno, sentence: Option<String> },
    /// The kernel's answer could not be understood.
    Answer(String),
}

impl Error {
    pub(crate) fn refused(
        operation: impl Into<String>,
        errno: Errno,
        sentence: Option<String>,
    ) -> Self {
        Self { operation: operation.into(), cause: Cause::Refused { errno, sentence } }
    }

    pub(crate) fn errno_of(operation: impl Into<String>, errno: Errno) -> Self {
        Self::refused(operation, errno, None)
    }

    pub(crate) fn io(operation: impl Into<String>, source: &io::Error) -> Self {
        match source.raw_os_error() {
            Some(number) => Self::errno_of(operation, Errno::from_raw(number)),
            None => Self::answer(operation, source.to_string()),
        }
    }

    pub(crate) fn answer(operation: impl Into<String>, why: impl Into<String>) -> Self {
        Self { operation: operation.into(), cause: Cause::Answer(why.into()) }
    }

    /// The kernel's error number, if it gave one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            Cause::Refused { errno, .. } => Some(*errno),
            Cause::Answer(_) => None,
        }
    }

    /// Whether the thing asked about does not exist: a link, an address, a route, a file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
        matches!(self.errno(), Some(ENODEV | ENOENT | ESRCH | EADDRNOTAVAIL))
    }

    /// Whether the thing to be made exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// Whether somebody uses the thing to be taken away.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY)
    }

    /// Whether the caller may not.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.errno().is_some_and(is_forbidden)
    }

    /// Whether file descriptors or memory are used up.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.errno().is_some_and(is_exhausted)
    }

    /// Whether the kernel or the device can't do this at all.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot {}: ", self.operation)?;
        match &self.cause {
            Cause::Refused { sentence: Some(sentence), .. } => out.write_str(sentence),
            Cause::Refused { errno, sentence: None } => out.write_str(errno.desc()),
            Cause::Answer(why) => out.write_str(why),
        }
    }
}

impl error::Error for Error {}

fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::EPERM | Errno::EACCES)
}

fn is_exhausted(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
}

/// A path that leads to no network namespace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetnsError {
    /// Nothing is there: no file, or a symbolic link that leads nowhere.
    #[error("there is no network namespace {path}: no such file", path = path.display())]
    Missing {
        /// What was asked for.
        path: PathBuf,
    },
    /// Something else is there. A regular file is what a namespace that was unmounted leaves.
    #[error("{path} is not a network namespace but {what}", path = path.display())]
    NotANetns {
        /// What was asked for.
        path: PathBuf,
        /// What is there, with its article.
        what: &'static str,
    },
    /// It could not be looked at.
    #[error("cannot open the network namespace {path}: {errno}", path = path.display(), errno = errno.desc())]
    Unreadable {
        /// What was asked for.
        path: PathBuf,
        /// Why.
        errno: Errno,
    },
}

impl NetnsError {
    pub(crate) fn from_errno(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => Self::Missing { path },
            errno => Self::Unreadable { path, errno },
        }
    }

    /// Whether the caller may not look at it.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unreadable { errno, .. } if is_forbidden(*errno))
    }

    /// Whether file descriptors or memory are used up.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Unreadable { errno, .. } if is_exhausted(*errno))
    }

    /// Whether no network namespace is there (any more), rather than one that can't be opened.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotANetns { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sentence_wins_over_the_number() {
        let told = Error::refused("set MTU 5", Errno::EINVAL, Some("too small".into()));
        assert!(told.to_string().ends_with("set MTU 5: too small"), "{told}");
        let numbered = Error::errno_of("set MTU 5", Errno::EINVAL);
        assert!(numbered.to_string().ends_with("set MTU 5: Invalid argument"), "{numbered}");
        assert_eq!(numbered.errno(), Some(Errno::EINVAL));
    }

    #[test]
    fn used_up_descriptors_and_memory_are_told() {
        let is_exhausted = |errno| Error::errno_of("open a socket", errno).is_exhausted();
        assert!(is_exhausted(Errno::EMFILE) && is_exhausted(Errno::ENOBUFS));
        assert!(!is_exhausted(Errno::EINVAL) && !Error::answer("read", "nonsense").is_exhausted());
    }
}
