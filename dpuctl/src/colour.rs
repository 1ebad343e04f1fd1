//! Colours of states, for terminals.

const GREEN: &str = "\u{1b}[32m";
const YELLOW: &str = "\u{1b}[33m";
const RED: &str = "\u{1b}[31m";
const RESET: &str = "\u{1b}[0m";

/// The state's word in its colour: green for working, yellow for passing states, red for states that need a person.
pub(crate) fn state(word: &str) -> String {
    let colour = match word {
        "Attached" | "Connected" | "Free" => GREEN,
        "Reserved" | "Programmed" | "Releasing" | "Absent" => YELLOW,
        "Quarantined" | "HostRemoved" | "Disconnected" => RED,
        _ => return word.to_owned(),
    };
    format!("{colour}{word}{RESET}")
}

/// The text without these colours. Names cannot contain colours, because control characters are replaced.
pub(crate) fn without(text: &str) -> String {
    [GREEN, YELLOW, RED, RESET].iter().fold(text.to_owned(), |text, code| text.replace(code, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_removed_again() {
        let words = ["Attached", "Releasing", "Quarantined", "Unspecified"];
        assert_eq!(words.map(|word| without(&state(word))), words);
        assert_ne!(state("Quarantined"), state("Attached").replace("Attached", "Quarantined"));
    }
}
