//! Kill points: places at which a test can make a step fail or kill the process. They are after each run, repair and
//! undo of a step, and at declared places between steps. Without the feature `fault-injection` they do nothing.

use std::error::Error;

use crate::step::Steps;

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
    fn point(self, step: &str) -> String {
        match self {
            Self::Run => step.to_owned(),
            Self::Repair => format!("repair-{step}"),
            Self::Undo => format!("undo-{step}"),
        }
    }
}

/// The kill points of these steps for these ways.
#[must_use]
pub fn kill_points<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    ways: &[Way],
) -> Vec<String> {
    let of_way = |way: &Way| steps.iter().map(|step| way.point(step.name())).collect::<Vec<_>>();
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
#[cfg_attr(
    not(feature = "fault-injection"),
    expect(unused_variables, reason = "no test asks for a fault")
)]
pub fn pass(point: &'static str) {
    #[cfg(feature = "fault-injection")]
    crate::fault::pass(point);
}

/// A test caused the step's failure.
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
