//! Creates, checks and opens the journal's file.

use std::{
    ffi::OsString,
    fs::{self, File, OpenOptions, Permissions},
    io::{self, ErrorKind},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    panic::catch_unwind,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
};

use redb::{Builder, DatabaseError, ReadableDatabase, StorageBackend, backends::InMemoryBackend};

use crate::{
    OpenError, Schema,
    storage::FileBackend,
    store::{self, Store},
};

/// Creates the journal if it does not exist. The file gets its name only when it is complete and on the disk, so that a
/// crash leaves either no file or a valid one.
pub(crate) fn create_if_missing(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    if fs::symlink_metadata(path).is_ok() {
        return Ok(());
    }
    let refused = |doing| move |source| OpenError::Io { doing, path: path.to_owned(), source };
    let draft = draft_of(path);
    write_draft(&draft, schema)?;
    publish(&draft, path).map_err(refused("create"))?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    // Syncing the file does not sync its directory entry. Without this a power cut could remove the file with all later
    // commits.
    let folder = File::open(folder.unwrap_or(Path::new(".")));
    folder.and_then(|folder| folder.sync_all()).map_err(refused("sync the directory of"))
}

/// Refuses a file that is not this journal or is damaged, without changing it.
///
/// redb trusts a file that was closed, panics on an invalid page of it, and repairs a file that was not closed.
/// Therefore this function repairs a copy in memory and checks every page of the copy.
pub(crate) fn check(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    match catch_unwind(|| check_unused(path, schema).and_then(|()| check_copy(path, schema))) {
        Ok(checked) => checked,
        Err(_) => Err(OpenError::damaged(path, "a page is invalid")),
    }
}

/// Refuses a file that another process has open: a copy taken while it writes would look damaged.
fn check_unused(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    match Builder::new().set_cache_size(store::CACHE).open_read_only(path) {
        Ok(_) | Err(DatabaseError::RepairAborted) => Ok(()),
        Err(error) => Err(store::explain(error, path, schema)),
    }
}

fn check_copy(path: &Path, schema: &Schema) -> Result<(), OpenError> {
    let refused = |source| OpenError::Io { doing: "read", path: path.to_owned(), source };
    let explain = |error| store::explain(error, path, schema);
    let bytes = fs::read(path).map_err(refused)?;
    let copy = InMemoryBackend::new();
    copy.set_len(bytes.len() as u64).and_then(|()| copy.write(0, &bytes)).map_err(refused)?;
    // The database below is the second copy in memory; free the first.
    drop(bytes);
    let mut builder = Builder::new();
    let opened = builder.set_cache_size(store::CACHE).create_with_backend(copy);
    let mut database = opened.map_err(explain)?;
    if !database.check_integrity().map_err(explain)? {
        return Err(OpenError::damaged(path, "a page differs from its checksum"));
    }
    let transaction = database.begin_read().map_err(|error| OpenError::damaged(path, error))?;
    store::check_owner(&transaction, path, schema).map(drop)
}

/// Only the owner has access.
const MODE: u32 = 0o600;

/// Opens an existing file and removes other users' access.
pub(crate) fn open_backend(path: &Path) -> Result<FileBackend, OpenError> {
    let refused = |source| OpenError::Io { doing: "open", path: path.to_owned(), source };
    let file = OpenOptions::new().read(true).write(true).open(path).map_err(refused)?;
    // Corrects the mode of a file that was copied or restored, such as from a backup.
    file.set_permissions(Permissions::from_mode(MODE)).map_err(refused)?;
    FileBackend::new(file).map_err(|error| OpenError::damaged(path, error))
}

fn write_draft(draft: &Path, schema: &Schema) -> Result<(), OpenError> {
    let refused = |source| OpenError::Io { doing: "write", path: draft.to_owned(), source };
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(MODE)
        .open(draft)
        .map_err(refused)?;
    // `mode` of OpenOptions is subject to the umask; this is not.
    file.set_permissions(Permissions::from_mode(MODE)).map_err(refused)?;
    let synced = file.try_clone().map_err(refused)?;
    let backend = FileBackend::new(file).map_err(|error| OpenError::damaged(draft, error))?;
    Store::create(backend, schema).map_err(|error| match error {
        redb::Error::Io(source) => refused(source),
        error => OpenError::damaged(draft, error),
    })?;
    synced.sync_all().map_err(refused)
}

/// Gives the draft its name, unless another process was faster. A hard link fails if the name exists; a rename would
/// replace the other process's file.
fn publish(draft: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(draft, path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => fs::remove_file(draft),
    }
}

/// A name of its own for each call, because two threads may create a journal at the same time.
fn draft_of(path: &Path) -> PathBuf {
    static DRAFTS: AtomicU32 = AtomicU32::new(0);
    let number = DRAFTS.fetch_add(1, Ordering::Relaxed);
    let mut draft = OsString::from(path);
    draft.push(format!(".{}-{number}.new", process::id()));
    draft.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_creation_makes_valid_journal() {
        let schema = Schema { name: "test", version: 1, tables: &["rows"], migrations: &[] };
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("journal");
            let make = || create_if_missing(&path, &schema).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(make);
                make();
            });
            check(&path, &schema).unwrap();
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_faster_process_keeps_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let (draft, path) = (folder.path().join("draft"), folder.path().join("journal"));
        fs::write(&draft, "ours").unwrap();
        fs::write(&path, "theirs").unwrap();
        publish(&draft, &path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        assert!(!draft.exists());
    }

    #[test]
    fn failed_link_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let (draft, path) = (folder.path().join("draft"), folder.path().join("gone/journal"));
        fs::write(&draft, "ours").unwrap();
        assert_eq!(publish(&draft, &path).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
