//! Kill points: places at which a test can make a step fail or kill the process. They are after each run, repair and
//! undo of a step, and at declared places between steps. Without the feature `fault-injection` they do nothing.

use std::error::Error;

use crate::{fault, step::Steps};

/// How a step runs. Each way has its own kill point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By [`crate::run`]: the kill point has the step's name.
    Run,
    /// By [`crate::repair`]: `repair-<step>`.
    Repair,
    /// By [`crate::undo`]: `undo-<step>`.
    Undo,
}

impl Way {
    /// What the step's name follows in the kill point's name.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Run => "",
            Self::Repair => "repair-",
            Self::Undo => "undo-",
        }
    }
}

/// The kill points of these steps for these ways.
#[must_use]
pub fn kill_points<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    ways: &[Way],
) -> Vec<String> {
    let of_way = |way: &Way| {
        let prefix = way.prefix();
        steps.iter().map(move |step| format!("{prefix}{}", step.name()))
    };
    ways.iter().flat_map(of_way).collect()
}

/// Declares a program's kill points between its steps: an enum whose `ALL` names them, with a method `pass` to call at
/// each.
#[macro_export]
macro_rules! kill_points {
    (
        $(#[$about:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$about_one:meta])* $point_name:ident = $point:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$about_one])* $point_name,)+
        }

        impl $name {
            /// All names.
            $visibility const ALL: &'static [&'static str] = &[$($point),+];

            /// Passes the kill point: a test may kill the program here.
            $visibility fn pass(self) {
                $crate::pass(match self {
                    $(Self::$point_name => $point,)+
                });
            }
        }
    };
}

/// Passes a kill point between steps. Called by the enums of [`kill_points!`](crate::kill_points!).
pub fn pass(point: &'static str) {
    fault::pass("", point);
}
