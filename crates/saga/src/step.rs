//! A step and its undo.

use std::error::Error;

/// One step of a saga over the context `C`.
pub trait Step<C>: Sync {
    /// What a step or its undo fails with.
    type Error: Error + Send + Sync + 'static;

    /// The step's stable name, in logs, in `dpuctl describe` and in fault tests.
    fn name(&self) -> &'static str;

    /// Brings the step's effect about.
    ///
    /// # Errors
    /// When the effect is not in place afterwards. Whatever was done of it, `undo` takes back.
    fn run(&self, context: &mut C) -> Result<(), Self::Error>;

    /// Takes the step's effect back, wholly or partly done. Without one of its own, a step leaves
    /// nothing that has to be taken back.
    ///
    /// # Errors
    /// When some of the effect is left.
    fn undo(&self, _context: &mut C) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A saga's list of steps.
pub type Steps<C, E> = [&'static dyn Step<C, Error = E>];
