//! Files, folders and sockets that no other user may change.
//!
//! Modes are set after creation as well: the umask clears bits of the mode that a file is created with.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io,
    os::{
        fd::AsRawFd,
        unix::{
            fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
            net::UnixListener,
        },
    },
    path::{self, Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    sys::{
        socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket},
        stat::{Mode, fchmod},
    },
    unistd::geteuid,
};

const PRIVATE_FILE: u32 = 0o600;
const PRIVATE_FOLDER: u32 = 0o700;
/// Only the owner of an entry may rename or remove it.
const STICKY: u32 = 0o1000;
/// Most links on the way to a folder, as in the kernel (`MAXSYMLINKS`).
const MOST_LINKS: usize = 40;

/// Why a folder can't hold state or a socket.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum FolderError {
    #[error("cannot use folder {}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "folder {} belongs to user {owner}, who can replace files in it: \
         run `chown {}` on it, or configure another one", path.display(), geteuid()
    )]
    Owner {
        /// The folder, or one that it is in.
        path: PathBuf,
        owner: u32,
    },
    #[error(
        "link {} belongs to user {owner}, who can point it elsewhere: \
         run `chown -h {}` on it, or configure the folder that it leads to", path.display(), geteuid()
    )]
    Link { path: PathBuf, owner: u32 },
    #[error(
        "folder {} has mode {mode:04o}, which lets other users replace files in it: \
         run `chmod go-w` on it", path.display()
    )]
    Writable {
        /// The folder, or one that it is in.
        path: PathBuf,
        mode: u32,
    },
}

/// Creates a folder for state or a socket, with mode 0700, unless it exists. Folders that it is in are created the
/// same way.
///
/// # Errors
/// [`FolderError`]: a user other than root and the program's own could replace files in the folder, the folder
/// itself, or a link on the way to it.
pub fn private_folder(path: &Path) -> Result<(), FolderError> {
    let absolute =
        path::absolute(path).map_err(|source| FolderError::Io { path: path.to_owned(), source })?;
    let mut walk = Walk::default();
    walk.along(&absolute, true)?;
    check(&walk.at, is_open)
}

/// Resolves a path component by component, as the kernel does (path_resolution(7)). Checks every folder and link before
/// it looks into it.
#[derive(Default)]
struct Walk {
    /// The current folder: a path without links.
    at: PathBuf,
    links: usize,
}

impl Walk {
    /// `creates`: missing folders are created.
    fn along(&mut self, path: &Path, creates: bool) -> Result<(), FolderError> {
        for component in path.components() {
            match component {
                Component::Normal(name) => self.enter(&self.at.join(name), creates)?,
                Component::ParentDir => drop(self.at.pop()),
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => self.at = "/".into(),
            }
        }
        Ok(())
    }

    /// Enters an entry of the current folder.
    fn enter(&mut self, entry: &Path, creates: bool) -> Result<(), FolderError> {
        check(&self.at, is_open_to_all)?;
        let failed = |source| FolderError::Io { path: entry.to_owned(), source };
        if creates {
            create(entry).map_err(failed)?;
        }
        let found = fs::symlink_metadata(entry).map_err(failed)?;
        if !found.is_symlink() {
            self.at = entry.to_owned();
            return Ok(());
        }
        if !is_trusted_owner(found.uid()) {
            return Err(FolderError::Link { path: entry.to_owned(), owner: found.uid() });
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(failed(Errno::ELOOP.into()));
        }
        // A link to a folder that does not exist may lead to a file system that is not mounted.
        self.along(&fs::read_link(entry).map_err(failed)?, false)
    }
}

/// Opens a file with mode 0600. `options` must request write access, and say whether the file is created.
///
/// # Errors
/// If the file cannot be opened, or belongs to another user.
pub fn private_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(PRIVATE_FILE).open(path)?;
    if !is_trusted_owner(file.metadata()?.uid()) {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it belongs to another user"));
    }
    file.set_permissions(Permissions::from_mode(PRIVATE_FILE))?;
    Ok(file)
}

/// Listens on a new non-blocking socket with mode 0600.
///
/// # Errors
/// If the path exists, or the system refuses.
pub fn private_socket(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let bound = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // The kernel creates the file with the mode of the unbound socket, less the umask. So no process can connect between
    // `bind` and a later `chmod` (net/unix/af_unix.c, unix_bind_bsd).
    fchmod(&bound, Mode::from_bits_truncate(PRIVATE_FILE))?;
    bind(bound.as_raw_fd(), &UnixAddr::new(path)?)?;
    // Restores the bits that the umask removed. Nothing can connect before `listen`.
    fs::set_permissions(path, Permissions::from_mode(PRIVATE_FILE))?;
    listen(&bound, Backlog::MAXALLOWABLE)?;
    Ok(bound.into())
}

/// Whether a file's owner is trusted: the program's own user, or root.
///
/// The owner of `/` counts as root, because in a user namespace that does not map root its number differs.
#[must_use]
pub fn is_trusted_owner(owner: u32) -> bool {
    owner == 0
        || owner == geteuid().as_raw()
        || fs::metadata("/").is_ok_and(|root| root.uid() == owner)
}

