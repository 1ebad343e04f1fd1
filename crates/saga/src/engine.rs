//! Runs and undoes steps.
//!
//! The engine takes no lock and runs on its caller's thread. The caller holds the locks for what the steps change.

use std::{error::Error, fmt};

use crate::{
    fault,
    points::Way,
    step::{Step, Steps},
};

/// A failed step, and the undos that failed after it.
#[derive(Debug)]
pub struct Failed<E> {
    /// The step that failed.
    pub step: &'static str,
    /// The index of its context.
    pub context: usize,
    /// The error. `None`: a fault test caused the failure.
    pub source: Option<E>,
    /// The failed undos, in their order.
    pub left: Vec<Left<E>>,
}

/// An undo that failed.
#[derive(Debug)]
pub struct Left<E> {
    /// The step whose undo failed.
    pub step: &'static str,
    /// The index of its context.
    pub context: usize,
    /// The error.
    pub source: E,
}

impl<E> fmt::Display for Failed<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "step {} failed", self.step)?;
        if self.source.is_none() {
            out.write_str(" on purpose")?;
        }
        for left in &self.left {
            write!(out, "; undoing step {} failed too", left.step)?;
        }
        Ok(())
    }
}

impl<E: Error + 'static> Error for Failed<E> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

/// Runs the steps in order. When one fails, undoes it and all before it, in reverse.
///
/// # Errors
/// The first step that failed, with the undos that failed after it.
pub fn run<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    context: &mut C,
) -> Result<(), Failed<E>> {
    run_together(&mut [(steps, context)])
}

/// Runs several contexts in parallel steps: the first step of each, then the second of each, whatever their names. If a
/// step fails, undoes it and all earlier steps of every context, in reverse.
///
/// # Errors
/// As for [`run`].
pub fn run_together<C, E: Error + Send + Sync + 'static>(
    sagas: &mut [(&Steps<C, E>, &mut C)],
) -> Result<(), Failed<E>> {
    let most = sagas.iter().map(|(steps, _)| steps.len()).max().unwrap_or_default();
    for position in 0..most {
        for number in 0..sagas.len() {
            let (steps, context) = &mut sagas[number];
            let Some(step) = steps.get(position) else { continue };
            if let Err(source) = attempt(*step, Way::Run, *context) {
                let step = step.name();
                let left = undo_together(sagas, position, number);
                return Err(Failed { step, context: number, source, left });
            }
        }
    }
    Ok(())
}

/// Undoes everything that ran before the step at `position` failed for context `number`. The failed step is undone,
/// too, because it may have had a part of its effect.
fn undo_together<C, E: Error + Send + Sync + 'static>(
    sagas: &mut [(&Steps<C, E>, &mut C)],
    position: usize,
    number: usize,
) -> Vec<Left<E>> {
    let mut left = Vec::new();
    for (at, (steps, context)) in sagas.iter_mut().enumerate().rev() {
        // Contexts after the failed one have not begun this step.
        let begun = if at <= number { position + 1 } else { position };
        let of_one = undo(&steps[..begun.min(steps.len())], *context);
        left.extend(of_one.into_iter().map(|left| Left { context: at, ..left }));
    }
    left
}

/// Runs the steps that are `wanted` by name, in order, up to the first failure. It undoes nothing, because a running
/// pod uses the other steps' effects.
///
/// # Errors
/// The first step that failed.
pub fn repair<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    wanted: impl Fn(&str) -> bool,
    context: &mut C,
) -> Result<(), Failed<E>> {
    for step in steps.iter().filter(|step| wanted(step.name())) {
        attempt(*step, Way::Repair, context).map_err(|source| Failed {
            step: step.name(),
            context: 0,
            source,
            left: Vec::new(),
        })?;
    }
    Ok(())
}

/// Undoes the steps in reverse. Continues after failures and returns them.
pub fn undo<C, E: Error + Send + Sync + 'static>(
    steps: &Steps<C, E>,
    context: &mut C,
) -> Vec<Left<E>> {
    let undo_one = |step: &&'static dyn Step<C, Error = E>| {
        let undone = traces::undo(step.name()).in_scope(|| step.undo(context));
        fault::pass(Way::Undo.prefix(), step.name());
        undone.err().map(|source| Left { step: step.name(), context: 0, source })
    };
    steps.iter().rev().filter_map(undo_one).collect()
}

