//! The operators' program. It shows what a DPU has and what is wrong, and changes it, with kubectl's conventions.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod advice;
mod apply;
mod arguments;
mod audit;
mod bundle;
mod change;
mod client;
mod colour;
mod completions;
mod config;
mod console;
mod describe;
mod description;
mod doctor;
mod edit;
mod error;
mod events;
mod explain;
mod follow;
mod format;
mod get;
mod lookup;
mod mistake;
mod outdated;
mod pki;
mod rows;
mod sort;
mod status;
mod table;
mod text;
mod top;

pub use arguments::{Arguments, with_kind_apart};
pub use console::{Console, report, wants_colours};
pub use error::{CallError, EditError, Kind};
pub use mistake::Mistake;

use arguments::{Edited, Verb};
use client::Client;
use offload_proto::v1::ReleaseAttachmentRequest;

/// Runs the command of `arguments`.
///
/// # Errors
/// [`CallError`]; [`report`] prints it and returns the exit code.
pub async fn run(arguments: Arguments, console: &mut Console<'_>) -> Result<(), CallError> {
    let Arguments { options, verb } = arguments;
    let connect = || Client::connect(&options);
    match verb {
        Verb::Status { wait: None, output } => {
            status::status(&mut connect().await?, output, console).await
        }
        Verb::Status { wait: Some(condition), output } => {
            status::wait(&options, condition, output, console).await
        }
        Verb::Doctor { fix, reason, verbose, output } => {
            // A repair asks a host up to five times, and the DPU's own work needs time, too.
            let host_timeout = options.timeout() / 6;
            let repair = fix.then(|| reason.unwrap_or_default());
            let client = &mut connect().await?;
            doctor::doctor(client, repair, verbose, host_timeout, output, console).await
        }
        Verb::Get { what } => get::get(&mut connect().await?, what, console).await,
        Verb::Describe { what } => describe::describe(&mut connect().await?, what, console).await,
        Verb::Events(wanted) => events::events(&options, &wanted, console).await,
        Verb::Audit(wanted) => audit::audit(&mut connect().await?, wanted, console).await,
        Verb::Top(what) if what.lines.is_some() && !what.output.is_table() => {
            Err(CallError::LinesOfCounters)
        }
        Verb::Top(what) => top::top(&mut connect().await?, &what, console).await,
        Verb::Apply { file, dry_run, force_conflicts, why } => {
            let networks = apply::read(&file, console)?;
            let client = &mut connect().await?;
            let how = apply::How { dry_run, force_conflicts, reason: why.text() };
            apply::apply(client, networks, &how, console).await
        }
        Verb::Edit { what: Edited::Network { name, why } } => {
            edit::edit(connect, &name, why.text(), console).await
        }
        Verb::Rename { what } => change::rename(&mut connect().await?, what, console).await,
        Verb::Add { what } => change::add(&mut connect().await?, what, console).await,
        Verb::Delete { what } => change::delete(&mut connect().await?, what, console).await,
        Verb::Release { id, host, reason, forget, yes } => {
            let client = &mut connect().await?;
            match host {
                Some(host) => change::release_host(client, &host, reason, yes, console).await,
                None => {
                    let id = id.unwrap_or_default();
                    let release = ReleaseAttachmentRequest { id, reason, forget };
                    change::release(client, release, yes, console).await
                }
            }
        }
        Verb::ClearQuarantine { vf, why } => {
            change::clear_quarantine(&mut connect().await?, vf, why.text(), console).await
        }
        Verb::Bundle { output } => {
            let host_timeout = options.timeout() / 6;
            bundle::bundle(&mut connect().await?, output, host_timeout, console).await
        }
        Verb::Pki { what } => pki::pki(what, console),
        Verb::Explain { code } => explain::explain(code.as_deref(), console),
        Verb::Completions { shell } => completions::completions(shell, console),
    }
}
