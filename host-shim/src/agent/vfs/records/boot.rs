//! In which boot of the host the records were written.
//!
//! Records are not synced: they must outlive the agent, but not the boot. After a reboot the DPU releases earlier
//! attachments, and the VFs are new. Only a power failure can tear them; unreadable records of this boot are a defect
//! or a broken disk.

use std::{
    error::Error,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::RecordsError;
use crate::whole_file;

/// Longest boot id that a note is believed to hold, in bytes. The kernel's have 36.
const BOOT_ID_LIMIT: u64 = 128;

/// The boot that `records` were opened in last. `None`: it is not known, for there is no note, or
/// something else in its place.
pub(in crate::agent) fn last(records: &Path) -> Result<Option<String>, RecordsError> {
    let path = note_beside(records);
    match read(&path) {
        Ok(note) => {
            let boot_id = String::from_utf8(note).ok().filter(|id| is_boot_id(id));
            if boot_id.is_none() {
                tracing::warn!(path = %path.display(), "the file with the records' boot id is damaged");
            }
            Ok(boot_id)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RecordsError::Note { path, source }),
    }
}

/// Reads as much as tells whether it is too long.
fn read(note: &Path) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    bootstrap::open_regular_file(note)?.take(BOOT_ID_LIMIT + 1).read_to_end(&mut content)?;
    Ok(content)
}

/// Whether it can be one: a part of a file's name is made of it.
fn is_boot_id(text: &str) -> bool {
    let is_ours = |byte: u8| byte.is_ascii_alphanumeric() || b"-_. ".contains(&byte);
    (1..=BOOT_ID_LIMIT).contains(&(text.len() as u64)) && text.bytes().all(is_ours)
}

/// Notes that `records` are opened in this boot. They may be written once that is on the disk.
pub(in crate::agent) fn note(records: &Path, boot_id: &str) -> Result<(), RecordsError> {
    let path = note_beside(records);
    whole_file::replace(&path, boot_id.as_bytes())
        .map_err(|source| RecordsError::Note { path, source })
}

/// Moves records out of the way that the end of their boot has torn.
pub(in crate::agent) fn set_aside(
    records: &Path,
    boot_id: &str,
    damage: &RecordsError,
) -> Result<(), RecordsError> {
    let aside = records.with_extension(format!("torn-in-{boot_id}"));
    fs::rename(records, &aside)
        .map_err(|source| RecordsError::SetAside { path: records.to_owned(), source })?;
    tracing::error!(
        path = %records.display(),
        aside = %aside.display(),
        boot_id,
        cause = %root_cause(damage),
        "the agent's records are damaged by a crash of the host in an earlier boot; the agent starts \
         with empty records, and the DPU releases the attachments of that boot"
    );
    Ok(())
}

fn note_beside(records: &Path) -> PathBuf {
    records.with_extension("boot")
}

fn root_cause<'a>(mut error: &'a (dyn Error + 'static)) -> &'a (dyn Error + 'static) {
    while let Some(cause) = error.source() {
        error = cause;
    }
    error
}
