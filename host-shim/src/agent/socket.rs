//! The socket on which callers reach the agent.

use std::{
    fs, io,
    os::unix::{
        fs::FileTypeExt,
        net::{UnixListener as StdListener, UnixStream as StdStream},
    },
    path::{Path, PathBuf},
};

use bootstrap::{FolderError, private_folder, private_socket};
use listenfd::ListenFd;
use tokio::net::{UnixListener, UnixStream};

/// Why the agent cannot listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other users could replace the agent's socket by their own.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another agent listens on the socket.
    #[error("another agent listens on {}", .0.display())]
    InUse(PathBuf),
    /// The path exists and is no socket.
    #[error("{} exists and is no socket", .0.display())]
    NotASocket(PathBuf),
    /// systemd holds a socket for the agent at another path than the configured one.
    #[error(
        "systemd holds a socket for the agent, but not {}: let `ListenStream` of the socket unit and \
         `socket` of the configuration name the same",
        .0.display()
    )]
    NotHeld(PathBuf),
    /// The system refused.
    #[error("cannot listen on {}", path.display())]
    Io {
        /// The socket's path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

pub(super) struct Socket {
    listener: UnixListener,
    /// The path of a socket that ends with the agent. `None`: systemd holds the socket, and callers wait in it for the
    /// next agent.
    own: Option<PathBuf>,
}

impl Drop for Socket {
    /// Removes the socket, so that callers see at once that no agent listens. A leftover is replaced at the next start.
    fn drop(&mut self) {
        if let Some(path) = &self.own {
            let _ = fs::remove_file(path);
        }
    }
}

impl Socket {
    /// Keeps a socket that systemd holds. The agent's own socket is closed with all callers in its queue: they then
    /// look for the next agent's socket instead of waiting for this one.
    pub(super) fn unless_own(self) -> Option<Self> {
        self.own.is_none().then_some(self)
    }

    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }
}

/// Listens on `path`: on the socket that systemd holds for the agent, or else on a new one.
///
/// # Errors
/// See [`ListenError`].
pub(super) fn listen(path: &Path) -> Result<Socket, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let held = held().map_err(failed)?;
    if held.is_empty() { bind(path) } else { take(held, path) }
}

/// The Unix sockets that systemd passes.
fn held() -> io::Result<Vec<StdListener>> {
    let mut passed = ListenFd::from_env();
    (0..passed.len()).filter_map(|index| passed.take_unix_listener(index).transpose()).collect()
}

/// The passed socket that is at `path`.
fn take(held: Vec<StdListener>, path: &Path) -> Result<Socket, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    let is_there = |listener: &StdListener| {
        listener.local_addr().is_ok_and(|address| address.as_pathname() == Some(path))
    };
    let listener = held.into_iter().find(is_there);
    let listener = listener.ok_or_else(|| ListenError::NotHeld(path.to_owned()))?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(Socket { listener: UnixListener::from_std(listener).map_err(failed)?, own: None })
}

/// Replaces a socket on which no agent listens.
fn bind(path: &Path) -> Result<Socket, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    remove_stale(path)?;
    let listener = private_socket(path).and_then(UnixListener::from_std).map_err(failed)?;
    Ok(Socket { listener, own: Some(path.to_owned()) })
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    // The kernel accepts connections only while a process listens; a killed agent's socket refuses them.
    if StdStream::connect(path).is_ok() {
        return Err(ListenError::InUse(path.to_owned()));
    }
    fs::remove_file(path).map_err(|source| ListenError::Io { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use std::{fs::Permissions, os::unix::fs::PermissionsExt};

    use super::*;

    #[tokio::test]
    async fn agent_socket_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/agent.sock");
        let _listener = listen(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[tokio::test]
    async fn folder_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
        let path = folder.path().join("agent.sock");
        assert!(matches!(listen(&path), Err(ListenError::Folder(_))));
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn only_stale_sockets_are_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed agent leaves its socket");
        let _second = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(ListenError::InUse(_))));
    }

    #[tokio::test]
    async fn own_socket_ends_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(listen(&path).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn systemd_socket_outlives_its_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let held = StdListener::bind(&path).unwrap();
        drop(take(vec![held.try_clone().unwrap()], &path).unwrap());
        assert!(path.exists());
        StdStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn systemd_socket_at_other_path_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let held = StdListener::bind(folder.path().join("other.sock")).unwrap();
        let refused = take(vec![held], &folder.path().join("agent.sock")).err().unwrap();
        assert!(matches!(&refused, ListenError::NotHeld(_)), "{refused}");
        assert!(refused.to_string().contains("`ListenStream`"), "{refused}");
    }

    #[tokio::test]
    async fn file_at_socket_path_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
