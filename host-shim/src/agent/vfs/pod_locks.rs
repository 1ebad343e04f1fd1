//! The locks of pods' network namespaces, which all agents of a host share: a host has one for each DPU.
//!
//! A pod's rules and route priorities belong to no single interface. A task that changes them first reads those of the
//! pod's other interfaces; two tasks at the same time would miss each other.

use std::{fs::File, io, os::fd::AsFd, path::Path, sync::Arc, time::Duration};

use bootstrap::{private_file, private_folder};
use keyed_locks::{Held, KeyedLocks};
use netlink::NetnsId;
use nix::{
    errno::Errno,
    fcntl::{FcntlArg, fcntl},
    libc,
};
use offload_proto::{Failure, Reason};
use tokio::time::{Instant, sleep};

/// How long another agent may be at work on a pod: a hundred times what that takes. One that is suspended amid
/// that must not stop this one; its caller pays with this time for each try, and a DEL tries twice.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether it is done.
const LOOK: Duration = Duration::from_millis(5);

/// The locks, by namespace.
#[derive(Debug)]
pub(in crate::agent) struct PodLocks {
    /// Each byte is the lock of the namespace of that inode number. The kernel releases the lock of an agent that dies.
    /// The number alone is enough: all namespaces of a kernel are in its one nsfs. With two, a pod would wait for another
    /// one without need, and still none would enter early.
    file: Arc<File>,
    /// All that this agent locks in the file is one owner's, whom the kernel never makes wait for itself.
    in_agent: KeyedLocks<NetnsId>,
    patience: Duration,
}

/// A held lock. Dropping it lets the next one in.
#[derive(Debug)]
#[must_use = "the lock is held only as long as this is"]
pub(in crate::agent) struct PodLock {
    // Dropped in this order: the byte is unlocked before another task of this agent may enter.
    _byte: Byte,
    _in_agent: Held,
}

/// A byte of the file that is locked.
#[derive(Debug)]
struct Byte {
    file: Arc<File>,
    position: libc::off_t,
}

impl PodLocks {
    /// Opens the file that the host's agents share, or creates it in a folder of root's.
    ///
    /// # Errors
    /// When it can't be created or opened.
    pub(in crate::agent) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            private_folder(folder).map_err(io::Error::other)?;
        }
        let mut options = File::options();
        let file = private_file(path, options.write(true).create(true).truncate(false))?;
        Ok(Self { file: Arc::new(file), in_agent: KeyedLocks::default(), patience: TIMEOUT })
    }

    /// Waits for the lock of a pod's namespace: within this agent behind all who wait for it already, and for
    /// other agents as long as their work takes.
    ///
    /// # Errors
    /// [`Reason::MoveFailed`]: another agent has it for too long, or the kernel refuses.
    pub(super) async fn lock(&self, netns: NetnsId) -> Result<PodLock, Failure> {
        let in_agent = self.in_agent.lock(&netns).await;
        let position = libc::off_t::try_from(netns.inode).unwrap_or(libc::off_t::MAX - 1);
        let deadline = Instant::now() + self.patience;
        while !self.try_byte(position).map_err(|errno| refused(netns, errno.desc()))? {
            if Instant::now() >= deadline {
                let why = "another agent of this host has held its lock for too long";
                return Err(refused(netns, why));
            }
            sleep(LOOK).await;
        }
        let byte = Byte { file: Arc::clone(&self.file), position };
        Ok(PodLock { _byte: byte, _in_agent: in_agent })
    }

    /// Locks a byte, unless another agent has.
    fn try_byte(&self, position: libc::off_t) -> Result<bool, Errno> {
        match set_lock(&self.file, libc::F_WRLCK, position) {
            Ok(()) => Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for Byte {
    fn drop(&mut self) {
        if let Err(errno) = set_lock(&self.file, libc::F_UNLCK, self.position) {
            tracing::error!(%errno, "cannot unlock a pod");
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the C library's own small constants")]
fn set_lock(file: &File, kind: libc::c_int, position: libc::off_t) -> Result<(), Errno> {
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: position,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&lock)).map(drop)
}

fn refused(netns: NetnsId, why: &str) -> Failure {
    let message = format!("cannot lock the pod's network namespace {netns}: {why}");
    Failure::new(Reason::MoveFailed, message)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tempfile::TempDir;

    use super::*;

    const POD: NetnsId = NetnsId { dev: 4, inode: 0xf000_0007 };

    /// The locks as two agents of a host have them.
    fn two_agents() -> ([PodLocks; 2], TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/pods.lock");
        ([(); 2].map(|()| PodLocks::open(&path).unwrap()), folder)
    }

    #[tokio::test]
    async fn pod_lock_excludes_other_agents() {
        let ([ours, theirs], _folder) = two_agents();
        let held = ours.lock(POD).await.unwrap();
        let other = NetnsId { inode: POD.inode + 1, ..POD };
        let _other = theirs.lock(other).await.unwrap();
        let mut waiting = Box::pin(theirs.lock(POD));
        assert!((&mut waiting).now_or_never().is_none(), "two agents have one pod");
        drop(held);
        let _held = waiting.await.unwrap();
        assert!(ours.lock(POD).now_or_never().is_none());
    }

    #[tokio::test]
    async fn pod_lock_excludes_other_calls() {
        let ([ours, theirs], _folder) = two_agents();
        let held = ours.lock(POD).await.unwrap();
        let mut waiting = Box::pin(ours.lock(POD));
        assert!((&mut waiting).now_or_never().is_none(), "two of one agent have one pod");
        drop(held);
        let _held = waiting.await.unwrap();
        assert!(theirs.lock(POD).now_or_never().is_none(), "the other agent has it as well");
    }

    #[tokio::test]
    async fn suspended_agent_does_not_block_others() {
        let ([ours, mut theirs], _folder) = two_agents();
        theirs.patience = Duration::ZERO;
        let _held = ours.lock(POD).await.unwrap();
        let failure = theirs.lock(POD).await.unwrap_err();
        assert!(failure.message.contains("too long"), "{failure}");
    }
}
