//! The hosts' half of an examination: asks each host and waits for its answer.

use std::{collections::HashMap, future::Future, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::time::timeout;

use crate::{
    attachments::Engine,
    host::Examination,
    sessions::{Examined, HostView, NotExamined},
    shared::Shared,
};
use model::HostName;

pub(super) struct HostHalf {
    pub(super) view: HostView,
    /// `Err`: why the host's findings are unknown.
    pub(super) found: Result<Arc<Examination>, String>,
}

/// Asks all hosts, repeatedly. A host that failed to answer is not asked again, so that a silent one costs its timeout
/// once.
pub(super) struct Inquiry<'a> {
    engine: &'a Arc<Engine>,
    limit: Duration,
    /// Why a host's findings are unknown.
    problems: HashMap<HostName, String>,
}

/// Describes why a host's findings are unknown.
fn describe(not_examined: &NotExamined, view: &HostView) -> String {
    match &view.absence {
        Some(absence) if *not_examined == NotExamined::NotConnected => {
            format!("{not_examined}: {absence}")
        }
        _ => not_examined.to_string(),
    }
}

impl<'a> Inquiry<'a> {
    pub(super) fn new(shared: &'a Shared, limit: Duration) -> Self {
        Self { engine: &shared.engine, limit, problems: HashMap::new() }
    }

    pub(super) async fn look(&mut self) -> Vec<HostHalf> {
        let engine = self.engine;
        self.ask(async |host| engine.hosts().examine(&host).await).await
    }

    pub(super) async fn repair(&mut self) -> Vec<HostHalf> {
        let engine = self.engine;
        self.ask(async |host| engine.hosts().repair(&host).await).await
    }

    async fn ask<F: Future<Output = Examined>>(
        &mut self,
        question: impl Fn(HostName) -> F,
    ) -> Vec<HostHalf> {
        let (problems, limit, question) = (&self.problems, self.limit, &question);
        let ask = |view: HostView| async move {
            let found = match problems.get(&view.name) {
                Some(problem) => Err(problem.clone()),
                None => match timeout(limit, question(view.name.clone())).await {
                    Ok(examined) => examined.map_err(|not_examined| describe(&not_examined, &view)),
                    Err(_) => Err(format!("it did not answer within {limit:?}")),
                },
            };
            HostHalf { view, found }
        };
        let halves = join_all(self.engine.hosts().list().into_iter().map(ask)).await;
        // Remembered, so that the next question skips hosts that failed to answer.
        for HostHalf { view, found } in &halves {
            if let Err(problem) = found {
                self.problems.insert(view.name.clone(), problem.clone());
            }
        }
        halves
    }
}
