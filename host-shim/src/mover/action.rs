//! Steps that are not undone.

use saga::Step;

use super::MoveError;

/// A step without an undo: the undo of another step removes its effect, or the caller repeats the move.
pub(super) struct Action<C> {
    pub name: &'static str,
    pub run: fn(&mut C) -> Result<(), MoveError>,
}

impl<C> Step<C> for Action<C> {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        self.name
    }

    fn run(&self, context: &mut C) -> Result<(), MoveError> {
        (self.run)(context)
    }
}
