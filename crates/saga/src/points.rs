//! Where a test can make a step fail, or kill the process: after each step, whichever way it was run,
//! and at milestones between the steps. Without the feature `fault-injection` none of it does anything.

use std::error::Error;

use crate::step::Steps;

/// A way of running a step. Each is a point of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By [`crate::run`]: the point has the step's name.
    Run,
    /// By [`crate::repair`]: `repair-<step>`.
    Repair,
    /// Backwards: `undo-<step>`.
    Undo,
}

impl Way {
    fn point(self, step: &str) -> String {
        match self {
            Self::Run => step.to_owned(),
            Self::Repair => format!("repair-{step}"),
            Self::Undo => format!("undo-{step}"),
        }
    }
}

/// The points at which a process that runs these steps in these ways can be killed.
#[must_use]
pub fn kill_points<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    ways: &[Way],
) -> Vec<String> {
    let of_way = |way: &Way| steps.iter().map(|step| way.point(step.name())).collect::<Vec<_>>();
    ways.iter().flat_map(of_way).collect()
}

/// Declares the places in a program's flows, between its steps, at which it can be killed: an enum
/// whose `ALL` names every one, and whose `pass` is called there.
#[macro_export]
macro_rules! milestones {
    (
        $(#[$about:meta])*
        $visibility:vis enum $name:ident {
            $($(#[$about_one:meta])* $milestone:ident = $point:literal,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $name {
            $($(#[$about_one])* $milestone,)+
        }

        impl $name {
            /// The names of all.
            $visibility const ALL: &'static [&'static str] = &[$($point),+];

            /// The program has come to this place: a test may kill it here.
            $visibility fn pass(self) {
                $crate::pass(match self {
                    $(Self::$milestone => $point,)+
                });
            }
        }
    };
}

/// The process has come to a milestone: a test may kill it here. Called by what [`milestones`]
/// declares.
#[cfg_attr(
    not(feature = "fault-injection"),
    expect(unused_variables, reason = "no test asks for a fault")
)]
pub fn pass(milestone: &'static str) {
    #[cfg(feature = "fault-injection")]
    crate::fault::pass(milestone);
}

/// A test made the step fail.
pub(crate) struct Struck;

#[cfg(feature = "fault-injection")]
pub(crate) fn pass_step(way: Way, step: &str) {
    crate::fault::pass(&way.point(step));
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn pass_step(_way: Way, _step: &str) {}

#[cfg(feature = "fault-injection")]
pub(crate) fn strike_step(way: Way, step: &str) -> Result<(), Struck> {
    if crate::fault::strikes(&way.point(step)) { Err(Struck) } else { Ok(()) }
}

#[cfg(not(feature = "fault-injection"))]
pub(crate) fn strike_step(_way: Way, _step: &str) -> Result<(), Struck> {
    Ok(())
}