/// Creates a private folder unless an entry with that name exists.
fn create(path: &Path) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    match DirBuilder::new().mode(PRIVATE_FOLDER).create(path) {
        Ok(()) => fs::set_permissions(path, Permissions::from_mode(PRIVATE_FOLDER)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn check(folder: &Path, is_open: fn(u32) -> bool) -> Result<(), FolderError> {
    let path = folder.to_owned();
    let found = match fs::metadata(folder) {
        Ok(found) if !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
        found => found,
    };
    match found {
        Err(source) => Err(FolderError::Io { path, source }),
        Ok(found) if !is_trusted_owner(found.uid()) => {
            Err(FolderError::Owner { path, owner: found.uid() })
        }
        Ok(found) if is_open(found.mode()) => {
            Err(FolderError::Writable { path, mode: found.mode() & 0o7777 })
        }
        Ok(_) => Ok(()),
    }
}

/// Whether other users may write to a folder.
const fn is_open(mode: u32) -> bool {
    mode & 0o022 != 0
}

/// Whether any user may rename the folder's entries. A folder's group is its owner's choice.
const fn is_open_to_all(mode: u32) -> bool {
    mode & 0o002 != 0 && mode & STICKY == 0
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// Gives an entry to another user. `false`: not possible, as in a user namespace without other users.
    fn give_away(path: &Path) -> bool {
        let is_given = lchown(path, Some(4711), None).is_ok();
        let map = fs::read_to_string("/proc/self/uid_map").unwrap();
        let is_real_root =
            map.split_whitespace().eq(["0", "0", "4294967295"]) && geteuid().is_root();
        assert!(is_given || !is_real_root, "root can't give {} away", path.display());
        is_given
    }

    #[test]
    fn folder_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (above, path) = (folder.path().join("above"), folder.path().join("above/state"));
        for given in [&path, &above] {
            private_folder(&path).unwrap();
            if give_away(given) {
                let error = private_folder(&path).unwrap_err();
                let is_named =
                    matches!(&error, FolderError::Owner { path, owner: 4711 } if path == given);
                assert!(is_named, "{error}");
                lchown(given, Some(geteuid().as_raw()), None).unwrap();
            }
        }
    }

    #[test]
    fn link_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        set_mode(folder.path(), 0o1777);
        let (safe, link) = (folder.path().join("safe"), folder.path().join("link"));
        private_folder(&safe).unwrap();
        symlink("safe", &link).unwrap();
        for path in [&link, &link.join("state")] {
            private_folder(path).unwrap();
        }
        if give_away(&link) {
            for path in [&link, &link.join("state")] {
                let error = private_folder(path).unwrap_err();
                assert!(matches!(error, FolderError::Link { owner: 4711, .. }), "{error}");
            }
        }
    }

    #[test]
    fn link_that_others_may_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        private_folder(&name("safe")).unwrap();
        private_folder(&name("open")).unwrap();
        symlink("../safe", name("open/second")).unwrap();
        symlink("open/second", name("first")).unwrap();
        for (mode, is_refused) in [(0o755, false), (0o777, true), (0o1777, false)] {
            set_mode(&name("open"), mode);
            let refused =
                matches!(private_folder(&name("first")), Err(FolderError::Writable { .. }));
            assert_eq!(refused, is_refused, "{mode:o}");
        }
    }

    #[test]
    fn links_in_a_circle_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        symlink("other", &one).unwrap();
        symlink("one", &other).unwrap();
        let error = private_folder(&one).unwrap_err();
        let FolderError::Io { source, .. } = error else { panic!("{error}") };
        assert_eq!(source.raw_os_error(), Some(Errno::ELOOP as i32));
    }

    #[test]
    fn file_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "theirs").unwrap();
        if give_away(&path) {
            let error = private_file(&path, File::options().write(true)).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        }
    }

    #[test]
    fn new_folders_are_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b");
        private_folder(&path).unwrap();
        assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o700, 0o700));
        private_folder(&path).unwrap();
    }

    #[test]
    fn folder_that_others_may_write_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        for open in [0o777, 0o775, 0o770, 0o1777, 0o702] {
            set_mode(folder.path(), open);
            let error = private_folder(folder.path()).unwrap_err();
            assert!(matches!(error, FolderError::Writable { mode, .. } if mode == open), "{error}");
        }
        set_mode(folder.path(), 0o755);
        private_folder(folder.path()).unwrap();
    }

    #[test]
    fn folder_that_others_may_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("open/state"), folder.path().join("link"));
        private_folder(&path).unwrap();
        symlink(&path, &link).unwrap();
        for (above, is_refused) in [(0o777, true), (0o1777, false), (0o775, false)] {
            set_mode(path.parent().unwrap(), above);
            for path in [&path, &link] {
                let refused = private_folder(path);
                let refused = matches!(refused, Err(FolderError::Writable { .. }));
                assert_eq!(refused, is_refused, "{above:o} {}", path.display());
            }
        }
    }

    #[test]
    fn file_instead_of_folder_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = private_folder(file.path()).unwrap_err();
        assert!(matches!(error, FolderError::Io { .. }), "{error}");
    }

    #[test]
    fn link_to_nothing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("nothing", &link).unwrap();
        assert!(matches!(private_folder(&link.join("state")), Err(FolderError::Io { .. })));
    }

    #[test]
    fn open_file_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "kept").unwrap();
        set_mode(&path, 0o666);
        drop(private_file(&path, File::options().append(true)).unwrap());
        assert_eq!((mode(&path), &*fs::read(&path).unwrap()), (0o600, &b"kept"[..]));
    }

    #[test]
    fn socket_is_private_and_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = private_socket(&path).unwrap();
        assert_eq!(mode(&path) & 0o777, 0o600);
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        std::os::unix::net::UnixStream::connect(&path).unwrap();
        listener.accept().unwrap();
        assert_eq!(private_socket(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn only_root_and_oneself_are_trusted() {
        let others = geteuid().as_raw() + 1;
        assert!(is_trusted_owner(0) && is_trusted_owner(geteuid().as_raw()));
        assert!(!is_trusted_owner(others));
    }
}
