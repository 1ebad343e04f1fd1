//! Reads TOML configuration files. Errors name the place and the key.

use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use crate::{
    cut,
    diagnosis::{explain, place},
    open_regular_file, sha256,
    variables::{Misuse, expand},
    without_secrets::without_secrets,
};

/// Largest accepted configuration file, in bytes.
pub const CONFIG_LIMIT: usize = 1024 * 1024;

/// Longest error sentence, in bytes: a sentence quotes names and values of the file.
const LONGEST_MESSAGE: usize = 1024;

/// Why a configuration could not be read. The texts name the file, and line and column if there is one.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum ConfigError {
    #[error("configuration file {} does not exist", .0.display())]
    Missing(PathBuf),
    #[error("cannot read configuration file {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("configuration file {} is larger than {CONFIG_LIMIT} bytes", .0.display())]
    TooLarge(PathBuf),
    #[error("{}:{line}:{column}: {message}", path.display())]
    Invalid {
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        message: String,
    },
}

/// The content of a configuration file at the time of reading.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
    /// The text with a variable replaced by its value. `None`: as read.
    expanded: Option<String>,
}

impl ConfigFile {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is missing, unreadable or too large.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self { path: path.to_owned(), text: read(path)?, expanded: None })
    }

    /// Reads the file at `path` on a thread for blocking work: a hanging file system must not block other tasks.
    ///
    /// # Errors
    /// [`ConfigError`] if the file is missing, unreadable or too large.
    pub async fn read_aside(path: &Path) -> Result<Self, ConfigError> {
        let owned = path.to_owned();
        spawn_blocking(move || Self::read(&owned)).await.unwrap_or_else(|error| {
            Err(ConfigError::Read { path: path.to_owned(), source: error.into() })
        })
    }

    /// Replaces `${name}` in the file's strings by `value`, the environment variable's value.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if a string uses the variable and it is unset or not a host name, or if a string uses
    /// another variable.
    pub fn with_variable(self, name: &str, value: Option<&str>) -> Result<Self, ConfigError> {
        match expand(&self.text, name, value) {
            Ok(expanded) => Ok(Self { expanded: Some(expanded), ..self }),
            Err(Misuse { offset, message }) => {
                let (line, column) = place(&self.text, offset);
                Err(ConfigError::Invalid { path: self.path, line, column, message })
            }
        }
    }

    /// The SHA-256 of the file as read, in hexadecimal, as `sha256sum` prints it.
    #[must_use]
    pub fn digest(&self) -> String {
        sha256(self.text.as_bytes())
    }

    /// The content as TOML without comments, and without values that may be secret. Empty if it is not TOML.
    #[must_use]
    pub fn without_secrets(&self) -> String {
        toml::from_str(self.content()).map(without_secrets).unwrap_or_default()
    }

    /// Parses the content.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is not TOML or does not fit `T`.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, ConfigError> {
        parse_config(self.content(), &self.path)
    }

    fn content(&self) -> &str {
        self.expanded.as_deref().unwrap_or(&self.text)
    }
}

/// Reads and parses the configuration file at `path`.
///
/// # Errors
/// [`ConfigError`] if the file is missing, unreadable, too large, not TOML, or does not fit `T`.
pub fn load_config<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    ConfigFile::read(path)?.parse()
}

/// Parses a configuration from `text`. `path` is only for errors.
///
/// # Errors
/// [`ConfigError::Invalid`] if it is not TOML or does not fit `T`.
pub fn parse_config<T: DeserializeOwned>(text: &str, path: &Path) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or_default();
        let (line, column) = place(text, span.start);
        let message = cut(explain(&error, &span, text), LONGEST_MESSAGE);
        ConfigError::Invalid { path: path.to_owned(), line, column, message }
    })
}

fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => ConfigError::Missing(path.to_owned()),
        _ => ConfigError::Read { path: path.to_owned(), source },
    };
    let file = open_regular_file(path).map_err(unreadable)?;
    let mut bytes = Vec::new();
    let one_too_many = CONFIG_LIMIT as u64 + 1;
    file.take(one_too_many).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() > CONFIG_LIMIT {
        return Err(ConfigError::TooLarge(path.to_owned()));
    }
    String::from_utf8(bytes)
        .map_err(|error| unreadable(io::Error::new(io::ErrorKind::InvalidData, error)))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nix::{sys::stat::Mode, unistd::mkfifo};
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Sample {
        listen: String,
        #[serde(default)]
        limits: Limits,
        #[serde(default)]
        pool: Vec<Pool>,
    }

    #[derive(Debug, Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Limits {
        connections: u16,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pool {
        #[expect(dead_code, reason = "only read for its type errors")]
        policy: Policy,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Policy {
        Spread,
        Pack,
    }

    fn error_of(text: &str) -> String {
        parse_config::<Sample>(text, Path::new("/etc/sample.toml")).unwrap_err().to_string()
    }

    #[test]
    fn valid_file_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sample.toml");
        fs::write(&path, "listen = 'x'\nlimits.connections = 3\npool = []").unwrap();
        let sample: Sample = load_config(&path).unwrap();
        assert_eq!(sample.listen, "x");
        assert_eq!(sample.limits.connections, 3);
        assert!(sample.pool.is_empty());
    }

    #[test]
    fn unknown_key_names_nearest_key() {
        assert_eq!(
            error_of("# comment\nlisten = 'x'\nlisen = 'y'\n"),
            "/etc/sample.toml:3:1: unknown key `lisen`: did you mean `listen`?"
        );
        assert_eq!(
            error_of("listen = 'x'\n[limits]\nconection = 1\n"),
            "/etc/sample.toml:3:1: unknown key `limits.conection`: did you mean `connections`?"
        );
    }

    #[test]
    fn unknown_key_without_nearest_lists_all() {
        let shown = error_of("listen = 'x'\nbanana = 'y'\n");
        assert!(shown.starts_with("/etc/sample.toml:2:1: unknown key `banana`: "), "{shown}");
        assert!(shown.ends_with(" `listen`, `limits`, `pool`"), "{shown}");
    }

    #[test]
    fn a_type_error_names_the_key() {
        assert_eq!(
            error_of("listen = 'x'\n[limits]\nconnections = 'many'\n"),
            "/etc/sample.toml:3:15: `limits.connections`: invalid type: string \"many\", expected u16"
        );
        assert_eq!(
            error_of("listen = 'x'\n[limits]\nconnections = 70000\n"),
            "/etc/sample.toml:3:15: `limits.connections`: invalid value: integer `70000`, expected u16"
        );
    }

    #[test]
    fn wrong_choice_names_key_and_nearest_choice() {
        assert_eq!(
            error_of("listen = 'x'\n[[pool]]\npolicy = 'spread'\n[[pool]]\npolicy = 'spraed'\n"),
            "/etc/sample.toml:5:10: `pool[1].policy`: unknown value `spraed`: did you mean `spread`?"
        );
    }

    #[test]
    fn a_missing_key_is_named() {
        assert_eq!(error_of("pool = []\n"), "/etc/sample.toml:1:1: missing key `listen`");
        assert_eq!(
            error_of("listen = 'x'\n[[pool]]\npolicy = 'pack'\n[[pool]]\n"),
            "/etc/sample.toml:4:1: missing key `policy` in `pool[1]`"
        );
        assert_eq!(
            error_of("[[pool]]\npolicy = 'pack'\n"),
            "/etc/sample.toml:1:1: missing key `listen`"
        );
        assert_eq!(
            error_of("listen = 'x'\npool = [{}]\n"),
            "/etc/sample.toml:2:9: missing key `policy` in `pool[0]`"
        );
    }

    #[test]
    fn missing_key_leads_to_its_example() {
        let shown = error_of("# listen = 'x'\npool = []\n");
        let remedy = ": remove the `# ` before `listen`, and write your own value";
        assert!(shown.ends_with(&format!("missing key `listen`{remedy}")), "{shown}");
    }

    #[test]
    fn a_syntax_error_has_its_place() {
        assert!(error_of("listen = 'x'\nlimits = = 3\n").starts_with("/etc/sample.toml:2:10: "));
        assert!(error_of("listen = 'x'\nlisten = 'y'\n").starts_with("/etc/sample.toml:2:1: "));
    }

    #[test]
    fn columns_count_characters() {
        let text = "pool = [{ policy = 'ü', name = 'ö' }]\nlisten = 'x'";
        assert!(error_of(text).starts_with("/etc/sample.toml:1:25: "), "{}", error_of(text));
    }

    #[test]
    fn a_missing_file_says_so() {
        let error = load_config::<Sample>(Path::new("/nonexistent/x.toml")).unwrap_err();
        assert!(error.to_string().contains(" /nonexistent/x.toml "), "{error}");
    }

    /// The first example of FIPS 180-4.
    #[test]
    fn digest_is_that_of_sha256sum() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "abc").unwrap();
        let digest = ConfigFile::read(file.path()).unwrap().digest();
        assert_eq!(digest, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn variable_changes_content_and_no_digest() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "listen = '${NODE_NAME}'").unwrap();
        let read = ConfigFile::read(file.path()).unwrap();
        let expanded = read.clone().with_variable("NODE_NAME", Some("n1")).unwrap();
        assert_eq!(expanded.digest(), read.digest());
        assert_eq!(expanded.parse::<Sample>().unwrap().listen, "n1");
        assert!(expanded.without_secrets().contains("n1"));
        let refused = read.with_variable("NODE_NAME", None).unwrap_err().to_string();
        assert!(refused.contains(":1:11: `NODE_NAME` is not set"), "{refused}");
    }

    #[test]
    fn a_huge_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("huge.toml");
        fs::write(&path, vec![b'#'; CONFIG_LIMIT + 1]).unwrap();
        let error = load_config::<Sample>(&path).unwrap_err();
        assert!(error.to_string().ends_with(" 1048576 bytes"), "{error}");
    }

    #[test]
    fn a_fifo_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("fifo.toml");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let error = load_config::<Sample>(&path).unwrap_err();
        assert!(matches!(error, ConfigError::Read { .. }), "{error}");
    }

    #[test]
    fn a_file_that_is_no_text_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("binary.toml");
        fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(matches!(load_config::<Sample>(&path), Err(ConfigError::Read { .. })));
    }
}
