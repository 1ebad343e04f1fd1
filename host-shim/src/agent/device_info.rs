//! The device-info file of the Network Plumbing Working Group's specification, version 1.1.0: tells
//! a pod's applications which device it got.

use std::{fs, io, path::Path};

use serde_json::json;

use super::records::Record;

/// Writes the file that a record asks for, with its folders.
///
/// # Errors
/// When it can't be written.
pub(super) fn write(record: &Record) -> io::Result<()> {
    let Some(path) = record.device_info_file.as_deref().map(Path::new) else { return Ok(()) };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let info = json!({
        "type": "pci",
        "version": "1.1.0",
        "pci": { "pci-address": record.pci_address() },
    });
    fs::write(path, info.to_string())
}

/// Removes the file of a record. One that is gone, or can't be removed, is no reason to stop.
pub(super) fn remove(record: &Record) {
    let Some(path) = &record.device_info_file else { return };
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path, %error, "the device-info file can't be removed");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::records::tests::record;

    #[test]
    fn the_file_is_written_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("deep/er/a.json");
        let mut record = record("a", "c");
        record.device_info_file = Some(path.to_str().unwrap().into());
        write(&record).unwrap();
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text, r#"{"pci":{"pci-address":"pci-a"},"type":"pci","version":"1.1.0"}"#);
        remove(&record);
        assert!(!path.exists());
        remove(&record);
    }
}
