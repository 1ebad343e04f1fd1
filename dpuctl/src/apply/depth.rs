//! How deep brackets are nested: the parser takes time by the square of that.

use super::Mistake;

/// Deepest nesting of brackets that is read. A network has four levels.
const DEEPEST: usize = 64;

/// Refuses text whose brackets are nested deeper. Those in strings and comments count, too: nobody has so
/// many there that are never closed.
pub(super) fn check(text: &str) -> Result<(), Mistake> {
    let mut depth = 0_usize;
    for (number, line) in text.lines().enumerate() {
        for (column, character) in line.chars().enumerate() {
            depth = match character {
                '[' | '{' => depth + 1,
                ']' | '}' => depth.saturating_sub(1),
                _ => continue,
            };
            if depth > DEEPEST {
                let message = format!("brackets are nested deeper than {DEEPEST} levels");
                return Err(Mistake { place: Some((number + 1, column + 1)), message });
            }
        }
    }
    Ok(())
}
