//! A compressed archive of texts.

use std::{fs::OpenOptions, io, os::unix::fs::OpenOptionsExt, path::Path, time::SystemTime};

use flate2::{Compression, write::GzEncoder};
use tar::{Builder, Header};

/// The archive names pods, addresses and links, so that only its owner may read it.
const MODE: u32 = 0o600;

/// Writes the texts, each under its name, as a gzip-compressed tar archive. An existing file stays as it is.
pub(super) fn write_archive(path: &Path, files: &[(&str, String)]) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(path)?;
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for (name, text) in files {
        let mut header = Header::new_gnu();
        header.set_size(text.len().try_into().map_err(io::Error::other)?);
        header.set_mode(MODE);
        header.set_mtime(now.as_secs());
        archive.append_data(&mut header, name, text.as_bytes())?;
    }
    archive.into_inner()?.finish()?.sync_all()
}
