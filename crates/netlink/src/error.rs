//! Refusals of the kernel.

use std::{
    error, fmt, io,
    path::{Path, PathBuf},
};

use nix::errno::Errno;

/// A request that the kernel refused or did not answer.
///
/// Shown as `cannot <operation>: <why>`. The reason is the kernel's extended acknowledgement, or else the text of the
/// error number.
#[derive(Debug)]
#[expect(clippy::error_impl_error, reason = "its users read it as netlink::Error")]
pub struct Error {
    operation: String,
    cause: RefusalCause,
}

#[derive(Debug)]
pub(crate) enum RefusalCause {
    /// The kernel refused, with a sentence (extended acknowledgement) or only an error number.
    Kernel { errno: Errno, sentence: Option<String> },
    /// The kernel's answer could not be understood.
    Answer(String),
}

impl RefusalCause {
    pub(crate) fn into_error(self, operation: impl Into<String>) -> Error {
        Error { operation: operation.into(), cause: self }
    }
}

impl Error {
    pub(crate) fn errno_of(operation: impl Into<String>, errno: Errno) -> Self {
        RefusalCause::Kernel { errno, sentence: None }.into_error(operation)
    }

    pub(crate) fn io(operation: impl Into<String>, source: &io::Error) -> Self {
        match source.raw_os_error() {
            Some(number) => Self::errno_of(operation, Errno::from_raw(number)),
            None => Self::answer(operation, source.to_string()),
        }
    }

    pub(crate) fn answer(operation: impl Into<String>, why: impl Into<String>) -> Self {
        RefusalCause::Answer(why.into()).into_error(operation)
    }

    /// The kernel's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match &self.cause {
            RefusalCause::Kernel { errno, .. } => Some(*errno),
            RefusalCause::Answer(_) => None,
        }
    }

    /// Whether the object does not exist: a link, address, route or file.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        use Errno::{EADDRNOTAVAIL, ENODEV, ENOENT, ESRCH};
        matches!(self.errno(), Some(ENODEV | ENOENT | ESRCH | EADDRNOTAVAIL))
    }

    /// Whether the object to create exists already.
    #[must_use]
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// Whether the object is in use.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.errno() == Some(Errno::EBUSY)
    }

    /// Whether the caller lacks the permission.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.errno().is_some_and(is_forbidden)
    }

    /// Whether file descriptors or memory are exhausted.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.errno().is_some_and(is_exhausted)
    }

    /// Whether the kernel or the device does not support the request.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.errno() == Some(Errno::EOPNOTSUPP)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot {}: ", self.operation)?;
        match &self.cause {
            RefusalCause::Kernel { sentence: Some(sentence), .. } => out.write_str(sentence),
            RefusalCause::Kernel { errno, sentence: None } => out.write_str(errno.desc()),
            RefusalCause::Answer(why) => out.write_str(why),
        }
    }
}

impl error::Error for Error {}

/// Treats the removal of something that has vanished as done.
///
/// # Errors
/// Any other refusal.
pub fn gone_is_done(outcome: Result<(), Error>) -> Result<(), Error> {
    outcome.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

fn is_forbidden(errno: Errno) -> bool {
    matches!(errno, Errno::EPERM | Errno::EACCES)
}

fn is_exhausted(errno: Errno) -> bool {
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOBUFS)
}

/// Why a path does not lead to a network namespace.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum NetnsError {
    #[error("there is no network namespace {path}: no such file", path = path.display())]
    Missing { path: PathBuf },
    /// The path leads to something else. Unmounting a namespace leaves a regular file behind.
    #[error("{path} is not a network namespace but {what}", path = path.display())]
    NotANetns {
        path: PathBuf,
        /// What is there, with its article.
        what: &'static str,
    },
    #[error("cannot open the network namespace {path}: {errno}", path = path.display(), errno = errno.desc())]
    Unreadable { path: PathBuf, errno: Errno },
}

impl NetnsError {
    pub(crate) fn from_errno(path: &Path, errno: Errno) -> Self {
        let path = path.to_owned();
        match errno {
            Errno::ENOENT | Errno::ENOTDIR => Self::Missing { path },
            errno => Self::Unreadable { path, errno },
        }
    }

    /// Whether the caller lacks the permission to open the path.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Unreadable { errno, .. } if is_forbidden(*errno))
    }

    /// Whether file descriptors or memory are exhausted.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Unreadable { errno, .. } if is_exhausted(*errno))
    }

    /// Whether no network namespace is at the path, in contrast to one that cannot be opened.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::NotANetns { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_sentence_precedes_error_number() {
        let cause =
            RefusalCause::Kernel { errno: Errno::EINVAL, sentence: Some("too small".into()) };
        let error = cause.into_error("set MTU 5");
        assert!(error.to_string().ends_with("set MTU 5: too small"), "{error}");
        let numbered = Error::errno_of("set MTU 5", Errno::EINVAL);
        assert!(numbered.to_string().ends_with("set MTU 5: Invalid argument"), "{numbered}");
        assert_eq!(numbered.errno(), Some(Errno::EINVAL));
    }

    #[test]
    fn exhausted_resources_are_recognised() {
        let is_exhausted = |errno| Error::errno_of("open a socket", errno).is_exhausted();
        assert!(is_exhausted(Errno::EMFILE) && is_exhausted(Errno::ENOBUFS));
        assert!(!is_exhausted(Errno::EINVAL) && !Error::answer("read", "nonsense").is_exhausted());
    }
}
