//! Input and output of a command.

use std::{
    ffi::OsStr,
    fmt,
    io::{self, BufRead, Write},
    process::ExitCode,
};

use bootstrap::Chain;

use crate::{colour, error::CallError, text::printable};

/// Streams of a command, and what its terminal supports.
pub struct Console<'a> {
    /// The answer, and nothing else.
    pub output: &'a mut (dyn Write + Send),
    /// Notes, questions and errors.
    pub notes: &'a mut (dyn Write + Send),
    /// Documents, and answers to questions.
    pub input: &'a mut (dyn BufRead + Send),
    /// Whether a person can answer questions.
    pub interactive: bool,
    /// Whether printed text can be replaced, as on a terminal.
    pub is_screen: bool,
    /// Whether the answer shows states in colours.
    pub has_colours: bool,
}

impl fmt::Debug for Console<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Console").field("interactive", &self.interactive).finish_non_exhaustive()
    }
}

impl Console<'_> {
    /// Prints `text` as part of the answer.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), CallError> {
        let text = if self.has_colours { text } else { &colour::without(text) };
        self.output.write_all(text.as_bytes()).map_err(CallError::Output)?;
        self.output.flush().map_err(CallError::Output)
    }

    pub(crate) fn line(&mut self, text: &str) -> Result<(), CallError> {
        self.print(&format!("{text}\n"))
    }

    /// Prints a line that is not part of the answer.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), CallError> {
        writeln!(self.notes, "{text}").map_err(CallError::Output)
    }

    /// Asks a yes-or-no question. Any answer but yes is no.
    pub(crate) fn confirm(&mut self, question: &str) -> Result<bool, CallError> {
        write!(self.notes, "{question} [y/N] ").map_err(CallError::Output)?;
        self.notes.flush().map_err(CallError::Output)?;
        let mut answer = String::new();
        self.input.read_line(&mut answer).map_err(CallError::Output)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}

/// Whether output has colours: on a terminal that supports them, unless `NO_COLOR` is set and not empty
/// (<https://no-color.org>).
#[must_use]
pub fn wants_colours(is_screen: bool, no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    is_screen && no_color.is_none_or(OsStr::is_empty) && term.is_none_or(|term| term != "dumb")
}

/// Prints the error: one sentence, its stable code if it has one, and what to do about it.
pub fn report(error: &CallError, console: &mut Console<'_>) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let mut text = format!("error: {}", printable(&Chain(error).to_string()));
    text.extend(error.reason().map(|reason| format!("\ncode: {reason}")));
    text.extend(error.advice().map(|advice| format!("\nadvice: {advice}")));
    // A failure to write the error cannot be reported anywhere.
    console.note(&text).ok();
    ExitCode::from(error.exit_code())
}

/// The reader of the output, such as `head`, has read enough.
fn is_closed_pipe(error: &CallError) -> bool {
    matches!(error, CallError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `work` prints as answer and as notes, if `input` is typed.
    fn printed(input: &str, has_colours: bool, work: impl FnOnce(&mut Console<'_>)) -> [String; 2] {
        let (mut output, mut notes, mut input) = (Vec::new(), Vec::new(), input.as_bytes());
        work(&mut Console {
            output: &mut output,
            notes: &mut notes,
            input: &mut input,
            interactive: true,
            is_screen: false,
            has_colours,
        });
        [output, notes].map(|printed| String::from_utf8(printed).unwrap())
    }

    #[test]
    fn colours_are_for_terminals() {
        let attached = colour::state("Attached");
        let printed = |colours| printed("", colours, |console| console.line(&attached).unwrap());
        assert_eq!(printed(false)[0], "Attached\n");
        assert_eq!(printed(true)[0], format!("{attached}\n"));
    }

    #[test]
    fn no_color_and_dumb_terminals_have_no_colours() {
        let (set, unset) = (Some(OsStr::new("1")), None);
        assert!(wants_colours(true, unset, Some(OsStr::new("xterm"))));
        assert!(wants_colours(true, Some(OsStr::new("")), unset));
        assert!(!wants_colours(true, set, unset));
        assert!(!wants_colours(true, unset, Some(OsStr::new("dumb"))));
        assert!(!wants_colours(false, unset, unset));
    }

    #[test]
    fn only_yes_is_yes() {
        for (answer, expected) in [
            ("y\n", true),
            ("YES\n", true),
            ("n\n", false),
            ("\n", false),
            ("", false),
            ("yep\n", false),
        ] {
            let printed = printed(answer, false, |console| {
                assert_eq!(console.confirm("Really?").unwrap(), expected, "{answer:?}");
            });
            assert_eq!(printed, ["", "Really? [y/N] "]);
        }
    }
}
