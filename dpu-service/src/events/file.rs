//! The file of events: JSON lines. The last line of an event counts.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use bootstrap::private_file;

use super::{event::Event, log::KEPT};

/// Higher revisions are treated as damage: they would leave no numbers for new events. Revisions count from 1.
const HIGHEST_REVISION: u64 = u64::MAX / 2;

#[derive(Debug)]
pub(super) struct EventFile {
    path: PathBuf,
    file: File,
    length: u64,
    lines: usize,
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Events in the order of their revisions.
    pub(super) events: Vec<Event>,
    /// Number of unreadable lines, without an incomplete last line: that is a write cut off by a crash.
    pub(super) damaged: usize,
}

/// Reads the file at `path`. A missing file has no events.
pub(super) fn read(path: &Path) -> io::Result<Contents> {
    let bytes = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
        read => read?,
    };
    let mut latest = HashMap::new();
    let mut damaged = 0;
    let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    for line in bytes[..complete].split_inclusive(|byte| *byte == b'\n') {
        match serde_json::from_slice::<Event>(line) {
            Ok(event) if event.revision <= HIGHEST_REVISION => {
                latest.insert((event.boot, event.sequence), event);
            }
            _ => damaged += 1,
        }
    }
    let mut events: Vec<_> = latest.into_values().collect();
    events.sort_by_key(|event| event.revision);
    Ok(Contents { events, damaged })
}

/// Moves a damaged file aside and replaces one that was moved aside before.
pub(super) fn move_aside(path: &Path) -> io::Result<PathBuf> {
    let aside = with_ending(path, "damaged");
    fs::rename(path, &aside)?;
    Ok(aside)
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    name.into()
}

impl EventFile {
    /// Replaces the file at `path` by a new one with these events, and opens it.
    ///
    /// # Errors
    /// The old file is unchanged.
    pub(super) fn create(path: &Path, events: &[Arc<Event>]) -> io::Result<Self> {
        let draft = with_ending(path, "new");
        let mut options = OpenOptions::new();
        let mut file = private_file(&draft, options.create(true).write(true).truncate(true))?;
        let text = lines(events)?;
        // Synced before the rename: otherwise a power cut could replace a complete file by an empty one.
        let written = file.write_all(&text).and_then(|()| file.sync_all());
        written.and_then(|()| fs::rename(&draft, path)).inspect_err(|_| {
            // The journal may need the space on a full disk.
            let _ = fs::remove_file(&draft);
        })?;
        Ok(Self { path: path.to_owned(), file, length: text.len() as u64, lines: events.len() })
    }

    /// Appends events. The remains of a failed write are cut off.
    ///
    /// # Errors
    /// Nothing was appended.
    pub(super) fn append(&mut self, events: &[Arc<Event>]) -> io::Result<()> {
        let text = lines(events)?;
        self.file.write_all(&text).inspect_err(|_| self.cut_off())?;
        self.length += text.len() as u64;
        self.lines += events.len();
        Ok(())
    }

    fn cut_off(&self) {
        let cut = self.file.set_len(self.length);
        let cut = cut.and_then(|()| (&self.file).seek(SeekFrom::Start(self.length)));
        if let Err(error) = cut {
            tracing::warn!(path = %self.path.display(), %error, "cannot cut a partial line off the file of events");
        }
    }

    /// Whether most lines are outdated: their events have repeated or were evicted.
    pub(super) fn is_long(&self) -> bool {
        self.lines > 2 * KEPT
    }
}

fn lines(events: &[Arc<Event>]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    for event in events {
        serde_json::to_writer(&mut text, event)?;
        text.push(b'\n');
    }
    Ok(text)
}
