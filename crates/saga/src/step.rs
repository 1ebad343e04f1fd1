//! A step and its undo.

use std::error::Error;

/// A step of a saga over the context `C`.
pub trait Step<C>: Sync {
    /// The error of a step or its undo.
    type Error: Error + Send + Sync + 'static;

    /// The step's stable name in logs, `dpuctl describe` and fault tests.
    fn name(&self) -> &'static str;

    /// Makes the step's effect.
    ///
    /// # Errors
    /// If the effect is not completely in place. `undo` removes a partial effect.
    fn run(&self, context: &mut C) -> Result<(), Self::Error>;

    /// Removes the step's effect, complete or partial. The default suits a step whose effect need not be removed.
    ///
    /// # Errors
    /// If a part of the effect is left.
    fn undo(&self, _context: &mut C) -> Result<(), Self::Error> {
        Ok(())
    }
}

/// A saga's list of steps.
pub type Steps<C, E> = [&'static dyn Step<C, Error = E>];
