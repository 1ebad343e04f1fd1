//! Where a command reads and writes.

use std::{
    fmt,
    io::{self, BufRead, Write},
    process::ExitCode,
};

use bootstrap::Chain;

use crate::{error::CallError, text::printable};

/// Where answers go and questions are asked.
pub struct Console<'a> {
    /// The answer, and nothing else.
    pub output: &'a mut (dyn Write + Send),
    /// What is said besides: notes, questions, errors.
    pub notes: &'a mut (dyn Write + Send),
    /// Documents and answers.
    pub input: &'a mut (dyn BufRead + Send),
    /// Whether somebody is there to answer.
    pub interactive: bool,
    /// Whether what was printed can be replaced, as on a terminal.
    pub is_screen: bool,
}

impl fmt::Debug for Console<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Console").field("interactive", &self.interactive).finish_non_exhaustive()
    }
}

impl Console<'_> {
    /// Prints `text` as part of the answer.
    pub(crate) fn print(&mut self, text: &str) -> Result<(), CallError> {
        self.output.write_all(text.as_bytes()).map_err(CallError::Output)?;
        self.output.flush().map_err(CallError::Output)
    }

    /// Prints one line of the answer.
    pub(crate) fn line(&mut self, text: &str) -> Result<(), CallError> {
        self.print(&format!("{text}\n"))
    }

    /// Says something besides.
    pub(crate) fn note(&mut self, text: &str) -> Result<(), CallError> {
        writeln!(self.notes, "{text}").map_err(CallError::Output)
    }

    /// Asks a question that is answered with yes or no; everything but yes is no.
    pub(crate) fn confirm(&mut self, question: &str) -> Result<bool, CallError> {
        write!(self.notes, "{question} [y/N] ").map_err(CallError::Output)?;
        self.notes.flush().map_err(CallError::Output)?;
        let mut answer = String::new();
        self.input.read_line(&mut answer).map_err(CallError::Output)?;
        Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
    }
}

/// Tells the error: one sentence, its stable code if it has one, and what to do about it.
pub fn report(error: &CallError, console: &mut Console<'_>) -> ExitCode {
    if is_closed_pipe(error) {
        return ExitCode::SUCCESS;
    }
    let mut text = format!("error: {}", printable(&Chain(error).to_string()));
    text.extend(error.reason().map(|reason| format!("\ncode: {reason}")));
    text.extend(error.advice().map(|advice| format!("\nadvice: {advice}")));
    // Where errors can't be written, nobody can be told so.
    console.note(&text).ok();
    ExitCode::from(error.exit_code())
}

/// Whoever reads the output, such as `head`, has seen enough.
fn is_closed_pipe(error: &CallError) -> bool {
    matches!(error, CallError::Output(error) if error.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let (mut output, mut notes, mut input) = (Vec::new(), Vec::new(), answer.as_bytes());
            let mut console = Console {
                output: &mut output,
                notes: &mut notes,
                input: &mut input,
                interactive: true,
                is_screen: false,
            };
            assert_eq!(console.confirm("Really?").unwrap(), expected, "{answer:?}");
            assert_eq!(notes, b"Really? [y/N] ");
            assert!(output.is_empty());
        }
    }
}
