//! Keys that are still read and no longer to be written.

use std::path::Path;

use serde::Deserialize;

/// A network of the file, of which one key is looked at.
#[derive(Deserialize)]
struct Spelled {
    name: String,
    allow_mac_spoofing: Option<bool>,
}

/// The networks of a file, and nothing else of it.
#[derive(Deserialize)]
struct SpelledNetworks {
    #[serde(default, rename = "network")]
    networks: Vec<Spelled>,
}

/// The networks of the file at `path` that say `allow_mac_spoofing`. None of a file that can't be read.
pub(crate) fn with_older_spelling(path: &Path) -> Vec<String> {
    let file = bootstrap::load_config::<SpelledNetworks>(path);
    let networks = file.map(|file| file.networks).unwrap_or_default();
    let older = networks.into_iter().filter(|network| network.allow_mac_spoofing.is_some());
    older.map(|network| network.name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_with_the_older_spelling_are_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text = "listen = \"0.0.0.0:1\"\n[[network]]\nname = \"a\"\nallow_mac_spoofing = false\n\
                    [[network]]\nname = \"b\"\nanti_spoofing = \"mac\"\n\
                    [[network]]\nname = \"c\"\nallow_mac_spoofing = true";
        std::fs::write(file.path(), text).unwrap();
        assert_eq!(with_older_spelling(file.path()), ["a", "c"]);
        assert_eq!(with_older_spelling(Path::new("/nonexistent")), [""; 0]);
    }
}