/// `Err(None)`: a fault test caused the failure.
fn attempt<C, E: Error + Send + Sync + 'static>(
    step: &'static dyn Step<C, Error = E>,
    way: Way,
    context: &mut C,
) -> Result<(), Option<E>> {
    traces::step(step.name()).in_scope(|| step.run(context)).map_err(Some)?;
    // The fault comes after the step's work, which is the hardest case for its undo.
    if fault::strikes(way.prefix(), step.name()) { Err(None) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Refused;

    impl fmt::Display for Refused {
        fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
            out.write_str("refused")
        }
    }

    impl Error for Refused {}

    /// Appends to the log, and fails if the log says so.
    struct Named(&'static str);

    #[derive(Default)]
    struct Log {
        lines: Vec<String>,
        fail: &'static str,
        fail_undo: &'static str,
    }

    impl Step<Log> for Named {
        type Error = Refused;

        fn name(&self) -> &'static str {
            self.0
        }

        fn run(&self, log: &mut Log) -> Result<(), Refused> {
            log.lines.push(format!("+{}", self.0));
            if log.fail == self.0 { Err(Refused) } else { Ok(()) }
        }

        fn undo(&self, log: &mut Log) -> Result<(), Refused> {
            log.lines.push(format!("-{}", self.0));
            if log.fail_undo == self.0 { Err(Refused) } else { Ok(()) }
        }
    }

    const STEPS: &Steps<Log, Refused> = &[&Named("a"), &Named("b"), &Named("c")];

    #[test]
    fn all_steps_run_in_order() {
        let mut log = Log::default();
        run(STEPS, &mut log).unwrap();
        assert_eq!(log.lines, ["+a", "+b", "+c"]);
    }

    #[test]
    fn failed_step_is_undone_with_predecessors() {
        let mut log = Log { fail: "b", ..Log::default() };
        let failed = run(STEPS, &mut log).unwrap_err();
        assert_eq!(log.lines, ["+a", "+b", "-b", "-a"]);
        assert_eq!(failed.to_string(), "step b failed");
        assert!(failed.source().is_some_and(|source| source.downcast_ref::<Refused>().is_some()));
    }

    #[test]
    fn parallel_steps_are_undone_together() {
        let mut logs = [(); 3].map(|()| Log::default());
        logs[1].fail = "b";
        logs[0].fail_undo = "a";
        logs[1].fail_undo = "a";
        let each = [STEPS, STEPS, &STEPS[..1]];
        let mut sagas: Vec<_> = each.into_iter().zip(&mut logs).collect();
        let failed = run_together(&mut sagas).unwrap_err();
        assert_eq!((failed.step, failed.context), ("b", 1));
        let left: Vec<_> = failed.left.iter().map(|left| (left.step, left.context)).collect();
        assert_eq!(left, [("a", 1), ("a", 0)]);
        let lines = logs.map(|log| log.lines.join(""));
        assert_eq!(lines, ["+a+b-b-a", "+a+b-b-a", "+a-a"]);
    }

    #[test]
    fn what_others_have_not_begun_is_not_undone() {
        let mut logs = [(); 3].map(|()| Log::default());
        logs[1].fail = "c";
        let mut sagas: Vec<_> = logs.iter_mut().map(|log| (STEPS, log)).collect();
        run_together(&mut sagas).unwrap_err();
        let lines = logs.map(|log| log.lines.join(""));
        assert_eq!(lines, ["+a+b+c-c-b-a", "+a+b+c-c-b-a", "+a+b-b-a"]);
    }

    #[test]
    fn repair_runs_missing_steps_without_undo() {
        let mut log = Log { fail: "b", ..Log::default() };
        repair(STEPS, |name| name != "b", &mut log).unwrap();
        assert_eq!(log.lines, ["+a", "+c"]);
        let failed = repair(STEPS, |name| name != "a", &mut log).unwrap_err();
        assert_eq!(log.lines, ["+a", "+c", "+b"]);
        assert_eq!(failed.to_string(), "step b failed");
    }

    #[test]
    fn failed_undo_is_reported_and_rest_undone() {
        let mut log = Log { fail: "c", fail_undo: "b", ..Log::default() };
        let failed = run(STEPS, &mut log).unwrap_err();
        assert_eq!(log.lines, ["+a", "+b", "+c", "-c", "-b", "-a"]);
        assert_eq!(failed.to_string(), "step c failed; undoing step b failed too");
    }
}
