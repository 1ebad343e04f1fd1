//! In which boot of the host the records were written.
//!
//! They are not synced: they have to outlive the agent, but not the boot, after which the DPU
//! releases all that was attached before it, and the VFs are made anew. So a power cut may tear them,
//! and nothing else may: records of this boot that can't be read are a defect, or a broken disk.

use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
};

use super::RecordsError;
use crate::whole_file;

/// The boot that `records` were opened in last. `None`: it is not known.
pub(super) fn last(records: &Path) -> Result<Option<String>, RecordsError> {
    let path = note_beside(records);
    match fs::read_to_string(&path) {
        Ok(boot_id) => Ok(Some(boot_id)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(RecordsError::Note { path, source }),
    }
}

/// Notes that `records` are opened in this boot. They may be written once that is on the disk.
pub(super) fn note(records: &Path, boot_id: &str) -> Result<(), RecordsError> {
    let path = note_beside(records);
    whole_file::replace(&path, boot_id.as_bytes())
        .map_err(|source| RecordsError::Note { path, source })
}

/// Moves records out of the way that the end of their boot has torn.
pub(super) fn set_aside(
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
        "the agent's records can't be read: the host went down in the boot that they are of, and \
         they were not on the disk. Begun anew: the DPU releases what was attached in that boot"
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
