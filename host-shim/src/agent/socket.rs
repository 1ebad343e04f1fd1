//! The socket on which the plugin reaches the agent.

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

/// Why the agent can't listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Other users could put their own socket in the place of the agent's.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Another agent listens there.
    #[error("another agent listens on {}", .0.display())]
    InUse(PathBuf),
    /// There is something else.
    #[error("{} is there already and is no socket", .0.display())]
    NotASocket(PathBuf),
    /// systemd holds a socket for the agent, which is not where the configuration has it.
    #[error(
        "systemd holds a socket for the agent, but not {}: let `ListenStream` of the socket unit and \
         `socket` of the configuration name the same",
        .0.display()
    )]
    NotHeld(PathBuf),
    /// The system refused.
    #[error("can't listen on {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket that is listened on.
pub(super) struct Socket {
    listener: UnixListener,
    /// Where it is, if it ends with the agent. `None`: systemd holds it, and callers wait in it for
    /// the next agent.
    own: Option<PathBuf>,
}

impl Drop for Socket {
    /// Nobody is to find a socket that nobody listens on. One that stays all the same is replaced.
    fn drop(&mut self) {
        if let Some(path) = &self.own {
            let _ = fs::remove_file(path);
        }
    }
}

impl Socket {
    /// The socket, unless it is the agent's own: that ends, and with it all that wait in it. They look for the next
    /// agent's, rather than hear nothing from one that answers no more.
    pub(super) fn unless_own(self) -> Option<Self> {
        self.own.is_none().then_some(self)
    }

    /// The next caller.
    pub(super) async fn accept(&self) -> io::Result<UnixStream> {
        let (stream, _) = self.listener.accept().await?;
        Ok(stream)
    }
}

/// Listens on `path`: on the socket that systemd holds for the agent, or else on one of its own.
///
/// # Errors
/// [`ListenError`].
pub(super) fn listen(path: &Path) -> Result<Socket, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let held = held().map_err(failed)?;
    if held.is_empty() { bind(path) } else { take(held, path) }
}

/// The sockets that systemd passes.
fn held() -> io::Result<Vec<StdListener>> {
    let mut passed = ListenFd::from_env();
    (0..passed.len()).filter_map(|index| passed.take_unix_listener(index).transpose()).collect()
}

/// That one of the sockets that is at `path`.
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

/// Listens in place of a socket that no agent listens on any more.
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
    async fn the_socket_is_closed_to_others() {
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
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed agent leaves its socket");
        let _second = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(ListenError::InUse(_))));
    }

    #[tokio::test]
    async fn a_socket_ends_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(listen(&path).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_systemd_holds_outlives_its_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        let held = StdListener::bind(&path).unwrap();
        drop(take(vec![held.try_clone().unwrap()], &path).unwrap());
        assert!(path.exists());
        StdStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn a_held_socket_in_another_place_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let held = StdListener::bind(folder.path().join("other.sock")).unwrap();
        let refused = take(vec![held], &folder.path().join("agent.sock")).err().unwrap();
        assert!(matches!(&refused, ListenError::NotHeld(_)), "{refused}");
        assert!(refused.to_string().contains("`ListenStream`"), "{refused}");
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
