//! Network namespaces. Only this module enters one.

use std::{
    ffi::{CString, OsStr},
    fmt, fs,
    io::{self, Write},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{
            ffi::OsStrExt,
            fs::{FileTypeExt, MetadataExt},
            process::CommandExt,
        },
    },
    path::Path,
    process::{self, Command},
};

use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    sched::{CloneFlags, setns},
    sys::{
        stat::{Mode, fstat},
        statfs::{NSFS_MAGIC, fstatfs},
    },
};
use serde::{Deserialize, Serialize};

use crate::error::{Error, NetnsError};

/// The namespace of the calling thread. `/proc/self` would be that of the process's main thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// An open network namespace.
///
/// It keeps the namespace and the links inside alive, so never keep a pod's longer than one call. A socket that was
/// opened in the namespace, such as an [`Rtnl`](crate::Rtnl), also keeps it alive.
#[derive(Debug)]
pub struct Netns {
    fd: OwnedFd,
    id: NetnsId,
}

/// Identifies a namespace, whatever path leads to it. The kernel may reuse the number of a dead namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NetnsId {
    /// Device number of nsfs.
    pub dev: u64,
    /// Inode number on that device.
    pub inode: u64,
}

impl From<&fs::Metadata> for NetnsId {
    fn from(metadata: &fs::Metadata) -> Self {
        Self { dev: metadata.dev(), inode: metadata.ino() }
    }
}

impl fmt::Display for NetnsId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.dev, self.inode)
    }
}

impl Netns {
    /// Opens the calling thread's namespace.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn current() -> Result<Self, NetnsError> {
        Self::open(Path::new(OWN))
    }

    /// Opens the namespace that is mounted at `path`, or that a path such as `/proc/1/ns/net` leads to.
    ///
    /// The file is identified through `O_PATH` before it is opened, so a FIFO cannot block the call and no device is
    /// touched.
    ///
    /// # Errors
    /// If there is no network namespace at `path`. The error says what is there.
    pub fn open(path: &Path) -> Result<Self, NetnsError> {
        let unreadable = |errno| NetnsError::from_errno(path, errno);
        let not_a_netns = |what| NetnsError::NotANetns { path: path.to_owned(), what };

        let place =
            open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty()).map_err(unreadable)?;
        let file_system = fstatfs(&place).map_err(unreadable)?;
        if file_system.filesystem_type() != NSFS_MAGIC {
            return Err(not_a_netns(kind_of_file(&place).map_err(unreadable)?));
        }
        // Reopens the same file through /proc: a second lookup of `path` could find another file.
        let readable = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let same_place = format!("/proc/self/fd/{}", place.as_raw_fd());
        let fd = open(same_place.as_str(), readable, Mode::empty()).map_err(unreadable)?;
        if !is_network(fd.as_fd()).map_err(unreadable)? {
            return Err(not_a_netns("another kind of namespace"));
        }
        let id = id_of(&fd).map_err(unreadable)?;
        Ok(Self { fd, id })
    }

    /// The identity of this namespace.
    #[must_use]
    pub fn id(&self) -> NetnsId {
        self.id
    }

    /// Runs `work` inside the namespace on the calling thread and returns to the thread's own namespace afterwards.
    ///
    /// `work` must not start a thread: it would stay in the namespace. If the thread cannot return, the process aborts.
    ///
    /// # Errors
    /// If the thread may not enter the namespace or may not return. A panic of `work` is passed on.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> Result<T, Error> {
        let failed = |errno| Error::errno_of("enter a network namespace", errno);
        let own = own().map_err(failed)?;
        if id_of(&own).map_err(failed)? == self.id {
            return Ok(work());
        }
        // Test the way back first. Entering its own namespace changes nothing, and fails if the thread lacks the
        // permission to return later.
        enter(&own).map_err(failed)?;
        enter(&self.fd).map_err(failed)?;
        let _way_back = WayBack(own);
        Ok(work())
    }

    /// A command whose process runs in the namespace that is mounted at `path` when the command is spawned.
    ///
    /// The child enters the namespace between fork and exec, so that the calling thread never leaves its own and
    /// the command keeps no namespace alive. As with `nsenter --net`, `/sys` still shows the links of the namespace
    /// in which it was mounted. If the child cannot enter, [`Command::spawn`] fails with the error.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if `path` contains a zero byte.
    #[expect(unsafe_code, reason = "`pre_exec` is the only place between fork and exec")]
    pub fn command(path: &Path, program: impl AsRef<OsStr>) -> io::Result<Command> {
        // Allocate before the fork: in the child of a process with threads, another thread may have held the
        // allocator's lock.
        let path = CString::new(path.as_os_str().as_bytes())?;
        let enter_namespace = move || {
            let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
            let netns = open(path.as_c_str(), flags, Mode::empty())?;
            enter(&netns).map_err(io::Error::from)
        };
        let mut command = Command::new(program);
        // SAFETY: the closure makes three system calls (openat, setns, close). It neither allocates nor locks.
        unsafe { command.pre_exec(enter_namespace) };
        Ok(command)
    }
}

/// Returns the thread to this namespace when dropped.
struct WayBack(OwnedFd);

impl Drop for WayBack {
    /// Aborts if the thread cannot return: in the wrong namespace its later work would change another pod's links.
    fn drop(&mut self) {
        if let Err(errno) = enter(&self.0) {
            // Not the log: its writer might not flush before the abort.
            let _ = writeln!(io::stderr(), "a thread can't leave a network namespace: {errno}");
            process::abort();
        }
    }
}

fn own() -> Result<OwnedFd, Errno> {
    open(OWN, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

#[expect(clippy::disallowed_methods, reason = "`run` brings the thread back")]
fn enter(netns: &OwnedFd) -> Result<(), Errno> {
    setns(netns, CloneFlags::CLONE_NEWNET)
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn metadata(fd: &OwnedFd) -> Result<fs::Metadata, Errno> {
    let failed = |error: io::Error| Errno::from_raw(error.raw_os_error().unwrap_or(0));
    fs::metadata(format!("/proc/self/fd/{}", fd.as_raw_fd())).map_err(failed)
}

fn id_of(fd: &OwnedFd) -> Result<NetnsId, Errno> {
    let found = fstat(fd)?;
    Ok(NetnsId { dev: found.st_dev, inode: found.st_ino })
}

fn kind_of_file(fd: &OwnedFd) -> Result<&'static str, Errno> {
    let kind = metadata(fd)?.file_type();
    Ok(match () {
        () if kind.is_file() => "a regular file",
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    })
}

/// Checks the type with `NS_GET_NSTYPE`: nsfs holds every kind of namespace.
#[expect(unsafe_code, reason = "there is no safe wrapper of this ioctl")]
fn is_network(namespace: BorrowedFd<'_>) -> Result<bool, Errno> {
    nix::ioctl_none!(ns_get_nstype, 0xb7, 0x3);
    // SAFETY: the descriptor is open for the whole call, and NS_GET_NSTYPE has no argument.
    let kind = unsafe { ns_get_nstype(namespace.as_raw_fd()) }?;
    Ok(kind == CloneFlags::CLONE_NEWNET.bits())
}
