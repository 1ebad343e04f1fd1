use std::{
    fmt,
    io::{BufRead, Write},
};

use crate::error::CallError;

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
            };
            assert_eq!(console.confirm("Really?").unwrap(), expected, "{answer:?}");
            assert_eq!(notes, b"Really? [y/N] ");
            assert!(output.is_empty());
        }
    }
}
