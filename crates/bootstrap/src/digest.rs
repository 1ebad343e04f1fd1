//! Digests of content.

use ring::digest::{SHA256, digest};

/// The SHA-256 of `content` in hexadecimal, as `sha256sum` prints it.
#[must_use]
pub fn sha256(content: &[u8]) -> String {
    let digest = digest(&SHA256, content);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}
